"""The seam between the broker and what lasts.

Whatever must survive a crash goes into one `Commit` for each tick of the loop, and the packets that
depend on it wait in the same Commit until the store says that it is safe. The store here keeps
nothing and is always safe at once: sessions live as long as the process.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.broker.subscriptions import Entry
from semel.mqtt.codec import Packet
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.mqtt.session import Change


@final
class Commit:
    """All that one tick wants to last, in the order in which it happened."""

    # client identifier, change of its session
    changes: Final[list[tuple[str, Change]]]
    # client identifier, how long the session outlives its connection; None: the session is gone
    sessions: Final[list[tuple[str, int | None]]]
    # client identifier, subscription; client identifier, filter given up
    subscribed: Final[list[Entry]]
    unsubscribed: Final[list[tuple[str, str]]]
    # client identifier, will; None: published or given up
    wills: Final[list[tuple[str, Will | None]]]
    # topic name, message; None: deleted
    retained: Final[list[tuple[str, Message | None]]]
    # connection number, packets that leave when all of the above is safe
    packets: Final[list[tuple[int, list[Packet]]]]

    def __init__(self) -> None:
        self.changes = []
        self.sessions = []
        self.subscribed = []
        self.unsubscribed = []
        self.wills = []
        self.retained = []
        self.packets = []


@mypyc_attr(allow_interpreted_subclasses=True)
class Store:
    """Keeps nothing. `write` returns whether the commit is safe already."""

    def write(self, commit: Commit) -> bool:
        """Take a commit. True: it is safe now. False: the owner is told later that it is."""
        return True
