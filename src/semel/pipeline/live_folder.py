"""The folder through which an ingest beside a Spark driver and its queries coordinate.

    <store>.live/       beside the store of the ingest; mode 0700
        lock            locked by the ingest while it runs
        readers         locked, shared, by each process that reads for a query
        starting        locked by the process that starts an ingest
        status.json     the status of the ingest
        end             the `run` of the ingest that is asked to end
        log, log.1      the log of the ingest, at most LOG_BYTES each
        crash           standard error of the last run

Locks are taken with flock: the kernel releases them when the process ends, however it ends. So if
`lock` is free, the ingest is gone and `status.json` is final; and the ingest can tell whether
any query reads. No file is ever deleted, because a lock belongs to the file and not to its name.
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
# How long to wait before a lock that others hold only briefly is tried again.
RETRY_SECONDS: Final = 0.02

STARTING: Final = "starting"
CONNECTING: Final = "connecting"
CONNECTED: Final = "connected"
DRAINING: Final = "draining"
ENDED: Final = "ended"
FAILED: Final = "failed"
# States in which an ingest receives messages, or tries to.
RUNNING_STATES: Final = (STARTING, CONNECTING, CONNECTED)


@dataclass
class IngestStatus:
    """The status of an ingest, as it writes it to `status.json`."""

    # Random, unique to this process.
    run: str
    pid: int
    # The ingest ends when this process does.
    driver: int
    state: str
    # Its options, without secrets: see `LiveOptions.identity`.
    identity: dict[str, str]
    # One sentence that says why it failed.
    problem: str = ""
    # Why the last attempt to connect failed.
    trouble: str = ""
    # The last warnings, numbered.
    warnings: list[tuple[int, str]] = field(default_factory=list)
    # The counters of `semel ingest --json`.
    counters: dict[str, Any] = field(default_factory=dict)


class LiveFolder:
    """The files and locks of one ingest. Methods raise OSError."""

    def __init__(self, store: Path) -> None:
        self.store = store.resolve()
        self.folder = self.store.with_name(f"{self.store.name}.live")
        self.log = self.folder / "log"
        self.crash = self.folder / "crash"
        self._lock = self.folder / "lock"
        self._readers = self.folder / "readers"
        self._starting = self.folder / "starting"
        self._status = self.folder / "status.json"
        self._end = self.folder / "end"

    def create(self) -> None:
        """Create the folder if it does not exist."""
        self.folder.mkdir(0o700, parents=True, exist_ok=True)

    # --- for readers ------------------------------------------------------------------------------

    def add_reader(self) -> int:
        """Register this process as a reader until it ends or closes the returned descriptor."""
        descriptor = _open(self._readers)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def is_only_reader(self, descriptor: int) -> bool:
        """Whether the process that holds `descriptor` is the only reader. It stays one."""
        try:
            # The ingest takes the lock briefly when it checks for readers.
            return any(_try_lock(descriptor) for _ in range(3))
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_SH)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Hold the right to start an ingest; waits while another process has it."""
        descriptor = _open(self._starting)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def is_alive(self) -> bool:
        """Whether an ingest is running."""
        descriptor = _open(self._lock)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def status(self) -> IngestStatus | None:
        """The last status that an ingest wrote, or None."""
        try:
            found = json.loads(self._status.read_bytes())
            found["warnings"] = [(number, text) for number, text in found["warnings"]]
            return IngestStatus(**found)
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            # Another version of semel may have written other fields.
            return None

    def ask_to_end(self, run: str) -> None:
        """Ask the ingest of this run to end; it checks periodically."""
        _write(self._end, run.encode())

    # --- for the ingest ---------------------------------------------------------------------------

    def lock(self, timeout: float) -> int | None:
        """Take the lock of the ingest; None if another process keeps it for `timeout` seconds."""
        descriptor = _open(self._lock)
        end = time.monotonic() + timeout
        while not _try_lock(descriptor):
            if time.monotonic() >= end:
                os.close(descriptor)
                return None
        return descriptor

    def write_status(self, status: IngestStatus) -> None:
        """Publish the status of the ingest."""
        _write(self._status, json.dumps(asdict(status)).encode())

    def is_asked_to_end(self, run: str) -> bool:
        """Whether another process asked the ingest of this run to end."""
        try:
            return self._end.read_bytes() == run.encode()
        except FileNotFoundError:
            return False

    @contextmanager
    def without_readers(self) -> Iterator[bool]:
        """Whether there is no reader. If so, none can register until the context is left."""
        descriptor = _open(self._readers)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int) -> bool:
    """Whether an exclusive lock was taken; waits a moment if it was not."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(RETRY_SECONDS)
        return False
    return True


def _write(path: Path, data: bytes) -> None:
    """Replace a file atomically."""
    part = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
