"""What operators need of a broker: bans, the audit log and the control socket, as one part.

It is made before the broker, so that a file that cannot be used is reported at the start.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from semel.broker.network.audit_log import AuditFileUnusable, AuditLog
from semel.broker.network.ban_file import BAN_FILE, BanFileUnusable, read_bans
from semel.broker.network.control import ControlServer
from semel.broker.network.control_commands import (
    LIMITS,
    CommandLimits,
    ControlCommands,
    ControlledServer,
    Values,
)
from semel.broker.network.control_protocol import BadRequest
from semel.broker.network.control_settings import AuditSettings, ControlSettings
from semel.broker.network.unix_socket import SocketFileUnusable
from semel.broker.oversight import Oversight
from semel.metrics.families import MetricFamily

LOG: Final = logging.getLogger("semel.broker")


class AdministrationUnusable(Exception):
    """Which file or socket cannot be used, and why, in one sentence."""


class ReloadFailed(Exception):
    """Why a reload has changed nothing, in one sentence."""


class Administration:
    """Bans, audit log and control socket of one broker."""

    # Reloads the settings, and returns what was done; it raises ReloadFailed.
    reload_settings: Callable[[], Awaitable[list[str]]] | None

    def __init__(
        self,
        control: ControlSettings,
        audit: AuditSettings,
        data: Path | None,
        *,
        limits: CommandLimits = LIMITS,
    ) -> None:
        """`data` is the data folder of the store; None: there is none, and bans end with the
        process. Raises AdministrationUnusable."""
        self.oversight = Oversight()
        self.reload_settings = None
        self._socket_path = control.socket_path(data)
        self._is_default_path = control.path is None
        self._limits = limits
        self._ban_file = None if data is None else data / BAN_FILE
        self._audit_log: AuditLog | None = None
        self._control: ControlServer | None = None
        try:
            if self._ban_file is not None:
                read_bans(self._ban_file, self.oversight.bans, time.time())
            if audit.file is not None:
                self._audit_log = AuditLog(
                    audit.file, LOG.warning, lines_per_minute=audit.lines_per_minute
                )
                self.oversight.audit.write = self._audit_log.write
        except (BanFileUnusable, AuditFileUnusable) as problem:
            raise AdministrationUnusable(str(problem)) from None

    async def start(
        self,
        server: ControlledServer,
        describe: Callable[[], Values] = dict,
        families: Callable[[], list[MetricFamily]] = list,
    ) -> None:
        """Open the control socket, if there is one. Raises AdministrationUnusable.

        `describe` returns more values for `semel ctl status`, and `families` the metrics.
        """
        if self._socket_path is None:
            return
        commands = ControlCommands(
            server,
            reload=self._reload,
            ban_file=self._ban_file,
            describe=describe,
            families=families,
            limits=self._limits,
        )
        control = ControlServer(self._socket_path, commands)
        try:
            await control.start()
        except (OSError, SocketFileUnusable) as problem:
            line = (
                f"the control socket {self._socket_path} cannot be used: {problem}. Set [control] "
                "path to another one, or [control] enabled to false"
            )
            if not self._is_default_path:
                raise AdministrationUnusable(line) from None
            # The file system of the data folder may have no sockets, and the broker needs none.
            LOG.warning("%s", line)
            return
        self._control = control

    async def stop(self) -> None:
        """Close the control socket. Call `close` when nothing more happens."""
        if self._control is not None:
            await self._control.stop()

    def close(self) -> None:
        """Close the audit log."""
        if self._audit_log is not None:
            self._audit_log.close()

    def reopen_audit_log(self) -> list[str]:
        """Open the audit log again, if there is one, and log that. Returns what was done."""
        if self._audit_log is None:
            return []
        try:
            self._audit_log.reopen()
        except AuditFileUnusable as problem:
            line = f"{problem}: the old file stays open"
            LOG.warning("%s", line)
        else:
            line = f"audit log {self._audit_log.path} opened again"
            LOG.info("%s", line)
        return [line]

    async def _reload(self) -> list[str]:
        """Open the audit log again, and reload the settings. Raises BadRequest."""
        done = self.reopen_audit_log()
        if self.reload_settings is not None:
            try:
                done += await self.reload_settings()
            except ReloadFailed as problem:
                raise BadRequest(str(problem)) from None
        return done
