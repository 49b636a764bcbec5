"""The dashboard: a page that shows what a broker, its record and its tables do.

It runs in a process of its own, so that nothing of it is on the path of a message: it asks the
broker through its control socket, and reads the record and the lake as any other reader does.
"""
