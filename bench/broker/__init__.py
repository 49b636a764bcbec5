"""The broker compared with others: processor time per delivered message, memory, latency."""
