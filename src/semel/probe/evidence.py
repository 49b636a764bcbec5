"""What was sent and seen in one case, with times: the evidence of a verdict."""

from dataclasses import dataclass
from typing import Final

# The kinds of events on a connection. SENT is by the examiner, RECEIVED by it from the subject.
OPENED: Final = "opened"
SENT: Final = "sent"
RECEIVED: Final = "received"
CLOSED_BY_SUBJECT: Final = "closed by subject"
CLOSED_BY_EXAMINER: Final = "closed by examiner"
# Not on a connection: a codec was called, a broker was restarted, time passed.
NOTE: Final = "note"

# The arm of a case to which an event belongs. The control must succeed with every subject.
CONTROL: Final = "control"
TEST: Final = "test"


@dataclass(frozen=True)
class WireEvent:
    """One event. `at` is in seconds since the case began; `link` numbers its connections from 1."""

    at: float
    arm: str
    link: int
    kind: str
    data: bytes = b""
    # What the bytes mean, in words.
    meaning: str = ""

    def as_json(self) -> dict[str, object]:
        return {
            "at": round(self.at, 6),
            "arm": self.arm,
            "link": self.link,
            "kind": self.kind,
            "hex": self.data.hex(),
            "meaning": self.meaning,
        }


def event_from_json(value: dict[str, object]) -> WireEvent:
    """The event that `as_json` wrote."""
    at, link = value["at"], value["link"]
    assert isinstance(at, float | int)
    assert isinstance(link, int)
    return WireEvent(
        float(at),
        str(value["arm"]),
        link,
        str(value["kind"]),
        bytes.fromhex(str(value["hex"])),
        str(value["meaning"]),
    )
