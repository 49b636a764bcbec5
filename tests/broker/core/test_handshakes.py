"""Connections in a handshake are bounded in number and time, and take turns in the threads."""

import asyncio
import threading

from semel.broker.network.address_log import MAXIMUM_ADDRESSES, AddressLog
from semel.broker.network.handshake_workers import HandshakeWorkers
from semel.broker.network.handshakes import Handshakes

# Generous: it only ends what would hang.
PATIENCE = 60.0


class Visitor:
    """A connection in its handshake."""

    def __init__(self, address: str, port: int = 1) -> None:
        self.address = address
        self.label = f"{address}:{port}"
        self.is_cancelled = False
        self.is_aborted = False
        self.failures: list[str] = []

    def work(self) -> None:
        """Nothing."""

    def worked(self) -> None:
        """Nothing."""

    def failed(self, why: str) -> None:
        self.failures.append(why)

    def abort(self) -> None:
        self.is_aborted = True


def make_handshakes(lines: list[str], maximum: int = 3) -> Handshakes:
    loop = asyncio.new_event_loop()
    loop.close()
    return Handshakes(loop, AddressLog(lines.append), maximum_unconnected=maximum)


def test_beyond_the_bound_the_address_with_the_most_loses_its_oldest() -> None:
    lines: list[str] = []
    handshakes = make_handshakes(lines)
    single, *flood = [Visitor("a"), Visitor("b", 1), Visitor("b", 2), Visitor("b", 3)]
    for each in (single, *flood[:2]):
        handshakes.begin(each, 10.0, 0.0)
    assert lines == []
    handshakes.begin(flood[2], 10.0, 0.0)
    assert [each.is_aborted for each in (single, *flood)] == [False, True, False, False]
    assert lines == ["b:1 closed: it had not connected yet: maximum_unconnected is 3"]
    assert [len(each.failures) for each in (single, *flood)] == [0, 1, 0, 0]
    assert len(handshakes) == 3


def test_an_end_makes_room() -> None:
    lines: list[str] = []
    handshakes = make_handshakes(lines, 1)
    number = handshakes.begin(Visitor("a"), 10.0, 0.0)
    handshakes.end(number)
    # The socket of a complete handshake ends later.
    handshakes.end(number)
    second = Visitor("a")
    handshakes.begin(second, 10.0, 0.0)
    assert not second.is_aborted
    assert lines == []


def test_an_overdue_handshake_is_closed_and_others_are_not() -> None:
    lines: list[str] = []
    handshakes = make_handshakes(lines)
    late, early = Visitor("a"), Visitor("b")
    handshakes.begin(late, 10.0, 0.0)
    handshakes.begin(early, 11.0, 1.0)
    handshakes.sweep(9.9)
    # The loop was busy: what has arrived meanwhile is not read yet.
    handshakes.sweep(10.5, stalled_seconds=1.0)
    assert not late.is_aborted
    handshakes.sweep(10.5)
    assert (late.is_aborted, early.is_aborted) == (True, False)
    assert lines == ["a:1 closed: its handshake was not complete in time (connect_timeout)"]


def test_closing_aborts_everything() -> None:
    handshakes = make_handshakes([])
    visitors = [Visitor("a"), Visitor("b")]
    for each in visitors:
        handshakes.begin(each, 10.0, 0.0)
    handshakes.close()
    assert all(each.is_aborted for each in visitors)
    assert len(handshakes) == 0


# --- the log --------------------------------------------------------------------------------------


def test_an_address_gets_one_line_in_ten_seconds_and_then_a_count() -> None:
    lines: list[str] = []
    log = AddressLog(lines.append)
    log.log("a", "first", 0.0)
    log.log("b", "other", 0.0)
    log.log("a", "second", 1.0)
    log.log("a", "third", 2.0)
    assert lines == ["first", "other"]
    log.flush(9.0)
    assert lines == ["first", "other"]
    log.flush(10.0)
    assert lines == ["first", "other", "third (2 times)"]


def test_a_quiet_address_is_forgotten_without_losing_a_count() -> None:
    lines: list[str] = []
    log = AddressLog(lines.append)
    log.log("a", "first", 0.0)
    log.log("a", "second", 1.0)
    for second in range(1, 30):
        log.flush(float(second))
    assert lines == ["first", "second"]
    log.log("a", "third", 30.0)
    assert lines == ["first", "second", "third"]


def test_many_addresses_share_one_line() -> None:
    known = [f"known {number}" for number in range(MAXIMUM_ADDRESSES)]
    lines: list[str] = []
    log = AddressLog(lines.append)
    for address in (*known, "c", "d", known[0]):
        log.log(address, address, 0.0)
    assert lines == [*known, "c"]


# --- the threads ----------------------------------------------------------------------------------


class Job:
    """A job that waits until the test lets it go on."""

    def __init__(self, address: str, begun: list[str], gate: threading.Event) -> None:
        self.address = address
        self.is_cancelled = False
        self.done = asyncio.Event()
        self._begun = begun
        self._gate = gate

    def work(self) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self._begun.append(self.address)
        assert self._gate.wait(PATIENCE)

    def worked(self) -> None:
        self.done.set()


def test_addresses_take_turns() -> None:
    async def run() -> list[str]:
        gate = threading.Event()
        begun: list[str] = []
        workers = HandshakeWorkers(asyncio.get_running_loop(), 1)
        flood = [Job("flood", begun, gate) for _ in range(4)]
        others = [Job(name, begun, gate) for name in ("b", "c")]
        for job in (*flood, *others):
            workers.submit(job)
        gate.set()
        for job in (*flood, *others):
            await asyncio.wait_for(job.done.wait(), PATIENCE)
        workers.close()
        return begun

    assert asyncio.run(run()) == ["flood", "flood", "b", "c", "flood", "flood"]


def test_a_cancelled_job_is_not_begun() -> None:
    async def run() -> list[str]:
        gate = threading.Event()
        begun: list[str] = []
        workers = HandshakeWorkers(asyncio.get_running_loop(), 1)
        first, second, third = (Job(name, begun, gate) for name in ("a", "b", "c"))
        for job in (first, second, third):
            workers.submit(job)
        second.is_cancelled = True
        gate.set()
        await asyncio.wait_for(third.done.wait(), PATIENCE)
        workers.close()
        assert not second.done.is_set()
        return begun

    assert asyncio.run(run()) == ["a", "c"]


def test_closing_starts_nothing_more_and_a_late_job_harms_nobody() -> None:
    gate = threading.Event()
    begun: list[str] = []
    running = threading.Event()

    class Slow(Job):
        def work(self) -> None:
            running.set()
            super().work()

    async def run() -> HandshakeWorkers:
        workers = HandshakeWorkers(asyncio.get_running_loop(), 1)
        workers.submit(Slow("a", begun, gate))
        workers.submit(Job("b", begun, gate))
        assert await asyncio.to_thread(running.wait, PATIENCE)
        workers.close()
        workers.submit(Job("c", begun, gate))
        return workers

    threads = set(threading.enumerate())
    asyncio.run(run())
    late = set(threading.enumerate()) - threads
    # The loop is closed when the job ends.
    gate.set()
    for thread in late:
        thread.join(PATIENCE)
    assert begun == ["a"]
