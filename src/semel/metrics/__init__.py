"""Metrics: what a program measures, as text for Prometheus, over HTTP on a port of its own."""
