"""The tests of semel. A package of their own: others put one of this name where Python looks."""
