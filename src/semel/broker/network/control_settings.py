"""The [control] and [audit] sections: the socket of `semel ctl`, and the audit log."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from semel.settings import check, setting

# The socket in the data folder, unless [control] path says otherwise.
SOCKET_NAME: Final = "control.sock"


@dataclass(frozen=True)
class ControlSettings:
    """The control socket, through which `semel ctl` manages a running broker."""

    section: ClassVar[str] = "control"

    enabled: bool = setting(
        True,
        "Whether the broker has a control socket. false: `semel ctl` cannot reach it.",
    )
    path: Path | None = setting(  # noqa: RUF009
        None,
        "The Unix socket of `semel ctl`. Only the user who runs the broker, and root, may use it. "
        f"The default is {SOCKET_NAME} in the data folder of the store; a broker without a store "
        "has no control socket unless this is set.",
    )

    def __post_init__(self) -> None:
        check(self)

    def socket_path(self, data: Path | None) -> Path | None:
        """Where the socket is, given the data folder of the store, if any; None: there is none."""
        if not self.enabled:
            return None
        if self.path is not None:
            return self.path
        return None if data is None else data / SOCKET_NAME


@dataclass(frozen=True)
class AuditSettings:
    """The audit log: who connected, who was refused, and what operators did."""

    section: ClassVar[str] = "audit"

    file: Path | None = setting(  # noqa: RUF009
        None,
        "The file of the audit log, created if it is missing: one JSON object per line, readable "
        "by its owner only. SIGHUP and `semel ctl reload` open it again, for logrotate. If it "
        "cannot be written, for example because the disk is full, the broker continues, and "
        "counts and reports the lost lines. Without it there is no audit log.",
    )
    lines_per_minute: int = setting(
        100,
        "Lines per minute that clients of one address, and there of one user, can cause: of each "
        "of the events connected, refused and disconnected. Further ones are counted, and reported "
        "in one line when the minute is over. What operators do is always written. 0: no limit.",
        minimum=0,
        maximum=1_000_000,
    )

    def __post_init__(self) -> None:
        check(self)
