"""The examiner: shows of any MQTT implementation, statement by statement, whether it is right.

    cases ─▶ examination ─▶ outcomes (verdict and wire evidence) ─▶ report ─▶ files for people

`wire` writes packets byte by byte: the encoder of semel.mqtt could not write what is wrong, and an
examiner that used it could not find faults in it. What a peer sends is read with `semel.mqtt`.
"""
