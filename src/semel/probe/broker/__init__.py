"""Examines a broker: connects to it as its clients do, and sends raw bytes, right and wrong.

    examination ─▶ trial (one run of one case) ─▶ link (one connection)
        └▶ all_cases ─▶ cases_* (what is required, by topic) ─▶ *_steps (what cases share)

`control` starts, stops and kills the broker by commands of the user, for the cases about restarts.
"""
