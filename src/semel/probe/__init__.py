"""The examiner: shows of any MQTT implementation, statement by statement, whether it is right.

    broker/ ┐
    client/ ├▶ outcomes (verdict and wire evidence) ─▶ report/ ─▶ files for people
    codec/  ┘

Each of the three has its cases and its `examination`; what they share is here, beside them.
`adapters/` has the programs through which a codec is examined. `matrix` examines many subjects.

`wire` writes packets byte by byte: the encoder of semel.mqtt could not write what is wrong, and an
examiner that used it could not find faults in it. What a peer sends is read with `semel.mqtt`.
"""
