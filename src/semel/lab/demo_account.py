"""The account of a demo: what a fleet published, what the record has, what the table has.

Every message has two names, and both are looked at. Device and counter are in its payload, and so
tell what a row *is*; node and seq tell *where* it is in the record, and have to be the same in the
table. And since a message is a function of the fleet's seed, its topic and its bytes are compared.

    lost       messages that are complete at their publisher, and in no row of the table
    duplicated    rows of the table beyond the first of the same device and counter

Without a landing the record is the end, and the same is asked of its rows. The totals agree if
nothing is lost or duplicated, and nothing else is wrong: a message that is not complete at its
publisher, for then there is nothing to be lost; a row that nobody sent, or with other bytes, or of
which record and table do not say the same. Three bytes are in memory for each message
of the fleet, and nine for each row of the record; MOST_MESSAGES bounds them.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from semel.lab.fleet.devices import Devices, read_name
from semel.lab.fleet.journal import BEGIN, DONE, REFUSED, JournalLine

MOST_MESSAGES: Final = 10_000_000
# So many faults are put into words; the others are counted.
SHOWN_FAULTS: Final = 10
# A count of one byte goes no further.
MOST_TIMES: Final = 255
# The row is no message of this fleet.
FOREIGN: Final = -1

# What is known of a message at its publisher.
NOT_BEGUN: Final = 0
BEGUN: Final = 1
COMPLETE: Final = 2


@dataclass(frozen=True)
class Verdict:
    """The account in numbers, and the first faults in words."""

    published: int
    redelivered: int
    recorded: int
    # None: nothing was to be landed
    landed: int | None
    lost: int
    duplicated: int
    faults: tuple[str, ...]
    # Faults that are not among these.
    more_faults: int

    @property
    def holds(self) -> bool:
        return not (self.lost or self.duplicated or self.faults or self.more_faults)

    def __str__(self) -> str:
        landed = "" if self.landed is None else f"landed {self.landed:,} · "
        return (
            f"published {self.published:,} · redelivered by faults {self.redelivered:,} · "
            f"recorded {self.recorded:,} · {landed}lost {self.lost:,} · "
            f"duplicated {self.duplicated:,}"
        )


class NodeRows:
    """Which message is at each seq of a node, and how often the table has that seq."""

    def __init__(self) -> None:
        self.first = 0
        self.messages = array("q")
        self.landed = bytearray()


class Reconciliation:
    """Takes in journal, record and table, in this order, and judges."""

    def __init__(self, devices: Devices, count: int, *, lands: bool = True) -> None:
        """`count` messages were to be published, and landed; without `lands`, recorded."""
        assert count <= MOST_MESSAGES
        self._lands = lands
        self._devices = devices
        self._count = count
        self._published = bytearray(count)
        self._recorded = bytearray(count)
        self._landed = bytearray(count)
        self._nodes: dict[str, NodeRows] = {}
        self._recorded_rows = 0
        self._landed_rows = 0
        self._faults: list[str] = []
        self._more = 0

    def blame(self, sentence: str) -> None:
        """Something is wrong."""
        if len(self._faults) < SHOWN_FAULTS:
            self._faults.append(sentence)
        else:
            self._more += 1

    # --- taking in --------------------------------------------------------------------------------

    def take_journal(self, lines: Iterable[JournalLine]) -> None:
        """What the publishers know."""
        for word, device, counter in lines:
            index = self._devices.index_of(device, counter)
            if index >= self._count:
                self.blame(f"{self._label(index)} was published, and nobody asked for it")
            elif word == BEGIN:
                self._published[index] = max(self._published[index], BEGUN)
            elif word == DONE:
                self._published[index] = COMPLETE
            elif word == REFUSED:
                self.blame(f"{self._label(index)} was refused by the broker")

    def take_record(self, node: str, first: int, rows: Iterable[tuple[int, str, bytes]]) -> None:
        """The record of a node: seq, topic and payload, dense from `first` on."""
        found = self._nodes[node] = NodeRows()
        found.first = first
        for seq, topic, payload in rows:
            if seq != first + len(found.messages):
                self.blame(f"the record of node {node} goes on with row {seq} after a gap")
                found.messages.extend([FOREIGN] * (seq - first - len(found.messages)))
            index = self._identified(topic, payload, f"record, node {node}, row {seq}")
            found.messages.append(index)
            self._recorded_rows += 1
            if index != FOREIGN:
                self._recorded[index] = min(self._recorded[index] + 1, MOST_TIMES)
        found.landed = bytearray(len(found.messages))

    def take_landed(self, rows: Iterable[tuple[str, int, str, bytes]]) -> None:
        """The rows of the table, in any order: node, seq, topic and payload."""
        for node, seq, topic, payload in rows:
            self._landed_rows += 1
            where = f"node {node}, row {seq}"
            index = self._identified(topic, payload, f"table, {where}")
            if index != FOREIGN:
                self._landed[index] = min(self._landed[index] + 1, MOST_TIMES)
            of_node = self._nodes.get(node)
            place = -1 if of_node is None else seq - of_node.first
            if of_node is None or not 0 <= place < len(of_node.messages):
                self.blame(f"the table has {where}, which the record has not")
                continue
            if of_node.messages[place] != index:
                self.blame(f"{where} is another message in the table than in the record")
            if of_node.landed[place]:
                self.blame(f"the table has {where} more than once")
            of_node.landed[place] = 1

    def _identified(self, topic: str, payload: bytes, where: str) -> int:
        """Which message a row is, byte for byte; FOREIGN is blamed for it."""
        try:
            index = self._devices.index_of(*read_name(payload))
        except ValueError as problem:
            self.blame(f"{where}: this is no message of the fleet ({problem})")
            return FOREIGN
        if index >= self._count or self._published[index] == NOT_BEGUN:
            self.blame(f"{where}: {self._label(index)} was never published")
            return FOREIGN
        if self._devices.message(index) != (topic, payload):
            self.blame(f"{where}: {self._label(index)} has not the topic and bytes it had")
        return index

    def _label(self, index: int) -> str:
        device, counter = self._devices.name_of(index)
        return f"message {counter} of {self._devices.all[device].name}"

    # --- reconciling ------------------------------------------------------------------------------

    def reconcile(self, redelivered: int, *, unknown: int = 0) -> Verdict:
        """The verdict. `redelivered` was counted on the wire.

        A fleet that was killed does not know of up to `unknown` messages that it has begun.
        """
        published = self._published.count(COMPLETE)
        not_begun = self._published.count(NOT_BEGUN)
        if not_begun:
            self.blame(f"{not_begun:,} of {self._count:,} messages were not published")
        if self._count - not_begun - published > unknown:
            begun = self._count - not_begun - published
            self.blame(f"{begun:,} of {self._count:,} messages are not complete at their publisher")
        lost = duplicated = 0
        at_the_end = self._landed if self._lands else self._recorded
        for index in range(self._count):
            is_complete = self._published[index] == COMPLETE
            times = at_the_end[index]
            duplicated += max(0, times - 1)
            lost += is_complete and not times
            fault = self._fault(index, is_complete=is_complete)
            if fault is not None:
                self.blame(f"{self._label(index)} {fault}")
        return Verdict(
            published=published,
            redelivered=redelivered,
            recorded=self._recorded_rows,
            landed=self._landed_rows if self._lands else None,
            lost=lost,
            duplicated=duplicated,
            faults=tuple(self._faults),
            more_faults=self._more,
        )

    def _fault(self, index: int, *, is_complete: bool) -> str | None:
        """What is wrong with a message."""
        recorded, landed = self._recorded[index], self._landed[index]
        if is_complete and not recorded and not landed:
            return "is complete at its publisher, and not recorded"
        if recorded > 1:
            return f"is {recorded} times in the record"
        if landed > 1:
            return f"is {landed} times in the table"
        if self._lands and recorded and not landed:
            return "is recorded, and not landed"
        return None
