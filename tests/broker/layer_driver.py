"""Drives layers without a network: as the shell does, and with input split at any place."""

from itertools import pairwise

from hypothesis import strategies as st

from semel.broker.network.layer import Layer, LayerFailed


class Driven:
    """A layer, what it has returned, and how it ended."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.inner = b""
        self.output = b""
        self.failure: str | None = None

    def give(self, data: bytes) -> None:
        """Give outer bytes, unless the layer has ended."""
        if not self.has_ended:
            self._receive(data)
        while not self.has_ended and self.layer.has_work:
            self.layer.work()
            self._receive(b"")

    @property
    def has_ended(self) -> bool:
        return self.failure is not None or self.layer.is_closed

    def _receive(self, data: bytes) -> None:
        try:
            self.inner += self.layer.receive(data)
        except LayerFailed as failure:
            self.inner += failure.received
            self.failure = str(failure)
        self.output += self.layer.take_output()

    def take_output(self) -> bytes:
        output, self.output = self.output, b""
        return output

    @property
    def result(self) -> tuple[bytes, str | None, bool, bool]:
        """All that must not depend on how the input was split."""
        return self.inner, self.failure, self.layer.is_established, self.layer.is_closed


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    """`data`, split at these places (each modulo its length)."""
    cuts = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(cuts)]


# Where to split a stream.
PLACES = st.lists(st.integers(min_value=0, max_value=1 << 20), max_size=12)


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """A valid stream with some bytes changed, removed or inserted."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(min_value=0, max_value=3))):
        place = draw(st.integers(min_value=0, max_value=len(data)))
        removed = draw(st.integers(min_value=0, max_value=2))
        data[place : place + removed] = draw(st.binary(max_size=3))
    return bytes(data)
