"""The ingest beside a driver: a process that `semel.pipeline.live` starts for queries.

It is `semel.client.ingest`, with three things around it that `semel ingest` has no need of:

- it says in `status.json` how it stands, because nobody reads what it prints;
- it ends by itself: when the driver is gone, when a starter asks it to, and when nobody has read
  from it for a while. What it has received is stored and acknowledged then, and the broker keeps
  the session;
- it holds the lock of its place to the last, so that whoever finds that free finds a last word.

What to do comes on standard input, as one JSON object, because others can see command lines:

    {"options": {…}, "root": "…", "stream": "…", "driver": [pid, when it was started],
     "run": "…", "identity": {…}}

`run` and `identity` are for its status: by the one its starter knows its words from those of
others, by the other whoever comes knows what it was asked to do.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from semel.client.errors import Disconnected, Refused
from semel.client.ingest import Ingest
from semel.extras import MissingExtra
from semel.mqtt.violation import Violation
from semel.pipeline.errors import OptionError
from semel.pipeline.live_folder import (
    CONNECTED,
    DRAINING,
    ENDED,
    FAILED,
    LOG_BYTES,
    STARTING,
    IngestStatus,
    Place,
)
from semel.pipeline.live_options import LiveOptions, read_options
from semel.store.schema import Unusable

LOG: Final = logging.getLogger("semel.live")

# How often it looks around: at first, while somebody waits for it, and later.
FIRST_SECONDS: Final = 0.05
POLL_SECONDS: Final = 0.5
# How long it waits for the lock, which others have for a moment when they look.
LOCK_SECONDS: Final = 5.0
# Warnings that are kept for those who read.
MOST_WARNINGS: Final = 20
# What may end it that no other attempt would change; anything else is a mistake of ours.
EXPECTED: Final = (Refused, Disconnected, Unusable, Violation, OptionError, MissingExtra)
WHOSE: Final = "use that clientId, or another folder by option data"
# Where the connection's troubles are logged.
CONNECTION: Final = "semel.client"


class News(logging.Handler):
    """Warnings, for those who read: what is wrong with the connection, and all others."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.trouble = ""
        self.warnings: deque[tuple[int, str]] = deque(maxlen=MOST_WARNINGS)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == LOG.name:
            # Who reads hears that otherwise.
            return
        text = one_line(record.getMessage())
        if record.name == CONNECTION:
            self.trouble = text
        else:
            self._number += 1
            self.warnings.append((self._number, text))


class Watch:
    """Looks around while an Ingest is at work: who still wants it, and how it stands."""

    def __init__(
        self, place: Place, status: IngestStatus, driver: tuple[int, int], linger: float
    ) -> None:
        self.place = place
        self.status = status
        self._driver = driver
        self._linger = linger
        self._unread_since: float | None = None

    async def keep_watch(self, work: Ingest, news: News) -> None:
        """Until it is cancelled. Ends `work` when it is time."""
        while True:
            self._say(work, news)
            if self.status.state != DRAINING:
                self._judge(work)
            is_awaited = self.status.state not in (CONNECTED, DRAINING) and not news.trouble
            await asyncio.sleep(FIRST_SECONDS if is_awaited else POLL_SECONDS)

    def _say(self, work: Ingest, news: News) -> None:
        counters = work.counters
        # Before the store is open there is nothing to be told.
        if counters.node and self.status.state != DRAINING:
            self.status.state = counters.state
        if counters.state == CONNECTED:
            news.trouble = ""
        self.status.trouble = news.trouble
        self.status.warnings = list(news.warnings)
        self.status.counters = asdict(counters)
        self.put()

    def put(self) -> None:
        """The status is where others see it. A disk that is full is no reason to end."""
        try:
            self.place.say(self.status)
        except OSError as problem:
            LOG.warning("the status cannot be written: %s", problem)

    def _judge(self, work: Ingest) -> None:
        why = ""
        if not is_running(self._driver):
            why = "the driver is gone"
        elif self.place.is_asked_to_end(self.status.run):
            why = "another ingest takes its place"
        if why:
            self._drain(work, why)
            return
        with self.place.nobody_reads() as is_unread:
            now = time.monotonic()
            if not is_unread:
                self._unread_since = None
            elif self._unread_since is None:
                self._unread_since = now
            if self._unread_since is not None and now - self._unread_since >= self._linger:
                # Said while nobody can begin to read: who does next, knows that this one ends.
                self._drain(work, "no query reads from it any more")

    def _drain(self, work: Ingest, why: str) -> None:
        LOG.info("it is time to end: %s", why)
        self.status.state = DRAINING
        self.put()
        work.stop()


