"""The [rights] section: where the rules are that say what clients may do."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from semel.settings import SettingsError, check, setting

CACHED_DECISIONS: Final = 50_000


@dataclass(frozen=True)
class RightsSettings:
    """Rights: what clients may publish, subscribe to and receive."""

    section: ClassVar[str] = "rights"

    file: Path | None = setting(  # noqa: RUF009
        None,
        "The file with the rules, of at most 16 MiB. With it, whatever no rule allows is denied; "
        "without it, clients that are connected may do everything. If every user of the machine "
        "can write the file, the log has a warning at start and at a reload.",
    )
    mosquitto_acl_file: Path | None = setting(  # noqa: RUF009
        None,
        "An ACL file of Mosquitto, instead of file.",
    )
    cached_decisions: int = setting(
        CACHED_DECISIONS,
        "Decisions about topics that are kept in memory, and clients whose rules are. At the "
        "limit, those that were not used for a while are forgotten, and made again when needed.",
        minimum=100,
        maximum=10_000_000,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.file is not None and self.mosquitto_acl_file is not None:
            raise SettingsError(["[rights] has both file and mosquitto_acl_file: give one of them"])
