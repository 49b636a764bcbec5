"""Trying things: what makes traffic, faults and whole worlds, for demonstrations and for proof."""
