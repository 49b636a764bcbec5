"""Examines the encoder and the decoder of a library, which an adapter calls in its own process.

    examination ─▶ cases (from the conformance vectors) ─▶ process (the adapter) ─▶ decisions

The adapters that semel has are in `semel.probe.adapters`.
"""
