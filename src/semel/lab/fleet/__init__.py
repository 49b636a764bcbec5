"""A simulated fleet: devices behind gateways, with a journal of the state of each message.

devices.py     devices and messages as a function of a seed
journal.py     which messages were begun and which are complete, on disk
publishing.py  gateways that publish at a rate, and reconnect after failures
"""
