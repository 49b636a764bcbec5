"""Serves the page until it is told to stop."""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import uvicorn

from semel.web.app import PageServer

# How long open pages may take to close.
CLOSE_SECONDS: Final = 3
POLL_SECONDS: Final = 0.01
# Requests and pages at a time; a further one is refused with 503.
CONNECTIONS: Final = 500
WEBSOCKET_BYTES: Final = 2 * 1024 * 1024


class CannotServePage(Exception):
    """Why the page cannot be served, in one sentence."""


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket. Raises CannotServePage."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(128)
    except OSError as problem:
        opened.close()
        reason = problem.strerror or str(problem)
        raise CannotServePage(
            f"the page cannot be served at {host}, port {port}: {reason}; set [web] port, or "
            "leave the page out"
        ) from None
    return opened


def page_url(server: PageServer, opened: socket.socket) -> str:
    """The address of the page for people."""
    settings = server.settings
    host = settings.host
    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if settings.certfile is None else "https"
    return f"{scheme}://{shown}:{opened.getsockname()[1]}/"


class RunningPage:
    """A page that is being served."""

    def __init__(self, server: PageServer, opened: socket.socket) -> None:
        """Raises CannotServePage."""
        settings = server.settings
        try:
            config = uvicorn.Config(
                server.app(),
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                ws="websockets-sansio",
                ws_max_size=WEBSOCKET_BYTES,
                # Compressing the same text for each page would cost more than all the rest.
                ws_per_message_deflate=False,
                lifespan="on",
                ssl_certfile=None if settings.certfile is None else str(settings.certfile),
                ssl_keyfile=None if settings.keyfile is None else str(settings.keyfile),
                timeout_graceful_shutdown=CLOSE_SECONDS,
                limit_concurrency=CONNECTIONS,
            )
            config.load()
        except OSError as problem:
            raise CannotServePage(f"[web] certfile and keyfile cannot be used: {problem}") from None
        self._server = uvicorn.Server(config)
        # The caller handles signals.
        self._server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
        self._opened = opened
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when the page can be opened."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._opened]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Ask it to end."""
        self._server.should_exit = True

    async def wait(self) -> None:
        """Wait until it has ended."""
        assert self._task is not None
        await self._task


async def serve(server: PageServer, opened: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called when the page can be opened.

    Raises CannotServePage.
    """
    page = RunningPage(server, opened)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, page.stop)
    await page.start()
    ready()
    await page.wait()
