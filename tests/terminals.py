"""Terminals for programs that tests run."""

import pty

import pytest


def open_terminal() -> tuple[int, int]:
    """Our end of a new terminal, and the end of the program. The test is skipped if there is none.

    A container or a chroot may have no /dev/pts.
    """
    try:
        return pty.openpty()
    except OSError as problem:
        pytest.skip(f"this system gives no terminal: {problem}")
