"""The status of `semel up` as a file in its data folder, for the page and for other programs.

It is replaced as a whole about once a second, and deleted at the end. A reader must not rely on a
file that is older than a few seconds: `semel up` may have been killed.
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

STATUS_FILE: Final = "up-status.json"
# A file that was not replaced for this long is not current.
STALE_SECONDS: Final = 5.0


def write_status(data: Path, status: dict[str, Any]) -> None:
    """Replace the file. A failure is ignored: the disk may be full, and the next one may succeed.

    It is not synced: after a crash of the system it is out of date anyway.
    """
    path = data / STATUS_FILE
    temporary = path.with_suffix(".new")
    with suppress(OSError):
        temporary.write_text(json.dumps(status), "utf-8")
        os.replace(temporary, path)


def remove_status(data: Path) -> None:
    """Delete the file."""
    with suppress(OSError):
        (data / STATUS_FILE).unlink(missing_ok=True)


def read_status(data: Path) -> dict[str, Any] | None:
    """The current status; None: there is none, or it is not current."""
    path = data / STATUS_FILE
    try:
        age = time.time() - path.stat().st_mtime
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and age <= STALE_SECONDS else None
