"""Reconciles what a fleet published with the rows of the record and of the table.

Every message is identified in two ways, and both are checked. Its payload has device and counter,
which say which message a row *is*; node and seq say *where* it is in the record, and must be the
same in the table. Because a message is a function of the fleet's seed, topic and payload are
compared too.

    lost        messages that are complete at their publisher, but in no row of the table
    duplicated  rows of the table beyond the first with the same device and counter

Without a landing, the rows of the record are checked instead of those of the table. The verdict
holds if nothing is lost or duplicated and there is no other fault, such as a message that is not
complete at its publisher, a row that was never published or whose bytes differ, or a row that
differs between record and table.

Memory: three bytes per message of the fleet and nine per row of the record. MOST_MESSAGES limits
both.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from semel.lab.fleet.devices import Devices, read_name
from semel.lab.fleet.journal import BEGIN, DONE, REFUSED, JournalLine

MOST_MESSAGES: Final = 10_000_000
# The maximum number of faults that are described; further ones are counted.
SHOWN_FAULTS: Final = 10
# The largest count in one byte.
MOST_TIMES: Final = 255
# Marks a row that is not a message of this fleet.
FOREIGN: Final = -1

# The state of a message at its publisher.
NOT_BEGUN: Final = 0
BEGUN: Final = 1
COMPLETE: Final = 2


@dataclass(frozen=True)
class Verdict:
    """The totals, and the first faults as sentences."""

    published: int
    redelivered: int
    recorded: int
    # None: there was no landing.
    landed: int | None
    lost: int
    duplicated: int
    faults: tuple[str, ...]
    # Faults that are not listed.
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
    """For each seq of a node: its message, and whether the table has it."""

    def __init__(self) -> None:
        self.first = 0
        self.messages = array("q")
        self.landed = bytearray()


class Reconciliation:
    """Takes the journal, the record and the table, in this order, and reaches a verdict."""

    def __init__(self, devices: Devices, count: int, *, lands: bool = True) -> None:
        """`count` is the number of messages to publish; `lands`: the table is checked."""
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

    def add_fault(self, sentence: str) -> None:
        """Add a fault to the verdict."""
        if len(self._faults) < SHOWN_FAULTS:
            self._faults.append(sentence)
        else:
            self._more += 1

    # --- input ------------------------------------------------------------------------------------

    def add_journal(self, lines: Iterable[JournalLine]) -> None:
        """Add what the publishers know."""
        for word, device, counter in lines:
            index = self._devices.index_of(device, counter)
            if index >= self._count:
                self.add_fault(f"{self._label(index)} was published, but not requested")
            elif word == BEGIN:
                self._published[index] = max(self._published[index], BEGUN)
            elif word == DONE:
                self._published[index] = COMPLETE
            elif word == REFUSED:
                self.add_fault(f"{self._label(index)} was refused by the broker")

    def add_record(self, node: str, first: int, rows: Iterable[tuple[int, str, bytes]]) -> None:
        """Add the record of a node: seq, topic and payload, without gaps from `first` on."""
        found = self._nodes[node] = NodeRows()
        found.first = first
        for seq, topic, payload in rows:
            if seq != first + len(found.messages):
                self.add_fault(f"the record of node {node} has a gap before row {seq}")
                found.messages.extend([FOREIGN] * (seq - first - len(found.messages)))
            index = self._identify(topic, payload, f"record, node {node}, row {seq}")
            found.messages.append(index)
            self._recorded_rows += 1
            if index != FOREIGN:
                self._recorded[index] = min(self._recorded[index] + 1, MOST_TIMES)
        found.landed = bytearray(len(found.messages))

    def add_landed(self, rows: Iterable[tuple[str, int, str, bytes]]) -> None:
        """Add rows of the table, in any order: node, seq, topic and payload."""
        for node, seq, topic, payload in rows:
            self._landed_rows += 1
            where = f"node {node}, row {seq}"
            index = self._identify(topic, payload, f"table, {where}")
            if index != FOREIGN:
                self._landed[index] = min(self._landed[index] + 1, MOST_TIMES)
            node_rows = self._nodes.get(node)
            offset = -1 if node_rows is None else seq - node_rows.first
            if node_rows is None or not 0 <= offset < len(node_rows.messages):
                self.add_fault(f"the table has {where}, which is not in the record")
                continue
            if node_rows.messages[offset] != index:
                self.add_fault(f"{where} is a different message in the table than in the record")
            if node_rows.landed[offset]:
                self.add_fault(f"the table has {where} more than once")
            node_rows.landed[offset] = 1

    def _identify(self, topic: str, payload: bytes, where: str) -> int:
        """The index of the message in a row, or FOREIGN. Adds a fault if the row is wrong."""
        try:
            index = self._devices.index_of(*read_name(payload))
        except ValueError as problem:
            self.add_fault(f"{where}: not a message of the fleet ({problem})")
            return FOREIGN
        if index >= self._count or self._published[index] == NOT_BEGUN:
            self.add_fault(f"{where}: {self._label(index)} was never published")
            return FOREIGN
        if self._devices.message(index) != (topic, payload):
            self.add_fault(f"{where}: {self._label(index)} differs from what was published")
        return index

    def _label(self, index: int) -> str:
        device, counter = self._devices.name_of(index)
        return f"message {counter} of {self._devices.all[device].name}"

    # --- verdict ----------------------------------------------------------------------------------

    def reconcile(self, redelivered: int, *, unknown: int = 0) -> Verdict:
        """The verdict. `redelivered` was counted on the wire.

        If the fleet was killed, up to `unknown` messages may be begun but not complete.
        """
        published = self._published.count(COMPLETE)
        not_begun = self._published.count(NOT_BEGUN)
        if not_begun:
            self.add_fault(f"{not_begun:,} of {self._count:,} messages were not published")
        if self._count - not_begun - published > unknown:
            begun = self._count - not_begun - published
            self.add_fault(
                f"{begun:,} of {self._count:,} messages are not complete at their publisher"
            )
        lost = duplicated = 0
        at_the_end = self._landed if self._lands else self._recorded
        for index in range(self._count):
            is_complete = self._published[index] == COMPLETE
            copies = at_the_end[index]
            duplicated += max(0, copies - 1)
            lost += is_complete and not copies
            fault = self._fault(index, is_complete=is_complete)
            if fault is not None:
                self.add_fault(f"{self._label(index)} {fault}")
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
        """The fault of a message, if it has one."""
        recorded, landed = self._recorded[index], self._landed[index]
        if is_complete and not recorded and not landed:
            return "is complete at its publisher, but not recorded"
        if recorded > 1:
            return f"is in the record {recorded} times"
        if landed > 1:
            return f"is in the table {landed} times"
        if self._lands and recorded and not landed:
            return "is recorded, but not landed"
        return None
