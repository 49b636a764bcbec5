"""What was sent and seen in one case, with times: the evidence of a verdict.

Of a violated case of a codec, the lines to and from its adapter are kept as well, so that it can be
asked the same again.
"""

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


@dataclass(frozen=True)
class AdapterCall:
    """A request to the adapter of a codec and what it answered, as texts of JSON.

    A request has no `id`. What was no answer is told as one: {"crashed": …} or {"silent": …}.
    """

    request: str
    answer: str

    def as_json(self) -> dict[str, object]:
        return {"request": self.request, "answer": self.answer}


@dataclass(frozen=True)
class AdapterRecord:
    """All that is needed to ask the adapter of a codec again about a violated case."""

    command: tuple[str, ...]
    test: AdapterCall
    # A right answer to the test, as a text of JSON; {"refused": …} if the codec must refuse it.
    right_answer: str
    # None if the adapter has no right case that could serve as one.
    control: AdapterCall | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "command": list(self.command),
            "test": self.test.as_json(),
            "right_answer": self.right_answer,
            "control": None if self.control is None else self.control.as_json(),
        }


def adapter_record_from_json(value: dict[str, object]) -> AdapterRecord:
    """The record that `as_json` wrote."""
    command, test, control = value["command"], value["test"], value["control"]
    assert isinstance(command, list)
    assert isinstance(test, dict)
    assert control is None or isinstance(control, dict)
    return AdapterRecord(
        tuple(str(word) for word in command),
        _call_from_json(test),
        str(value["right_answer"]),
        None if control is None else _call_from_json(control),
    )


def _call_from_json(value: dict[str, object]) -> AdapterCall:
    return AdapterCall(str(value["request"]), str(value["answer"]))
