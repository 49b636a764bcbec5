"""Signals that do not end a broker: a thread waits for them, and calls or logs."""

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator

import pytest

from semel.broker.network import signals
from semel.broker.network.signals import call_on_signal, watch_signals
from tests.broker.broker_process import PATIENCE

# Tests send it to the thread, not to the process: other threads do not block it.
SENT = signal.SIGUSR1


class Lines(logging.Handler):
    """What is logged, and an event for it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.has_line = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.has_line.set()


@pytest.fixture
def logged() -> Iterator[Lines]:
    made = Lines()
    logging.getLogger("semel.broker").addHandler(made)
    yield made
    logging.getLogger("semel.broker").removeHandler(made)


@pytest.fixture(autouse=True)
def mask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What this thread blocks, and what is called, is as before."""
    monkeypatch.setattr(signals, "_called", {})
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def watch() -> threading.Thread | None:
    """Watch the signals; the thread that does it, if there is one."""
    before = set(threading.enumerate())
    watch_signals()
    made = set(threading.enumerate()) - before
    return made.pop() if made else None


def send(thread: threading.Thread) -> None:
    assert thread.ident is not None
    signal.pthread_kill(thread.ident, SENT)


def test_a_signal_is_logged_until_there_is_something_to_call(
    monkeypatch: pytest.MonkeyPatch, logged: Lines
) -> None:
    monkeypatch.setattr(signals, "SIGNALS", (SENT,))
    thread = watch()
    assert thread is not None
    assert SENT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    send(thread)
    assert logged.has_line.wait(PATIENCE)
    assert logged.lines == ["SIGUSR1 ignored: there is nothing to reload"]

    async def receive() -> None:
        received = asyncio.Event()
        call_on_signal(SENT, received.set)
        for _ in range(3):
            received.clear()
            send(thread)
            await asyncio.wait_for(received.wait(), PATIENCE)

    asyncio.run(receive())
    # The loop has ended: nothing is called, and the thread goes on.
    send(thread)
    del signals._called[SENT]
    logged.has_line.clear()
    while not logged.has_line.is_set():
        send(thread)
        logged.has_line.wait(0.05)
    assert set(logged.lines) == {"SIGUSR1 ignored: there is nothing to reload"}


def test_nothing_is_called_on_a_loop_that_has_ended() -> None:
    async def register() -> None:
        call_on_signal(SENT, lambda: pytest.fail("the loop has ended"))

    asyncio.run(register())
    signals._called[SENT]()


def test_a_signal_that_is_ignored_already_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "SIGNALS", (SENT,))
    before = signal.signal(SENT, signal.SIG_IGN)
    try:
        assert watch() is None
        assert SENT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.signal(SENT, before)
