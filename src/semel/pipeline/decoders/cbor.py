"""CBOR (RFC 8949): one map of columns for each payload.

Dates and times (tags 0, 1, 100, 1004), big numbers (2, 3), decimal fractions (4) and UUIDs (37)
become values of columns. Tag 55799, which marks CBOR itself, is skipped. A value with any other tag
fits no column, nor does a decimal fraction beyond all decimals of columns. In particular,
references to shared values and strings (tags 25, 28, 29, 256) are not followed, because a small
payload could expand to any size. `undefined` is null.

Keys of maps must be text or bytes. If a key occurs several times in a map, the last one wins.
Indefinite lengths are accepted. Values are nested at most `DEPTH` levels deep.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from io import BytesIO
from typing import Any, Final

import pyarrow as pa

from semel.extras import need
from semel.pipeline.decoders.leaves import Rejected
from semel.pipeline.decoders.outcome import Decoded
from semel.pipeline.decoders.payloads import (
    Undecodable,
    decode_each,
    trailing_bytes,
    truncated,
)

DEPTH: Final = 128
# Tags that cbor2 would interpret, and that no column holds: strings by reference, shared values,
# big floats, rationals, patterns, MIME messages, IP addresses, sets, complex numbers.
_OTHER_TAGS: Final = (5, 25, 28, 29, 30, 35, 36, 52, 54, 256, 258, 260, 261, 43000)
_DECIMAL_FRACTION: Final = 4
# Far beyond what fits a column, trailing zeros included. Python takes minutes to make a decimal of
# an integer of a million bytes.
_MANTISSA_BITS: Final = 512
_LARGEST_EXPONENT: Final = 1_000
_EXACT: Final = Context(prec=1_000)
# The encoding of `undefined`, and the last byte of tag 55799 in each of its encodings.
_UNDEFINED_OR_MARK: Final = b"\xf7"


def load_cbor() -> Any:
    """The package cbor2. Raises MissingExtra."""
    return need("cbor2", extra="decoders", by="decoder cbor")


@dataclass(frozen=True)
class CborDecoder:
    """Decodes CBOR payloads into structs of `schema`."""

    schema: pa.Schema

    def __call__(self, payloads: pa.Array) -> Decoded:
        """Decode a column of payloads."""
        return decode_each(payloads, self.schema, _make_decode(load_cbor()))


def _reject_tag(tag: int, _value: object, _immutable: bool) -> Rejected:
    return Rejected(f"found a value with CBOR tag {tag}, which no column can hold")


def _decimal_fraction(value: Any, _immutable: bool) -> Decimal | Rejected:
    """Exponent and mantissa as a decimal."""
    if type(value) not in (list, tuple) or [type(each) for each in value] != [int, int]:
        return Rejected("expected an exponent and an integer in CBOR tag 4, a decimal fraction")
    exponent, mantissa = value
    bits = mantissa.bit_length()
    if bits > _MANTISSA_BITS:
        return Rejected(f"found a decimal fraction of {bits:,} bits, which no column can hold")
    if mantissa == 0:
        return Decimal(0)
    if abs(exponent) > _LARGEST_EXPONENT:
        return Rejected(
            f"found a decimal fraction with an exponent beyond {_LARGEST_EXPONENT:,}, which no"
            " column can hold"
        )
    return Decimal(mantissa).scaleb(exponent, _EXACT)


def _make_decode(cbor2: Any) -> Callable[[bytes], object]:
    """A function that decodes one payload. It uses one decoder of cbor2 until an error."""
    hooks: dict[int, Callable[[Any, bool], object]] = {
        tag: partial(_reject_tag, tag) for tag in _OTHER_TAGS
    }
    hooks[_DECIMAL_FRACTION] = _decimal_fraction

    def make_decoder() -> Any:
        return cbor2.CBORDecoder(
            BytesIO(),
            max_depth=DEPTH,
            strict_hashable_types=True,
            semantic_decoders=hooks,
            tag_hook=lambda tagged, immutable: _reject_tag(tagged.tag, tagged, immutable),
        )

    decoder = make_decoder()

    def decode(payload: bytes) -> object:
        nonlocal decoder
        source = decoder.fp = BytesIO(payload)
        try:
            value = decoder.decode()
        except (cbor2.CBORError, RecursionError) as problem:
            decoder = make_decoder()
            if isinstance(problem, cbor2.CBORDecodeEOF):
                raise truncated(payload) from None
            raise Undecodable(f"the payload is not valid CBOR ({problem})") from None
        end = source.tell()
        if end != len(payload):
            raise trailing_bytes(end, len(payload))
        if _UNDEFINED_OR_MARK in payload:
            return _plain(value, cbor2)
        return value

    return decode


def _plain(value: Any, cbor2: Any) -> Any:
    """The value with None for each `undefined`, and maps and lists where they are within a tag."""
    if value is cbor2.undefined:
        return None
    if isinstance(value, dict | cbor2.frozendict):
        return {key: _plain(item, cbor2) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_plain(item, cbor2) for item in value]
    return value
