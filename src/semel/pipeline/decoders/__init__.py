"""Decoders of message payloads: whole Arrow columns of bytes in, typed structs out.

    payloads ─▶ compression.decompress ─▶ formats.make_decoder(…) ─▶ values and problems

A decoder never raises for a payload: what it cannot decode is null in the result, with a `Problem`
beside it. The result of one payload does not depend on its neighbors.
"""
