"""The clock of retention: the wall clock, as long as it is plausible.

Ages are computed with the wall clock, and a clock that is ten years ahead would make all rows old
at once. So the wall clock is compared with the time since boot, which nobody can set. After a
restart a jump of up to GAP is accepted as downtime of the sealer. A larger jump ahead is ignored:
retention then uses the measured time, which is behind the wall clock, and reports that. It follows
the wall clock again

- when the clock is corrected, or
- when the time measured since the jump is as long as any stream keeps its rows: by then all rows
  from before the jump are old, even if the clock was wrong.

A clock that is behind makes rows look young, and deletes nothing. The state is saved once a minute
in a file next to the database. Without this file, the newest row of the record shows when the
sealer ran last.
"""

import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from semel.store.private_files import check_private, write_private
from semel.store.schema import Unusable

FILE_NAME: Final = "retention-clock.json"
# How many seconds the wall clock may jump ahead, and a sealer may have been stopped.
TOLERANCE: Final = 600.0
GAP: Final = 7 * 86_400.0


def time_since_boot() -> float:
    """Seconds since boot, including time in suspend, if the system supports that."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class RetentionClock:
    """The time for retention. Call `now` regularly."""

    def __init__(self, path: Path | None, *, longest: float) -> None:
        """`path` is the state file; `longest` is the longest retention by age."""
        self._path = path
        self._longest = longest
        # At the last call: the wall clock, the time since boot, and the measured time.
        self._wall: float | None = None
        self._boot: float | None = None
        self._measured = 0.0
        # The measured time at which the wall clock is trusted again; None: it is trusted.
        self._trusted_at: float | None = None
        self._read()

    @property
    def is_known(self) -> bool:
        """Whether the state of an earlier run is known."""
        return self._wall is not None

    def now(self, wall: float, boot: float, *, newest: float | None = None) -> tuple[float, str]:
        """The time for retention, and a notice if the state of the clock has changed, else "".

        `newest` is when the newest row was received, for a start without a state file.
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
        # Never ahead of the wall clock: if that was set back, rows should look younger, not older.
        self._measured = min(self._measured + passed, wall)
        notice = self._update_trust(wall, is_jump=is_jump)
        self._write()
        return self._measured, notice

    def _update_trust(self, wall: float, *, is_jump: bool) -> str:
        ahead = wall - self._measured
        if ahead <= TOLERANCE:
            was_ahead = self._trusted_at is not None
            self._measured = wall
            self._trusted_at = None
            return "the clock is correct again: retention follows it" if was_ahead else ""
        if is_jump or self._trusted_at is None:
            self._trusted_at = self._measured + self._longest
            return (
                f"the clock jumped ahead by {_duration(ahead)}, to {_shown(wall)}: retention by "
                f"age ignores the jump. Correct the clock; if it is correct, retention follows it "
                f"after {_duration(self._longest)}, or at once if you delete {self._path} and "
                f"restart"
            )
        if self._measured >= self._trusted_at:
            self._measured = wall
            self._trusted_at = None
            return "the clock has been stable for as long as rows are kept: retention follows it"
        return ""

    # --- the state file ---------------------------------------------------------------------------

    def _read(self) -> None:
        if self._path is None:
            return
        try:
            check_private(self._path)
            state = json.loads(self._path.read_bytes())
        except (OSError, ValueError, Unusable):
            return
        if not isinstance(state, dict):
            return
        wall, measured = _time(state.get("wall")), _time(state.get("measured"))
        if wall is not None and measured is not None:
            self._wall, self._measured = wall, measured
            self._trusted_at = _time(state.get("believed_at"))

    def _write(self) -> None:
        if self._path is None:
            return
        state = {"wall": self._wall, "measured": self._measured, "believed_at": self._trusted_at}
        temporary = self._path.with_name(f".{self._path.name}")
        # If this fails, the next call retries. A start without the file deletes less, not more.
        with suppress(OSError):
            write_private(temporary, json.dumps(state).encode() + b"\n")
            temporary.rename(self._path)


def _time(value: Any) -> float | None:
    """A plausible time in seconds, or None."""
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
