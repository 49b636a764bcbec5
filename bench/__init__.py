"""Measurements beside real peers. `python -m bench` runs them; README.md says how to read them."""
