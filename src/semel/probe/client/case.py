"""A case of a client's examination: what it requires, what it must see, and how it is run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from semel.probe.client.trial import ClientTrial


@dataclass(frozen=True)
class ClientCase:
    """A case of the client's examination. `mqtt311` and `mqtt5` are numbers as in rules.py.

    A case without numbers for a version is not run in that version.
    """

    # Unique, in lowercase with hyphens.
    name: str
    # SEND or RECEIVE: what the client sends, or how it reacts to what it receives.
    path: str
    # What the client must do, as a sentence.
    title: str
    run: Callable[[ClientTrial], Awaitable[None]]
    mqtt311: str = ""
    mqtt5: str = ""
    # Of needs.py.
    needs: tuple[str, ...] = ()
    # Whether it waits for seconds to pass: such cases begin first, and --quick leaves them out.
    is_slow: bool = False
    # Whether --quick runs it.
    is_quick: bool = True

    def statements(self, version: int) -> tuple[str, ...]:
        """The statements that it examines in a version (4 or 5)."""
        numbers = (self.mqtt311 if version == 4 else self.mqtt5).split()
        return tuple(number if number[0] == "U" else f"MQTT-{number}" for number in numbers)
