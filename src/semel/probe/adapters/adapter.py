"""The loop of an adapter in Python: requests as JSON lines in, answers out.

A library is a module or object with `decode` and `encode`. They return a packet or bytes, raise
`Cannot` for what the library does not have, and any other exception for what it refuses.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol


class Cannot(Exception):
    """The library has no such packet, version or path."""


class Incomplete(Exception):
    """The library waits for more bytes."""


class LibraryPanic(Exception):
    """The library failed in a way that `except Exception` does not catch."""


class CodecLibrary(Protocol):
    """What an adapter implements."""

    def hello(self) -> dict[str, Any]:
        """Name, version, and packet types by path and version of MQTT."""

    def decode(self, data: bytes, version: str, direction: str) -> dict[str, Any]:
        """The answer: `packet`, and `taken` if the library tells how much it read."""

    def encode(self, packet: Mapping[str, Any], version: str) -> bytes:
        """The bytes of a packet."""


def one_line(problem: BaseException) -> str:
    """An exception as text for an answer."""
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text}"[:200].rstrip(": ")


def answer_request(library: CodecLibrary, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    try:
        if request["do"] == "hello":
            return library.hello()
        if request["do"] == "decode":
            data = bytes.fromhex(request["hex"])
            return library.decode(data, request["version"], request["direction"])
        if request["do"] == "encode":
            return {"hex": library.encode(request["packet"], request["version"]).hex()}
        return {"cannot": f"{request['do']} is unknown"}
    except Cannot as reason:
        return {"cannot": str(reason)}
    except Incomplete:
        return {"incomplete": True}
    except LibraryPanic as reason:
        return {"crashed": str(reason)}
    except Exception as problem:  # each library has its own, and some have any
        return {"refused": one_line(problem)}


def serve(library: CodecLibrary, change: Callable[..., dict[str, Any]] = answer_request) -> None:
    """Answer requests until the standard input ends. `change` can replace the answers."""
    # What a library prints must not get between the answers.
    output = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answer = change(library, request)
        output.write(json.dumps({"id": request["id"], **answer}) + "\n")
        output.flush()


def end_without(library: str, package: str) -> NoReturn:
    """Exit because the library is not installed."""
    print(f"{library} is not installed: pip install {package}", file=sys.stderr)
    sys.exit(2)


def every_version(types: Sequence[str], *, three: bool = True, five: bool = True) -> dict[str, Any]:
    """The packet types by version; AUTH is in 5.0 only."""
    found: dict[str, Any] = {}
    if three:
        found["3.1.1"] = [each for each in types if each != "Auth"]
    if five:
        found["5.0"] = list(types)
    return found


def read_binary(value: str) -> bytes:
    """Binary data of a packet."""
    return bytes.fromhex(value.removeprefix("hex:"))


def read_password(packet: Mapping[str, Any]) -> bytes | None:
    """The password of a CONNECT, which may be empty or absent."""
    value = packet.get("password")
    return None if value is None else read_binary(value)


def read_values(value: Any) -> Any:
    """A value of a packet as a library takes it: bytes for "hex:…", and the same in lists."""
    if isinstance(value, str) and value.startswith("hex:"):
        return bytes.fromhex(value.removeprefix("hex:"))
    if isinstance(value, list):
        return [read_values(entry) for entry in value]
    return value


def write_values(value: Any) -> Any:
    """The reverse of `read_values`."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"hex:{bytes(value).hex()}"
    if isinstance(value, list | tuple):
        return [write_values(entry) for entry in value]
    return value


def property_pairs(packet: Mapping[str, Any]) -> list[tuple[str | int, Any]]:
    """The properties of a packet as pairs of name or identifier and value, repeated ones apart."""
    properties = packet.get("properties") or {}
    if isinstance(properties, list):
        return [(name, read_values(value)) for name, value in properties]
    pairs = []
    for name, value in properties.items():
        if name in ("user_properties", "subscription_identifiers"):
            pairs += [(name, read_values(entry)) for entry in value]
        else:
            pairs.append((name, read_values(value)))
    return pairs


def single_properties(packet: Mapping[str, Any]) -> dict[str, Any]:
    """The properties for a library that has them by name; raises Cannot for what it cannot say."""
    found: dict[str, Any] = {}
    for name, value in property_pairs(packet):
        if not isinstance(name, str):
            raise Cannot("properties have names, not identifiers")
        if name in ("user_properties", "subscription_identifiers"):
            found.setdefault(name, []).append(value)
        elif name in found:
            raise Cannot("a property has one value")
        else:
            found[name] = value
    return found


ALL_TYPES = (
    *("Connect", "ConnAck", "Publish", "PubAck", "PubRec", "PubRel", "PubComp", "Subscribe"),
    *("SubAck", "Unsubscribe", "UnsubAck", "PingReq", "PingResp", "Disconnect", "Auth"),
)
