"""A load generator for any broker: raw sockets, worker processes, and a check of every message.

    description       the load: who publishes what to whom, how much, how fast
    wire              its packets, all of one length and encoded by semel.mqtt, with a stamp each
    links             non-blocking connections
    clients           a publisher with its window, a subscriber that acknowledges
    delivery_tracker  the deliveries to a subscriber: lost, duplicated, out of order, latency
    traffic           drives the clients of one process; limits how far publishers are ahead
    workers           the processes, from the first connection to the result
    result            the result

`semel load` and the benches use the same clients. The benches measure brokers that need less time
for a message than Python needs to decode it: they send prepared packets, and only count deliveries.
"""
