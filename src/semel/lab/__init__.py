"""Test equipment: simulated traffic, fault injection, and a broker for tests and demos."""
