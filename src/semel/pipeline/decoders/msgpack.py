"""MessagePack: one map of columns for each payload.

The timestamp extension becomes a time; digits beyond microseconds are dropped. Values of other
extension types fit no column. Text must be UTF-8, and keys of maps must be text or bytes. If a key
occurs several times in a map, the last one wins.
"""

from dataclasses import dataclass
from functools import cache
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

# The value of msgpack's argument `timestamp` that gives a datetime in UTC.
_AS_DATETIME: Final = 3


@cache
def load_msgpack() -> Any:
    """The package msgpack. Raises MissingExtra."""
    return need("msgpack", extra="decoders", by="decoder msgpack")


@dataclass(frozen=True)
class MsgpackDecoder:
    """Decodes MessagePack payloads into structs of `schema`."""

    schema: pa.Schema

    def __call__(self, payloads: pa.Array) -> Decoded:
        """Decode a column of payloads."""
        return decode_each(payloads, self.schema, _decode)


def _extension(code: int, _data: bytes) -> Rejected:
    return Rejected(f"found a value of MessagePack extension type {code}, which no column can hold")


def _decode(payload: bytes) -> object:
    msgpack = load_msgpack()
    try:
        return msgpack.unpackb(
            payload, raw=False, strict_map_key=True, timestamp=_AS_DATETIME, ext_hook=_extension
        )
    except msgpack.ExtraData as problem:
        raise trailing_bytes(len(payload) - len(problem.extra), len(payload)) from None
    except (msgpack.StackError, RecursionError):
        raise Undecodable("the payload is nested too deeply") from None
    except msgpack.FormatError:
        raise Undecodable("the payload contains a byte that MessagePack does not use") from None
    except UnicodeDecodeError as problem:
        raise Undecodable(f"text of the payload is not UTF-8 ({problem.reason})") from None
    except OverflowError:
        raise Undecodable("a time of the payload is outside the years 1 to 9999") from None
    except (ValueError, msgpack.UnpackException) as problem:
        if "incomplete input" in str(problem) or "exceeds max_" in str(problem):
            raise truncated(payload) from None
        raise Undecodable(f"the payload is not valid MessagePack ({problem})") from None
