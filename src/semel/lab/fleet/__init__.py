"""A simulated fleet: seeded devices behind gateways, with a journal of what became of each message.

devices.py     which message is the i-th of a fleet: a function of the seed
journal.py     what was begun and what is complete, on disk, line by line
publishing.py  gateways that publish at a rate, and come back after whatever happens
"""
