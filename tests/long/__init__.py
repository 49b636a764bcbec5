"""Runs that take long: random input and broken sources. `make test-long` runs them all."""
