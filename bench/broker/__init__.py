"""The broker beside real brokers: processor time per delivered message, memory, latency."""
