"""Signals that do not end a broker: SIGHUP reloads, SIGUSR1 and SIGUSR2 are only logged.

They are blocked in every thread, and one thread waits for them. A handler would not do: between two
handlers, and after Python has removed the last one at exit, a signal has its default action, which
kills the process while it stops.
"""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from typing import Final

LOG: Final = logging.getLogger("semel.broker")

SIGNALS: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

# What to call for a signal. It is logged if there is nothing to call.
_called: Final[dict[int, Callable[[], None]]] = {}


def watch_signals() -> None:
    """Block the signals until the process has ended, and wait for them in a thread.

    Call it before the first thread is started: threads inherit what is blocked.
    """
    # A signal that is already ignored, for example by nohup, stays ignored without a log line.
    watched = [each for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    if watched:
        threading.Thread(target=_watch, args=(watched,), name="semel-signals", daemon=True).start()


def call_on_signal(number: signal.Signals, called: Callable[[], None]) -> None:
    """Call a function on the running loop for each such signal that is watched."""
    loop = asyncio.get_running_loop()

    def call() -> None:
        # A loop that has ended raises RuntimeError: there is nothing left to reload.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(called)

    _called[number] = call


def _watch(watched: list[signal.Signals]) -> None:
    while True:
        number = signal.sigwait(watched)
        call = _called.get(number)
        if call is not None:
            call()
        else:
            LOG.warning("%s ignored: there is nothing to reload", signal.Signals(number).name)
