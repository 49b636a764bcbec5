"""Protocol Buffers: one message for each payload, of a type from a descriptor file.

Options: `descriptor_file`, made by `protoc --descriptor_set_out --include_imports`, and `message`,
the full name of the message type.

A column has the name of its field. Messages become structs, repeated fields lists, map fields maps.
An enum is the name of its value in a string column, and its number in an int column. A
google.protobuf.Timestamp is a time in a timestamp column, without its digits beyond microseconds;
the wrappers (google.protobuf.Int32Value, …) are their values. A field that has presence and is not
set is null; a field without presence has its default value. An empty payload is a valid message.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from operator import attrgetter, methodcaller
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from semel.extras import need
from semel.pipeline.decoders.leaves import TIMESTAMP, Rejected, is_leaf, times_of_parts
from semel.pipeline.decoders.options import check_option_names, read_option_file, text_option
from semel.pipeline.decoders.outcome import Decoded, Problem
from semel.pipeline.decoders.payloads import decode_in_pieces
from semel.pipeline.decoders.typed import Column, SplitStructs, structs_of_columns
from semel.pipeline.errors import OptionError

NAME: Final = "protobuf"
OPTIONS: Final = ("descriptor_file", "message")

_TIMESTAMP_MESSAGE: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in (
        "Bool",
        "Bytes",
        "Double",
        "Float",
        "Int32",
        "Int64",
        "String",
        "UInt32",
        "UInt64",
    )
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BILLION: Final = 1_000_000_000

_SECONDS: Final = attrgetter("seconds")
_NANOS: Final = attrgetter("nanos")

# From a message to the value of a column, or from a value of a field to what typed takes.
_Getter = Callable[[Any], object]
# From messages to a column.
_Reader = Callable[[list[Any]], Column]


@dataclass(frozen=True)
class ProtobufDecoder:
    """Decodes messages of a type into structs of `schema`."""

    schema: pa.Schema
    # A serialized FileDescriptorSet.
    descriptor_set: bytes
    # Full name of the message type.
    message: str

    def __call__(self, payloads: pa.Array) -> Decoded:
        """Decode a column of payloads."""
        return decode_in_pieces(payloads, self._decode_piece)

    def _decode_piece(self, payloads: pa.Array) -> Decoded:
        kind = _message_type(self.descriptor_set, self.message)
        errors = need("google.protobuf.message", extra="decoders", by="decoder protobuf")
        has_required = self._has_required
        nothing = kind()
        messages: list[Any] = []
        absent: set[int] = set()
        problems: dict[int, Problem] = {}
        for index, payload in enumerate(payloads.to_pylist()):
            message = nothing
            if payload is None:
                absent.add(index)
            else:
                try:
                    message = kind.FromString(payload)
                except errors.DecodeError as problem:
                    absent.add(index)
                    problems[index] = _explain(problem, self.message)
                else:
                    if has_required and not message.IsInitialized():
                        absent.add(index)
                        problems[index] = _missing_required(message)
                        message = nothing
            messages.append(message)
        columns = [read(messages) for read in self._readers]
        return structs_of_columns(columns, self.schema, absent=absent, problems=problems)

    @cached_property
    def _readers(self) -> list["_Reader"]:
        kind = _message_type(self.descriptor_set, self.message)
        return _readers(list(self.schema), kind.DESCRIPTOR, "")

    @cached_property
    def _has_required(self) -> bool:
        kind = _message_type(self.descriptor_set, self.message)
        return _has_required(kind.DESCRIPTOR, set())

    def __getstate__(self) -> dict[str, object]:
        # Not what is cached: functions cannot be pickled.
        names = ("schema", "descriptor_set", "message")
        return {name: getattr(self, name) for name in names}


def make_protobuf_decoder(schema: pa.Schema, options: Mapping[str, object]) -> ProtobufDecoder:
    """The decoder for `options`. Reads the descriptor file. Raises OptionError and MissingExtra."""
    check_option_names(NAME, options, OPTIONS)
    path = text_option(NAME, options, "descriptor_file")
    message = text_option(NAME, options, "message")
    if path is None or message is None:
        raise OptionError("decoder protobuf needs options descriptor_file and message")
    descriptor_set = read_option_file(NAME, "descriptor_file", path)
    try:
        kind = _message_type(descriptor_set, message)
    except OptionError as problem:
        raise OptionError(
            f"option descriptor_file of decoder protobuf: {path}: {problem}"
        ) from None
    _readers(list(schema), kind.DESCRIPTOR, "")
    return ProtobufDecoder(schema, descriptor_set, message)


@cache
def _descriptor_pool(descriptor_set: bytes) -> Any:
    """The types of a descriptor file, loaded once per process. Raises OptionError."""
    descriptors = need("google.protobuf.descriptor_pb2", extra="decoders", by="decoder protobuf")
    pools = need("google.protobuf.descriptor_pool", extra="decoders", by="decoder protobuf")
    errors = need("google.protobuf.message", extra="decoders", by="decoder protobuf")
    try:
        files = descriptors.FileDescriptorSet.FromString(descriptor_set)
    except errors.DecodeError:
        files = None
    if files is None or not files.file:
        raise OptionError("not a descriptor file: make it by protoc --descriptor_set_out")
    pool = pools.DescriptorPool()
    for file in files.file:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as problem:
            hint = (
                " (use protoc --include_imports)" if "has not been loaded" in str(problem) else ""
            )
            raise OptionError(f"{file.name} cannot be loaded: {problem}{hint}") from None
    return pool


@cache
def _message_type(descriptor_set: bytes, message: str) -> Any:
    """The class of a message type. Raises OptionError."""
    factory = need("google.protobuf.message_factory", extra="decoders", by="decoder protobuf")
    pool = _descriptor_pool(descriptor_set)
    try:
        return factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        raise OptionError(f"there is no message {message}: give its full name") from None


def _has_required(descriptor: Any, seen: set[str]) -> bool:
    """Whether a message type, or one that it contains, has a required field (proto2)."""
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        if field.is_required:
            return True
        if field.message_type is not None and _has_required(field.message_type, seen):
            return True
    return False


def _explain(problem: Exception, message: str) -> Problem:
    detail = str(problem).rpartition("': ")[2]
    return Problem(f"the payload is not a valid message {message} ({detail})")


def _missing_required(message: Any) -> Problem:
    path = str(message.FindInitializationErrors()[0])
    return Problem(f"required field {path} is missing", column=path)


def _readers(fields: list[pa.Field], descriptor: Any, prefix: str) -> list[_Reader]:
    """Functions from messages to columns, in the order of the fields. Raises OptionError."""
    return [_reader(field, descriptor, prefix) for field in fields]


def _reader(column: pa.Field, descriptor: Any, prefix: str) -> _Reader:
    """The reader of a column. It repeats what `_getter` gives, for all messages at once."""
    getter = _getter(column, descriptor, prefix)
    field = descriptor.fields_by_name[column.name]

    def read_singly(messages: list[Any]) -> Column:
        return list(map(getter, messages))

    if field.message_type is None or field.is_repeated:
        return read_singly
    is_time = column.type == TIMESTAMP and field.message_type.full_name == _TIMESTAMP_MESSAGE
    if not is_time and not pt.is_struct(column.type):
        return read_singly
    get = attrgetter(column.name)
    has = methodcaller("HasField", column.name)
    path = f"{prefix}{column.name}."
    parts = [] if is_time else _readers(list(column.type), field.message_type, path)

    def read(messages: list[Any]) -> Column:
        if not all(map(has, messages)):
            return read_singly(messages)
        found = list(map(get, messages))
        if not is_time:
            return SplitStructs([read_part(found) for read_part in parts])
        times = times_of_parts(list(map(_SECONDS, found)), list(map(_NANOS, found)))
        # The plain path says what is wrong.
        return read_singly(messages) if times is None else times

    return read


def _getters(fields: list[pa.Field], descriptor: Any, prefix: str) -> dict[str, _Getter]:
    """Functions from a message to its columns, by name. Raises OptionError."""
    return {field.name: _getter(field, descriptor, prefix) for field in fields}


def _getter(column: pa.Field, descriptor: Any, prefix: str) -> _Getter:
    name = column.name
    path = f"{prefix}{name}"
    field = descriptor.fields_by_name.get(name)
    if field is None:
        raise OptionError(f"column {path} is not a field of message {descriptor.full_name}")
    get = attrgetter(name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map_getter(column.type, field, path)
    if field.is_repeated:
        if not pt.is_list(column.type):
            raise OptionError(f"column {path} must be a list: field {name} is repeated")
        convert = _converter(column.type.value_type, field, f"{path}[]")
        if convert is None:
            return lambda message: list(get(message))
        return lambda message: list(map(convert, get(message)))
    single = _converter(column.type, field, path)
    if not field.has_presence:
        if single is None:
            return get
        return lambda message: single(get(message))
    if single is None:
        return lambda message: get(message) if message.HasField(name) else None
    return lambda message: single(get(message)) if message.HasField(name) else None


def _map_getter(kind: pa.DataType, field: Any, path: str) -> _Getter:
    entry = field.message_type.fields_by_name
    if not pt.is_map(kind):
        raise OptionError(f"column {path} must be a map: field {field.name} is one")
    if entry["key"].type != entry["key"].TYPE_STRING:
        raise OptionError(f"column {path}: the keys of the map must be strings")
    get = attrgetter(field.name)
    convert = _converter(kind.item_type, entry["value"], f"{path}[]")
    if convert is None:
        return lambda message: dict(get(message))
    return lambda message: {key: convert(value) for key, value in get(message).items()}


def _converter(kind: pa.DataType, field: Any, path: str) -> _Getter | None:
    """The function from one value of a field to a column of type `kind`; None if it is the same."""
    if field.enum_type is not None:
        return _enum_converter(kind, field.enum_type, path)
    if field.message_type is not None:
        return _message_converter(kind, field.message_type, path)
    if not is_leaf(kind):
        raise OptionError(f"column {path} is a {kind}, but field {field.name} is a single value")
    return None


def _enum_converter(kind: pa.DataType, enum: Any, path: str) -> _Getter | None:
    if pt.is_signed_integer(kind):
        return None
    if not pt.is_string(kind):
        raise OptionError(f"column {path} must be a string or an int: its field is an enum")
    names = {number: value.name for number, value in enum.values_by_number.items()}
    full_name = enum.full_name

    def name_of(number: Any) -> object:
        return names.get(number) or Rejected(f"enum {full_name} has no value {number}")

    return name_of


def _message_converter(kind: pa.DataType, descriptor: Any, path: str) -> _Getter:
    if kind == TIMESTAMP and descriptor.full_name == _TIMESTAMP_MESSAGE:
        return _time
    if is_leaf(kind) and descriptor.full_name in _WRAPPERS:
        return attrgetter("value")
    if not pt.is_struct(kind):
        raise OptionError(f"column {path} must be a struct: its field is a {descriptor.full_name}")
    getters = _getters(list(kind), descriptor, f"{path}.")

    def fields_of(message: Any) -> object:
        return {name: get(message) for name, get in getters.items()}

    return fields_of


def _time(timestamp: Any) -> object:
    seconds, nanos = timestamp.seconds, timestamp.nanos
    if not 0 <= nanos < _BILLION:
        return Rejected(f"expected nanoseconds from 0 to 999999999, found {nanos}")
    try:
        return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError:
        return Rejected(f"expected a time in the years 1 to 9999, found second {seconds}")
