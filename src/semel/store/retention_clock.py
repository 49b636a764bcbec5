"""The time that retention goes by: the clock of the machine, as long as it can be believed.

Age is counted from the clock, and a clock that is wrong by ten years makes all rows old at once.
The clock is believed while it moves as the time since the machine's start does, which nobody can
set, and over a restart if the sealer has not been away for longer than GAP. What it jumps ahead
otherwise is not counted: retention goes by the time that was measured, which is behind the clock
then, and says so. It follows the clock again

- when the clock is set back to where it should be, and
- when as much time has been measured since the jump as any stream keeps its rows: whatever was
  there before the jump is old by then, also if the clock was wrong.

A clock that is behind makes rows young, and deletes nothing. What is known is noted in a file
beside the database, once a minute; without it the newest row of the record tells when the sealer
was last there.
"""

import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from semel.store.private_files import check_private, write_private
from semel.store.schema import Unusable

NAME: Final = "retention-clock.json"
# Seconds that the clock may jump ahead at a time, and that a sealer may have been away.
TOLERANCE: Final = 600.0
GAP: Final = 7 * 86_400.0


def time_since_boot() -> float:
    """Seconds since the machine was started, sleep included where the system tells."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class RetentionClock:
    """Is asked from time to time, and says what time it is for retention."""

    def __init__(self, path: Path | None, *, longest: float) -> None:
        """`path` is that of the note; `longest` the time that any stream keeps its rows."""
        self._path = path
        self._longest = longest
        # What was asked last: by the clock, since the start of the machine, and what was measured.
        self._wall: float | None = None
        self._boot: float | None = None
        self._measured = 0.0
        # The measured time at which the clock is believed again; None: it is.
        self._believed_at: float | None = None
        self._read()

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the time before."""
        return self._wall is not None

    def now(self, wall: float, boot: float, *, newest: float | None = None) -> tuple[float, str]:
        """The time for retention, and what has happened to the clock, in a sentence or nothing.

        `newest` is when the newest row was received, for a start without a note.
        """
        before = self._wall if self._wall is not None else newest
        if before is None:
            before = wall
        if self._wall is None:
            self._measured = before
        passed = wall - before
        if self._boot is None:
            is_jump = passed > GAP
            passed = 0.0 if is_jump else max(passed, 0.0)
        else:
            is_jump = passed - (boot - self._boot) > TOLERANCE
            passed = boot - self._boot if is_jump else max(passed, 0.0)
        self._wall, self._boot = wall, boot
        # Never ahead of the clock: one that is set back makes rows young.
        self._measured = min(self._measured + passed, wall)
        said = self._judge(wall, is_jump=is_jump)
        self._write()
        return self._measured, said

    def _judge(self, wall: float, *, is_jump: bool) -> str:
        ahead = wall - self._measured
        if ahead <= TOLERANCE:
            was_ahead = self._believed_at is not None
            self._measured = wall
            self._believed_at = None
            return "the clock is right again: retention goes by it" if was_ahead else ""
        if is_jump or self._believed_at is None:
            self._believed_at = self._measured + self._longest
            return (
                f"the clock has jumped ahead by {_duration(ahead)}, to {_shown(wall)}: retention "
                f"by age does not count that. Set the clock right; if it is right, retention "
                f"follows it after {_duration(self._longest)}, or at once if you delete "
                f"{self._path} and start again"
            )
        if self._measured >= self._believed_at:
            self._measured = wall
            self._believed_at = None
            return (
                "as much time has passed as any stream keeps its rows: retention goes by the clock"
            )
        return ""

    # --- the note ---------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._path is None:
            return
        try:
            check_private(self._path)
            note = json.loads(self._path.read_bytes())
        except (OSError, ValueError, Unusable):
            return  # as if there were none
        if not isinstance(note, dict):
            return
        wall, measured = _time(note.get("wall")), _time(note.get("measured"))
        if wall is not None and measured is not None:
            self._wall, self._measured = wall, measured
            self._believed_at = _time(note.get("believed_at"))

    def _write(self) -> None:
        if self._path is None:
            return
        note = {"wall": self._wall, "measured": self._measured, "believed_at": self._believed_at}
        temporary = self._path.with_name(f".{self._path.name}")
        # What cannot be noted now is noted a minute later. Who starts without it is more careful.
        with suppress(OSError):
            write_private(temporary, json.dumps(note).encode() + b"\n")
            temporary.rename(self._path)


def _time(value: Any) -> float | None:
    """A time in seconds that a clock can show, or None."""
    return float(value) if type(value) in (int, float) and abs(value) < 1e12 else None


def _shown(wall: float) -> str:
    try:
        return datetime.fromtimestamp(wall, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return str(wall)


def _duration(seconds: float) -> str:
    for size, unit in ((365.25 * 86_400, "years"), (86_400.0, "days"), (3_600.0, "hours")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
