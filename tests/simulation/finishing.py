"""Executes all actions of a schedule, and brings the world to rest.

At the end everything is repaired (connections, disk space, time, the right to connect), and all
exchanges must complete.
"""

from typing import Final

from tests.simulation.clock import Broken
from tests.simulation.record import BEGIN, END
from tests.simulation.schedule import Action
from tests.simulation.world import World

# The maximum number of rounds until everything must be complete.
ROUNDS: Final = 200
# Longer than a publisher has to wait for a slow subscriber.
READER_WAIT: Final = 0.6


def play(world: World, actions: list[Action]) -> None:
    """Execute all actions, and finish. Raises `Broken`; `final_checks` checks the rest."""
    for action in actions:
        world.add_trace(str(action))
        world.act(action)
    finish(world)


def finish(world: World) -> None:
    """Repair everything, and wait until all exchanges are complete."""
    world.add_trace("end of the schedule: everything is repaired")
    world.store.set_space(True)
    world.store.set_behind(False)
    world.faults.damaged.clear()
    world.faults.hook = ""
    world.right_changes.give_back()
    _wait_until_idle(world)
    if world.plan.again:
        world.add_trace("restart from the database")
        world.crash(0, 0)
        _wait_until_idle(world)
    world.ledger.observe_rights()
    for client in world.clients:
        client.disconnect(0, None)
    world.step(everybody=True)
    world.step(everybody=True)
    for sealer in world.sealers:
        for _ in range(world.plan.seed % 4 * (END + 1)):
            sealer.go_on(world.database, world.plan.seed // 4)
        for _ in range(END + 1):
            if sealer.step != BEGIN:
                sealer.go_on(world.database, 0)
        if sealer.step != BEGIN:
            raise Broken(f"the sealer of stream {sealer.stream} is stuck")
    world.dropped += world.broker.router.dropped
    world.tally["wills"] += sum(each.is_will for each in world.ledger.accepted)
    world.tally["messages accepted"] += len(world.ledger.accepted)
    world.tally["sessions"] += world.ledger.sessions_begun
    world.tally["segments"] += sum(len(sealer.root.files) for sealer in world.sealers)
    world.tally["read from the queue on disk"] += world.store.refills
    world.tally["messages dropped"] += world.dropped


def _wait_until_idle(world: World) -> None:
    for _ in range(ROUNDS):
        for who, client in enumerate(world.clients):
            if client.link is None:
                world.connect(who, clean=False)
        world.step(everybody=True)
        if _is_idle(world):
            return
        world.clock.now += READER_WAIT
        world.sweep()
    raise Broken(f"it never becomes idle: {_describe_unfinished(world)}")


def _is_idle(world: World) -> bool:
    if world.store.pending or world.store.applied or world.broker.router.dirty:
        return False
    if any(link.up or link.down or link.is_cut for link in world.links):
        return False
    if not all(client.is_done() for client in world.clients):
        return False
    for state in world.broker.router.sessions.values():
        if state.connection and (len(state.session.backlog) or state.session.in_flight):
            return False
    return True


def _describe_unfinished(world: World) -> str:
    """What is not complete."""
    found: list[str] = []
    for client in world.clients:
        if not client.is_done():
            found.append(f"{client.name} has {sorted(client.outbox)} open")
    for name, state in world.broker.router.sessions.items():
        session = state.session
        if len(session.backlog) or session.in_flight:
            found.append(f"{name} has {len(session.backlog)} queued, {session.in_flight} in flight")
    return ", ".join(found) or "bytes are in transit forever"
