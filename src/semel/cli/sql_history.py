"""The statements of earlier prompts of `semel sql`, in a file of the user's state folder.

Each line is an entry, in which a line feed is `\\n` and a backslash is two. An entry is written
when it is entered: the file is read again and replaced, so that prompts which are open at the same
time keep each other's entries. It never has more than MOST_ENTRIES, and only the user can read it.
"""

import os
import re
from pathlib import Path
from typing import Final

MOST_ENTRIES: Final = 1_000
# Longer statements are not kept.
MOST_CHARACTERS: Final = 10_000
_ESCAPED: Final = re.compile(r"\\(.)")


def history_path() -> Path:
    """The file in $XDG_STATE_HOME or ~/.local/state. Raises RuntimeError without a home."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG specification says that a relative path is to be ignored.
    if not state.is_absolute():
        state = Path.home() / ".local" / "state"
    return state / "semel" / "sql_history"


class PromptHistory:
    """Reads and extends the file. What fails is a `warning`, once; the prompt works without it."""

    def __init__(self) -> None:
        # A sentence that the caller prints and clears.
        self.warning = ""
        self._has_failed = False

    def load(self) -> list[str]:
        """The entries, oldest first; none if there is no file."""
        try:
            return self._entries(history_path())
        except (OSError, RuntimeError) as problem:
            self._fail(problem)
            return []

    def add(self, entry: str) -> None:
        """Append an entry, unless it is the last one already."""
        if self._has_failed or len(entry) > MOST_CHARACTERS:
            return
        try:
            path = history_path()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            entries = self._entries(path)
            if entries[-1:] != [entry]:
                _replace(path, [*entries, entry][-MOST_ENTRIES:])
        except (OSError, RuntimeError) as problem:
            self._fail(problem)

    @staticmethod
    def _entries(path: Path) -> list[str]:
        # A pipe would wait for a writer, and a link to /dev/null would be replaced by a file.
        if path.exists() and not path.is_file():
            raise OSError(f"{path} is not a file")
        try:
            lines = path.read_text("utf-8", "replace").split("\n")
        except FileNotFoundError:
            return []
        return [_unescaped(line) for line in lines if line][-MOST_ENTRIES:]

    def _fail(self, problem: Exception) -> None:
        self._has_failed = True
        self.warning = f"the history of the prompt is not kept: {problem}"


def _replace(path: Path, entries: list[str]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{_escaped(entry)}\n" for entry in entries)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _escaped(entry: str) -> str:
    return entry.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _unescaped(line: str) -> str:
    return _ESCAPED.sub(lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), line)
