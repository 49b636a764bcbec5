"""Examines a client program: starts it, and serves it right and wrong packets.

    examination ─▶ discovery ─▶ profile (which of `needs` the program does by itself)
        ├▶ trial (one run of one case) ─▶ process (the program), server (its connections)
        ├▶ all_cases ─▶ cases_* (what is required, by topic)
        └▶ audit (what the program sent in all runs)

`server_wire` writes the packets that only a server sends.
"""
