"""The layers of one connection as one: bytes of the socket on one side, MQTT on the other."""

from collections.abc import Sequence

from semel.broker.network.layer import Layer, LayerFailed


class LayerStack:
    """Passes bytes through layers, given from the outermost to the innermost."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self._inner_first = tuple(reversed(self.layers))
        # The layer that has worked last.
        self._worker = 0

    @property
    def is_established(self) -> bool:
        """Whether all handshakes are complete, so that `send` may be called."""
        return all(layer.is_established for layer in self.layers)

    @property
    def is_closed(self) -> bool:
        """Whether the peer has ended a layer in order."""
        return any(layer.is_closed for layer in self.layers)

    @property
    def has_work(self) -> bool:
        """Whether `work` must be called, in another thread, and then `resume`."""
        return any(layer.has_work for layer in self.layers)

    def receive(self, data: bytes) -> bytes:
        """Translate bytes of the socket to MQTT; b"" if there is none yet. Raises LayerFailed.

        Write `take_output` after each call.
        """
        return self._receive(data, 0)

    def resume(self) -> bytes:
        """Continue after `work`. Returns and raises what `receive` does."""
        return self._receive(b"", self._worker)

    def _receive(self, data: bytes, first: int) -> bytes:
        for index in range(first, len(self.layers)):
            try:
                data = self.layers[index].receive(data)
            except LayerFailed as failure:
                if not failure.received:
                    raise
                # What arrived before the failure still counts.
                inner = self._receive(failure.received, index + 1)
                raise LayerFailed(str(failure), inner) from None
            if not data:
                break
        return data

    def work(self) -> None:
        """Do the step of the layer that has one. Never raises."""
        for index, layer in enumerate(self.layers):
            if layer.has_work:
                self._worker = index
                layer.work()
                return

    def send(self, data: bytes) -> bytes:
        """Translate MQTT to bytes for the socket. Only if it is established."""
        for layer in self._inner_first:
            data = layer.send(data)
        return data

    def take_output(self) -> bytes:
        """Bytes for the socket that the layers themselves have to send."""
        data = b""
        for layer in self._inner_first:
            own = layer.take_output()
            data = own + layer.send(data) if data and layer.is_established else own
        return data

    def close(self, *, is_shutdown: bool = False) -> bytes:
        """The bytes for the socket that end all layers in order, the innermost first."""
        data = b""
        for layer in self._inner_first:
            if layer.is_established:
                sent = layer.send(data) if data else b""
                data = sent + layer.close(is_shutdown=is_shutdown)
            else:
                data = layer.take_output()
        return data
