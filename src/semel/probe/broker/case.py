"""A case: what it requires of the subject, which statements it examines, and how."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from semel.probe.broker.trial import Trial

# What a case needs beside an address.
RESTART: Final = "restart"
KILL: Final = "kill"
# A WebSocket address.
WEBSOCKET: Final = "websocket"


@dataclass(frozen=True)
class Case:
    """A case of the broker's examination. `mqtt311` and `mqtt5` are numbers as in rules.py.

    A case without numbers for a version is not run in that version.
    """

    # Unique, in lowercase with hyphens.
    name: str
    # SEND or RECEIVE: what the broker sends, or how it reacts to what it receives.
    path: str
    # What the broker must do, as a sentence.
    title: str
    run: Callable[[Trial], Awaitable[None]]
    mqtt311: str = ""
    mqtt5: str = ""
    # Whether it waits for seconds to pass: such cases begin first, and --quick leaves them out.
    is_slow: bool = False
    # RESTART, KILL, WEBSOCKET or nothing.
    needs: str = ""
    # Whether it is one of the many that the conformance vectors give.
    is_from_vector: bool = False
    # Cases of one lane are run one after another, because they use the same names.
    lane: str = ""

    def statements(self, version: int) -> tuple[str, ...]:
        """The statements that it examines in a version (4 or 5)."""
        numbers = (self.mqtt311 if version == 4 else self.mqtt5).split()
        return tuple(number if number[0] == "U" else f"MQTT-{number}" for number in numbers)
