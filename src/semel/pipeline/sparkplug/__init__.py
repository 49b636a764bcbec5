"""Sparkplug B: the messages of edge nodes and devices, as rows of metrics, births and gaps.

    topic, payload ─▶ payload.decode_message ─▶ message ─▶ state.apply ─▶ rows, and the next state
    record ─▶ format("mqtt") ─▶ batches.SparkplugLanding ─▶ four Delta tables, each row once

`protobuf_schema`, `values`, `payload` and `state` are pure: bytes and states in, rows and states
out. `rows` makes Arrow tables of them, and `batches` commits these.
"""
