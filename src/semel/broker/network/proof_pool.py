"""Worker threads that run the `Proof`s of clients, so that the event loop never waits for one.

    submit ─▶ a bounded queue, by address ─▶ threads ─▶ Proof.run ─▶ done, on the loop

Addresses take turns: one with many waiting clients delays its own, not those of others. If the
queue is full, the address with the most loses its last one. Each submitted proof gets one call of
`done`, unless it is cancelled or the pool is closed.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from semel.broker.access.failures import FailureRate
from semel.broker.authority import Denied, Proof
from semel.broker.identity import Identity
from semel.mqtt.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    SERVER_BUSY,
    UNSPECIFIED_ERROR,
)

LOG: Final = logging.getLogger("semel.broker")

# How long `close` waits for the proofs that are running. Their threads end with the process.
CLOSE_SECONDS: Final = 2.0
# Outcomes that count as failures of the address.
_FAILURES: Final = (BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED)

Outcome = Identity | Denied


class PendingProof:
    """A proof that waits or runs."""

    def __init__(
        self,
        key: int,
        proof: Proof,
        *,
        address: str,
        deadline: float,
        done: Callable[[Outcome], None],
    ) -> None:
        self.key: Final = key
        self.proof: Final = proof
        self.address: Final = address
        self.deadline: Final = deadline
        self.done: Final = done
        self.is_cancelled = False


class ProofPool:
    """Runs proofs in threads, which start with the first proof."""

    def __init__(
        self,
        call_on_loop: Callable[[Callable[[], None]], object],
        *,
        threads: int,
        maximum_pending: int,
        timeout: float,
        rate: FailureRate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`call_on_loop` is `loop.call_soon_threadsafe`; `timeout` is that of a CONNECT."""
        self._call_on_loop: Final = call_on_loop
        self._thread_count: Final = threads
        self._maximum_pending: Final = maximum_pending
        self._timeout: Final = timeout
        self._rate: Final = rate
        self._clock: Final = clock
        # Guards everything below; it is not held while a proof runs.
        self._condition: Final = threading.Condition()
        # The first address is the next one whose turn it is.
        self._queues: Final[dict[str, deque[PendingProof]]] = {}
        self._pending: Final[dict[int, PendingProof]] = {}
        self._waiting = 0
        self._threads: Final[list[threading.Thread]] = []
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many proofs wait for a thread."""
        return self._waiting

    def submit(
        self, key: int, proof: Proof, *, address: str, done: Callable[[Outcome], None]
    ) -> None:
        """Run a proof for the connection `key`, and call `done` on the loop. Never blocks."""
        if self._rate.is_exceeded(address):
            self._report(done, _too_many_failures())
            return
        deadline = self._clock() + self._timeout
        pending = PendingProof(key, proof, address=address, deadline=deadline, done=done)
        with self._condition:
            if self._is_closed:
                return
            if self._waiting >= self._maximum_pending:
                dropped = self._make_room(pending)
                self._report(dropped.done, Denied(SERVER_BUSY, "too many clients authenticate"))
                if dropped is pending:
                    return
            self._queues.setdefault(address, deque()).append(pending)
            self._pending[key] = pending
            self._waiting += 1
            if len(self._threads) < self._thread_count:
                name = f"semel-proof-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._condition.notify()

    def cancel(self, key: int) -> None:
        """The connection is closed: do not run its proof, or ignore the outcome."""
        with self._condition:
            pending = self._pending.pop(key, None)
            if pending is None:
                return
            pending.is_cancelled = True
            queue = self._queues.get(pending.address)
            if queue is not None and pending in queue:
                queue.remove(pending)
                self._removed(pending.address, queue)

    def close(self) -> None:
        """Discard what waits, ignore what runs, and end the threads."""
        with self._condition:
            self._is_closed = True
            self._queues.clear()
            self._pending.clear()
            self._waiting = 0
            self._condition.notify_all()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _make_room(self, newcomer: PendingProof) -> PendingProof:
        """The proof that is dropped, so that there is room, or the newcomer itself."""
        address, queue = max(self._queues.items(), key=lambda each: len(each[1]))
        own = self._queues.get(newcomer.address)
        if len(queue) <= (0 if own is None else len(own)) + 1:
            # No other address would have more than this one.
            return newcomer
        dropped = queue.pop()
        self._pending.pop(dropped.key, None)
        self._removed(address, queue)
        return dropped

    def _removed(self, address: str, queue: deque[PendingProof]) -> None:
        self._waiting -= 1
        if not queue:
            del self._queues[address]

    def _work(self) -> None:
        while True:
            with self._condition:
                pending = self._next()
            if pending is None:
                return
            outcome = self._outcome(pending)
            with self._condition:
                is_wanted = not pending.is_cancelled and not self._is_closed
                if self._pending.get(pending.key) is pending:
                    del self._pending[pending.key]
            if is_wanted:
                self._report(pending.done, outcome)

    def _next(self) -> PendingProof | None:
        """Wait for the proof whose turn it is; None: the pool is closed."""
        while not self._queues:
            if self._is_closed:
                return None
            self._condition.wait()
        address, queue = next(iter(self._queues.items()))
        pending = queue.popleft()
        del self._queues[address]
        if queue:
            # The other addresses come first.
            self._queues[address] = queue
        self._waiting -= 1
        return pending

    def _outcome(self, pending: PendingProof) -> Outcome:
        if self._clock() >= pending.deadline:
            return Denied(SERVER_BUSY, "the server was too busy to authenticate the client")
        # Others of this address may have failed while it waited.
        if self._rate.is_exceeded(pending.address):
            return _too_many_failures()
        try:
            outcome = pending.proof.run()
            if not isinstance(outcome, Identity | Denied):
                raise TypeError(f"a Proof returned {type(outcome).__name__}")
        # Also SystemExit: nothing that a hook raises may end the thread.
        except BaseException:
            LOG.exception("authenticating a client of %s failed: refused", pending.address)
            return Denied(UNSPECIFIED_ERROR)
        if isinstance(outcome, Denied):
            if outcome.reason in _FAILURES:
                self._rate.count(pending.address)
        elif self._clock() >= pending.deadline:
            return Denied(SERVER_BUSY, "the authentication took too long")
        return outcome

    def _report(self, done: Callable[[Outcome], None], outcome: Outcome) -> None:
        try:
            self._call_on_loop(lambda: done(outcome))
        except RuntimeError:
            # The loop is closed: there are no clients any more.
            return


def _too_many_failures() -> Denied:
    return Denied(QUOTA_EXCEEDED, "too many failed authentications from this address")
