"""Makes Rights of a file: a rights file, or an ACL file of Mosquitto."""

from pathlib import Path

from semel.broker.access.mosquitto_acl import parse_mosquitto_acl
from semel.broker.access.rights import Rights
from semel.broker.access.rights_file import parse_rights, read_text
from semel.broker.access.rights_settings import CACHED_DECISIONS, RightsSettings


def load_rights(settings: RightsSettings) -> Rights | None:
    """The rights that the settings name; None if there are none. Raises RightsError.

    Without rights, clients that are connected may do everything.
    """
    limit = settings.cached_decisions
    if settings.file is not None:
        return read_rights(settings.file, cached_decisions=limit)
    if settings.mosquitto_acl_file is not None:
        return read_mosquitto_acl(settings.mosquitto_acl_file, cached_decisions=limit)
    return None


def read_rights(path: Path, *, cached_decisions: int = CACHED_DECISIONS) -> Rights:
    """The rights in a rights file. Raises RightsError."""
    text, warnings = read_text(path)
    rules = parse_rights(text, name=str(path))
    return Rights(rules, source=str(path), cached_decisions=cached_decisions, warnings=warnings)


def read_mosquitto_acl(path: Path, *, cached_decisions: int = CACHED_DECISIONS) -> Rights:
    """The rights in an ACL file of Mosquitto. Raises RightsError."""
    text, warnings = read_text(path)
    rules = parse_mosquitto_acl(text, name=str(path))
    return Rights(rules, source=str(path), cached_decisions=cached_decisions, warnings=warnings)
