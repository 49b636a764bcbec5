"""Which user names and group names are accepted, whoever states them.

Both appear in log lines and in rules, so they have no control characters. A user name from a
certificate, a token or a hook follows the same rule as one in the password file, except that only
the file needs to separate names by colons.
"""

import unicodedata
from typing import Final

MAXIMUM_NAME_LENGTH: Final = 1_024
MAXIMUM_GROUPS: Final = 256


def name_problem(name: str) -> str | None:
    """What is wrong with a user name or group name, to follow it in a sentence; None: nothing."""
    if not name:
        return "is empty"
    if len(name) > MAXIMUM_NAME_LENGTH:
        return f"has more than {MAXIMUM_NAME_LENGTH:,} characters"
    if name.isascii() and name.isprintable():
        return None
    for character in name:
        # Control characters, lone surrogates, and what changes the direction of a line.
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            return f"contains the character U+{ord(character):04X}"
    return None


def file_name_problem(name: str) -> str | None:
    """The same for a user name in the password file."""
    if name.startswith(("#", "$")):
        return f"begins with {name[0]}"
    if name != name.strip():
        return "begins or ends with a space"
    if ":" in name:
        return "contains a colon"
    return name_problem(name)


def group_problem(name: str) -> str | None:
    """The same for a group name in the password file."""
    if "," in name or ":" in name:
        return "contains a comma or a colon"
    if name != name.strip():
        return "begins or ends with a space"
    return name_problem(name)
