"""How a command ends that Ctrl-C interrupts, or whose reader closes the pipe: without a word."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# As a shell reports a program that SIGINT ended.
INTERRUPTED: Final = 130


@contextmanager
def ending_quietly(code: int = INTERRUPTED) -> Iterator[None]:
    """Exit silently: with this code on Ctrl-C, and with 0 if the reader closes the pipe."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(code)
    except BrokenPipeError:
        # Discard what Python would still flush at exit.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.close(devnull)
        sys.exit(0)
