"""One rule of the rights: who may, or may not, do what on which topics."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from semel.broker.access.topic_template import Template
from semel.counts import count

# Actions, as bits of RightsRule.actions.
PUBLISH: Final = 1
SUBSCRIBE: Final = 2
RECEIVE: Final = 4
ACTIONS: Final = (PUBLISH, SUBSCRIBE, RECEIVE)
# The name of an action is what `explain` and `semel acl test` accept.
ACTION_NAMES: Final = {"publish": PUBLISH, "subscribe": SUBSCRIBE, "receive": RECEIVE}

# The values of Who.kind.
EVERYONE: Final = "*"
NO_USER: Final = "anonymous"
USER: Final = "user"
GROUP: Final = "group"
CERTIFIED: Final = "cert"
CLIENT: Final = "client"
CLAIMING: Final = "claim"
# Clients without + and # in their user name and client identifier. No rights file can say this:
# it is how Mosquitto restricts patterns.
PLAIN_NAMED: Final = "plain"

MAXIMUM_QOS: Final = 2
# How many mistakes a message lists, and after how many a file is not checked further.
_LISTED_PROBLEMS: Final = 20
MAXIMUM_PROBLEMS: Final = 1_000


class RightsError(Exception):
    """A file of rights that cannot be used. `problems` has one sentence for each mistake."""

    problems: Final[tuple[str, ...]]

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        lines = list(self.problems)
        if len(lines) > 1:
            shown = [f"  {line}" for line in lines[:_LISTED_PROBLEMS]]
            lines = [f"{count(len(lines), 'mistake')} in the rights:", *shown]
        if len(self.problems) > _LISTED_PROBLEMS:
            lines.append(f"  and {len(self.problems) - _LISTED_PROBLEMS:,} more")
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Who:
    """The clients to which a rule applies. `value` of CLAIMING is NAME=VALUE."""

    kind: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class RightsRule:
    """One rule. Of all rules that match, the one with the lowest `order` decides."""

    order: int
    # Where it is in its file, and how it is written there.
    line: int
    text: str
    is_allow: bool
    who: Who
    actions: int
    # () stands for all topics, including those that begin with $.
    topic: Template
    # Only an allow rule has limits.
    max_qos: int = MAXIMUM_QOS
    allows_retain: bool = True
