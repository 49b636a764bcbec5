"""A whole world in one process, under one seed: clients, network, broker, store, crashes.

    schedule   what a seed stands for: a plan, and a list of actions; nothing but values
    world      carries the actions out, one after the other, and brings all to rest in the end
    network    bytes on their way, cut at any place
    client     a plain MQTT client with an account of its own
    store      the real database in memory; the schedule says when a commit happens
    record     the sealer and its segments, where un-synced data can be lost
    ledger     what the broker should know, worked out from what has reached it
    witness    every packet that leaves the broker, compared with what is on disk at that moment
    account    what has to be true in the end
    shrinking  from a schedule that fails to a short one
    variants   brokers and stores that are broken on purpose: the simulation must notice
    runs       many seeds, on several processes, and what came of them

Nothing here reads a clock, draws a random number that is not the seed's, or opens a socket.
"""
