"""Records the events of one case, with times, and the arm to which each belongs."""

import time

from semel.probe.evidence import NOTE, TEST, WireEvent

# Evidence is for people: more than this is not kept of one event.
MAXIMUM_BYTES = 16 * 1024
# Events of one case; a broker that floods a subscriber must not fill the memory.
MAXIMUM_EVENTS = 2_000


class CaseRecorder:
    """The evidence of one run of a case. `arm` is CONTROL or TEST.

    `secret`, the password of the subject, is recorded as asterisks: reports are passed around.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or b""
        self.arm = TEST
        self.events: list[WireEvent] = []
        self._began = time.monotonic()

    def record(self, link: int, kind: str, data: bytes, meaning: str) -> None:
        if len(self.events) >= MAXIMUM_EVENTS:
            return
        if self._secret and self._secret in data:
            data = data.replace(self._secret, b"*" * len(self._secret))
            meaning = f"{meaning} (the password is not shown)"
        if len(data) > MAXIMUM_BYTES:
            meaning = f"{meaning} (the first {MAXIMUM_BYTES:,} of {len(data):,} bytes)"
            data = data[:MAXIMUM_BYTES]
        at = time.monotonic() - self._began
        self.events.append(WireEvent(at, self.arm, link, kind, data, meaning))

    def note(self, sentence: str) -> None:
        """Record something that happened outside of the connections."""
        self.record(0, NOTE, b"", sentence)