def started_at(pid: int) -> int:
    """When a process was started, in the system's own count; 0: it is gone, or nobody can tell."""
    try:
        # The name, in brackets, may have anything in it.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_running(process: tuple[int, int]) -> bool:
    """Whether this process is there, and not another that has got its number."""
    pid, started = process
    if started:
        return started_at(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def one_line(text: str) -> str:
    """A sentence for a log: what a peer has put into it does no harm there."""
    return text if text.isprintable() else ascii(text)[1:-1]


# --- the process ----------------------------------------------------------------------------------


async def ingest(wanted: LiveOptions, watch: Watch, news: News) -> None:
    """Until it is time to end, or there is no use in going on."""
    work = Ingest(wanted.plan)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.stop)
    watching = loop.create_task(watch.keep_watch(work, news))
    watching.add_done_callback(lambda _: work.stop())
    try:
        await work.run()
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        watch.status.counters = asdict(work.counters)


def run(wanted: LiveOptions, watch: Watch, news: News) -> None:
    """Ingest on the quickest loop there is."""
    ingesting = ingest(wanted, watch, news)
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        asyncio.run(ingesting)
    else:
        uvloop.run(ingesting)


def problem_of(problem: Exception, place: Place) -> str:
    """Why it failed, in a sentence that says what to do."""
    said = one_line(str(problem))
    if isinstance(problem, Disconnected) and problem.is_final:
        return (
            f"{said}. Take another clientId and a new folder by option data; or run `semel ingest`"
            " once with --start-clean for this store, and give up what the broker has kept"
        )
    if isinstance(problem, Unusable) and "in use by another process" in said:
        return f"{said}. If that is an ingest, leave out option url to read what it records"
    if isinstance(problem, Unusable):
        # As the option is called.
        return said.replace("use that client_id, or another folder", WHOSE)
    if isinstance(problem, EXPECTED):
        return said
    return f"the ingest failed ({one_line(repr(problem))}); its log is {place.log}"


def set_up_log(place: Place) -> News:
    """The log, of a bounded size, and what of it is for those who read."""
    lines = RotatingFileHandler(place.log, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    lines.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    news = News()
    logging.basicConfig(handlers=[lines, news], level=logging.INFO)
    logging.captureWarnings(True)
    # A log that cannot be written must not fill another file with that.
    logging.raiseExceptions = False
    return news


def main() -> int:
    """Work for who has started this; the exit code."""
    try:
        (store,) = sys.argv[1:]
        task = json.load(sys.stdin)
        driver = (int(task["driver"][0]), int(task["driver"][1]))
        options, root, stream = task["options"], task["root"], task["stream"]
        status = IngestStatus(task["run"], os.getpid(), driver[0], STARTING, dict(task["identity"]))
    except (ValueError, LookupError, TypeError):
        print('semel.pipeline.live_ingest is started by format("mqtt")', file=sys.stderr)
        return 2
    os.umask(0o077)
    place = Place(Path(store))
    if place.take(LOCK_SECONDS) is None:
        print("another ingest has the lock", file=sys.stderr)
        return 3
    news = set_up_log(place)
    watch = Watch(place, status, driver, 0.0)
    try:
        wanted = read_options(options, root=root, stream=stream)
        watch = Watch(place, status, driver, wanted.linger)
        place.say(status)
        run(wanted, watch, news)
    except Exception as problem:
        # Whatever it is, who reads is told, and nothing goes on.
        status.problem = problem_of(problem, place)
        LOG.error("%s", status.problem, exc_info=not isinstance(problem, EXPECTED))
    status.state = FAILED if status.problem else ENDED
    status.warnings = list(news.warnings)
    watch.put()
    return 1 if status.problem else 0


if __name__ == "__main__":
    sys.exit(main())
