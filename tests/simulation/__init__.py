"""A deterministic simulation in one process: clients, network, broker, store and crashes.

    schedule      what a seed stands for: a plan and a list of actions, as plain values
    world         executes the actions one by one
    traffic       what clients publish and subscribe to
    finishing     executes all actions, and brings everything to rest at the end
    network       bytes in transit, which may be cut at any position
    client        a simple MQTT client that records what it sent and received
    store         the real database in memory; the schedule says when a commit happens
    record        the sealer and its segments, on a disk that loses unsynced data
    ledger        a model of the broker: what it should know, from the packets that reached it
    witness       compares every packet that leaves the broker with the database at that moment,
                  and with the rights at that moment
    rights        who may publish, subscribe and receive; the history of that
    right_changes when these rights change
    thefts        strangers that try to use the session of somebody else
    final_checks  what must be true at the end
    promptness    what must have happened by a time
    shrinking     reduces a failing schedule to a short one
    variants      worlds that are broken on purpose, each of which the simulation must detect;
                  sealer_variants and rights_variants have some, broken_variants lists all
    runs          runs many seeds in several processes; the command line

Bridges have a simulation of their own, which checks only what has arrived at the end:

    stored_broker a real broker with a simulated store, and rights that change
    bridge_world  two of them, a bridge and publishers: the actions, and the check at the end
    bridge_runs   runs many seeds; the command line

Nothing here reads a clock, opens a socket, or uses randomness other than the seed.
"""
