"""Adapters: libraries as subjects of `semel probe codec`, each a program that speaks JSON lines.

    semel probe codec -- python -m semel.probe.adapters.paho_codec

`adapter.py` is the loop that those in Python share. A library is imported by its adapter only.
"""
