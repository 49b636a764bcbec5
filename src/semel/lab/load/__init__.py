"""A described load on any broker: raw sockets, worker processes, and an account of every message.

    description  what is to happen: who publishes what to whom, how much, how fast
    wire         its bytes: packets of one length by semel.mqtt.encode, stamped before use
    links        connections that never block
    clients      a publisher with its window, a subscriber that acknowledges
    account      what one subscriber got: lost, duplicated, out of order, how late
    traffic      the clients of one process, driven: nobody is far ahead of who receives
    workers      the processes, from the first connection to the result
    result       what came out

`semel load` and the benches run the same clients. The benches measure brokers that take less time
for a message than Python for looking at it: they send packets that were prepared before, and only
count what comes back.
"""
