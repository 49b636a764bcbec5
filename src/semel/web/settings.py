"""The [web] section: where the page is served, and to whom."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from semel.settings import SettingsError, check, setting
from semel.settings_values import SECONDS

ANY_USER: Final = "*"
# Roles.
ADMIN: Final = "admin"
VIEWER: Final = "viewer"


@dataclass(frozen=True)
class WebSettings:
    """The page of `semel up`, `semel broker --web` and `semel web`."""

    section: ClassVar[str] = "web"

    enabled: bool = setting(True, "Whether `semel up` serves the page.")
    host: str = setting(
        "127.0.0.1",
        "The address of the page. On an address that other machines can reach, it needs certfile, "
        "and users log in.",
    )
    port: int = setting(8080, "The port of the page. 0: any free one.", minimum=0, maximum=65_535)
    certfile: Path | None = setting(  # noqa: RUF009
        None, "The certificate chain of the page, as PEM. Without it the page is plain HTTP."
    )
    keyfile: Path | None = setting(None, "The private key of certfile, as PEM.")  # noqa: RUF009
    login: bool = setting(
        False,
        "Whether users log in on a loopback address, too. Without it, everyone who can open "
        "connections on this machine is an admin.",
    )
    admins: tuple[str, ...] = setting(
        (), "Users of the broker who may log in, and act: disconnect clients, for example."
    )
    viewers: tuple[str, ...] = setting(
        (), f"Users of the broker who may log in, and see everything. {ANY_USER}: every user."
    )
    hostnames: tuple[str, ...] = setting(
        (),
        "Names under which browsers reach the page, besides its address and localhost. A request "
        "with another one in its Host header is refused, so that no other site can use the page.",
    )
    broker: str | None = setting(
        None,
        "Where the page logs users in and publishes for them, such as mqtts://localhost:8883. By "
        "default the first listener of the broker for plain MQTT over TCP.",
    )
    query_seconds: float = setting(
        30.0,
        "How long an SQL query of the page may run.",
        minimum=1,
        maximum=3600,
        unit=SECONDS,
    )
    query_memory: str = setting("512MB", "Memory for an SQL query of the page.")

    def __post_init__(self) -> None:
        check(self)
        problems = []
        if (self.certfile is None) != (self.keyfile is None):
            problems.append("[web] certfile and keyfile belong together: give both or none")
        if not self.is_loopback:
            if self.certfile is None:
                problems.append(
                    f"[web] host {self.host} can be reached from other machines: set certfile and "
                    "keyfile, so that passwords are not sent in plain text"
                )
            if not self.admins and not self.viewers:
                problems.append(
                    f"[web] host {self.host} can be reached from other machines: set admins or "
                    "viewers, the users who may log in"
                )
        elif self.login and not self.admins and not self.viewers:
            problems.append("[web] login is true: set admins or viewers, the users who may log in")
        if problems:
            raise SettingsError(problems)

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine reach the page."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def needs_login(self) -> bool:
        """Whether users log in."""
        return self.login or not self.is_loopback

    def role_of(self, user: str) -> str | None:
        """The role of a user of the broker; None: the user may not see the page."""
        if user in self.admins:
            return ADMIN
        if user in self.viewers or ANY_USER in self.viewers:
            return VIEWER
        return None
