"""The folder where the ingest beside a driver and the queries that read from it meet.

    <store>.live/       beside the store of the ingest, its owner's alone
        lock            locked by the ingest while it lives
        readers         locked, shared, by each process that reads for a query
        starting        locked by who starts an ingest
        status.json     what the ingest says of itself
        end             whom a starter asks to end, by the `run` of its status
        log, log.1      what it has logged, at most LOG_BYTES each
        crash           what Python or a library wrote to standard error in the last run

Locks are flock's: they go with their process, however that ends. So whoever finds `lock` free
knows that the ingest is gone, and whether `status.json` is its last word or its last but one; and
the ingest knows whether anybody reads. No file is ever deleted, because a lock is on the file and
not on its name.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

LOG_BYTES: Final = 1024 * 1024
# How often a lock is tried that somebody holds only for a moment.
TRY_SECONDS: Final = 0.02

STARTING: Final = "starting"
CONNECTING: Final = "connecting"
CONNECTED: Final = "connected"
DRAINING: Final = "draining"
ENDED: Final = "ended"
FAILED: Final = "failed"
# It takes messages, or tries to.
AT_WORK: Final = (STARTING, CONNECTING, CONNECTED)


@dataclass
class IngestStatus:
    """What an ingest says of itself."""

    # Of this process, and of no other that ever was.
    run: str
    pid: int
    # The process that it ends with.
    driver: int
    state: str
    # What it was asked to do, without secrets: see `Wanted.identity`.
    identity: dict[str, str]
    # Why it failed, in a sentence.
    problem: str = ""
    # Why there is no connection now, if one was tried.
    trouble: str = ""
    # The last warnings, with their numbers.
    warnings: list[tuple[int, str]] = field(default_factory=list)
    # The counters of `semel ingest --json`.
    counters: dict[str, Any] = field(default_factory=dict)


class Place:
    """The folder. What the system has against it comes out as OSError."""

    def __init__(self, store: Path) -> None:
        # By whatever way somebody came to it.
        self.store = store.resolve()
        self.folder = self.store.with_name(f"{self.store.name}.live")
        self.log = self.folder / "log"
        self.crash = self.folder / "crash"
        self._lock = self.folder / "lock"
        self._readers = self.folder / "readers"
        self._starting = self.folder / "starting"
        self._status = self.folder / "status.json"
        self._end = self.folder / "end"

    def make(self) -> None:
        """The folder is there."""
        self.folder.mkdir(0o700, parents=True, exist_ok=True)

    # --- for who reads ----------------------------------------------------------------------------

    def hold(self) -> int:
        """This process reads, until it ends or closes what this returns."""
        descriptor = _opened(self._readers)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def is_alone(self, descriptor: int) -> bool:
        """Whether nobody reads but who holds this, and goes on to hold it."""
        try:
            # The ingest has it for a moment when it looks.
            return any(_tried(descriptor) for _ in range(3))
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_SH)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Nobody else starts an ingest meanwhile; whoever does is waited for."""
        descriptor = _opened(self._starting)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def is_alive(self) -> bool:
        """Whether there is an ingest."""
        descriptor = _opened(self._lock)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def status(self) -> IngestStatus | None:
        """What the ingest said last; None: there has been none."""
        try:
            found = json.loads(self._status.read_bytes())
            found["warnings"] = [(number, text) for number, text in found["warnings"]]
            return IngestStatus(**found)
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            # One of another version of semel may say other things.
            return None

    def ask_to_end(self, run: str) -> None:
        """The ingest of this run is to end; it looks now and then."""
        _write(self._end, run.encode())

    # --- for the ingest ---------------------------------------------------------------------------

    def take(self, patience: float) -> int | None:
        """The lock of the ingest; None: another has it."""
        descriptor = _opened(self._lock)
        end = time.monotonic() + patience
        while not _tried(descriptor):
            if time.monotonic() >= end:
                os.close(descriptor)
                return None
        return descriptor

    def say(self, status: IngestStatus) -> None:
        """This is how it stands."""
        _write(self._status, json.dumps(asdict(status)).encode())

    def is_asked_to_end(self, run: str) -> bool:
        """Whether somebody wants another ingest in the place of this one."""
        try:
            return self._end.read_bytes() == run.encode()
        except FileNotFoundError:
            return False

    @contextmanager
    def nobody_reads(self) -> Iterator[bool]:
        """Whether nobody does; then nobody begins to, until this is left."""
        descriptor = _opened(self._readers)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _tried(descriptor: int) -> bool:
    """Try to have a lock alone; if somebody has it, wait a little."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(TRY_SECONDS)
        return False
    return True


def _write(path: Path, data: bytes) -> None:
    """A file is there whole, as it was or as it is now."""
    part = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
