"""Text: a number, or one record of CSV (RFC 4180), for each payload.

A field of CSV ends at a separator. If it is in quotation marks, it can have separators and line
breaks, and a quotation mark is written twice. A line break at the end of the payload is no part of
the record. Option: `separator`, one character.

A column takes

    BOOLEAN                    true, false, in any case
    TINYINT to BIGINT          digits, with or without a sign, within the bounds
    FLOAT, DOUBLE              numbers such as 1, -1.50, .5 and 1e3, rounded to the nearest, unless
                               they are too large
    DECIMAL                    such numbers, if precision and scale suffice
    STRING, BINARY             the text, and its bytes in UTF-8
    DATE, TIMESTAMP, TIMESTAMP_NTZ    what text of JSON is in `json_values`

Spaces and tabs around a field belong to a STRING or BINARY, and to nothing else. An empty field
is null, also in quotation marks.

A thousand payloads are first tried at once, by Arrow: if all of them are plain, that gives the same
result as one by one, and takes a tenth of the time.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from semel.counts import count
from semel.pipeline.decoders.json_values import (
    BOOLEAN,
    BYTES,
    DECIMAL,
    FLOATING,
    INTEGER,
    TEXT,
    JsonNumber,
    JsonShape,
    fit_value,
    from_storage,
    shape_of,
    storage_schema,
)
from semel.pipeline.decoders.leaves import is_leaf
from semel.pipeline.decoders.options import check_option_names, text_option
from semel.pipeline.decoders.outcome import Decoded
from semel.pipeline.decoders.payloads import Undecodable, decode_each, decode_in_pieces
from semel.pipeline.decoders.typed import check_schema
from semel.pipeline.errors import OptionError

CSV: Final = "csv"
NUMBER: Final = "number"
OPTIONS: Final = ("separator",)
COMMA: Final = ","

# A digit has one place only, so that no text takes longer than its length.
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER: Final = re.compile(r"\+?(-?)0*([0-9]+)")
_QUOTED: Final = re.compile(r'"([^"]*(?:""[^"]*)*)"')
_LINE_BREAK: Final = re.compile(r"[\r\n]")
_NUMERIC: Final = (INTEGER, FLOATING, DECIMAL)
_BOOLEANS: Final = {"true": True, "false": False}
# Around a number that is the payload, and around a field.
_WHITE: Final = " \t\r\n"
_BLANK: Final = " \t"
# Texts that Arrow (RE2) reads as Python does, and that are within the bounds of a DOUBLE.
_PLAIN_INTEGER: Final = r"^-?[0-9]{1,18}$"
_PLAIN_NUMBER: Final = r"^-?[0-9]{1,18}(\.[0-9]{1,18})?$"
_LAST_LINE_BREAK: Final = r"\r?\n$"
_NOT_PLAIN: Final = r'["\r\n]'


@dataclass(frozen=True)
class CsvDecoder:
    """Decodes records of CSV into structs of `schema`."""

    schema: pa.Schema
    separator: str = COMMA

    def __call__(self, payloads: pa.Array) -> Decoded:
        """Decode a column of payloads."""
        parts, separator = shape_of(self.schema).parts, self.separator

        def decode(text: str) -> dict[str, object]:
            fields = split_record(text, separator, len(parts))
            return {
                name: _fit_field(field, shape)
                for (name, shape), field in zip(parts, fields, strict=True)
            }

        return _decode_texts(payloads, self.schema, decode, self._read_at_once)

    def _read_at_once(self, texts: pa.Array) -> list[pa.Array] | None:
        parts = shape_of(self.schema).parts
        lines = pc.replace_substring_regex(texts, _LAST_LINE_BREAK, "")
        if pc.any(pc.match_substring_regex(lines, _NOT_PLAIN)).as_py():
            return None
        # Before they are split: a payload of separators would become many times as long.
        separators = pc.count_substring(lines, self.separator)
        if not pc.all(pc.equal(separators, len(parts) - 1)).as_py():
            return None
        records = pc.split_pattern(lines, self.separator)
        columns = []
        for at, (_, shape) in enumerate(parts):
            fields = pc.list_element(records, at)
            fields = pc.if_else(pc.equal(pc.binary_length(fields), 0), None, fields)
            column = fields if shape.form == TEXT else _column_at_once(fields, _BLANK, shape)
            if column is None:
                return None
            columns.append(column)
        return columns


@dataclass(frozen=True)
class NumberDecoder:
    """Decodes numbers into structs of one column."""

    schema: pa.Schema

    def __call__(self, payloads: pa.Array) -> Decoded:
        """Decode a column of payloads."""
        ((name, shape),) = shape_of(self.schema).parts

        def decode(text: str) -> dict[str, object]:
            return {name: _fit_text(text.strip(_WHITE), shape)}

        def read_at_once(texts: pa.Array) -> list[pa.Array] | None:
            column = _column_at_once(texts, _WHITE, shape)
            return None if column is None else [column]

        return _decode_texts(payloads, self.schema, decode, read_at_once)


def _decode_texts(
    payloads: pa.Array,
    schema: pa.Schema,
    decode: Callable[[str], dict[str, object]],
    read_at_once: Callable[[pa.Array], list[pa.Array] | None],
) -> Decoded:
    """Decode payloads with `decode`, or many with `read_at_once`, which gives None if it cannot."""

    def decode_piece(piece: pa.Array) -> Decoded:
        columns = None
        if len(piece) and not piece.null_count and pc.min(pc.binary_length(piece)).as_py():
            try:
                columns = read_at_once(piece.cast(pa.string()))
            except pa.ArrowInvalid:
                # Not UTF-8, or a number that does not fit.
                columns = None
        if columns is None or any(
            column.null_count and not field.nullable
            for column, field in zip(columns, schema, strict=True)
        ):
            return _decode_singly(piece, schema, decode)
        return Decoded(pa.StructArray.from_arrays(columns, fields=list(schema)), {})

    return decode_in_pieces(payloads, decode_piece)


def _column_at_once(texts: pa.Array, white: str, shape: JsonShape) -> pa.Array | None:
    """The column of texts, which may be null; None if some of them must be read alone.

    Raises ArrowInvalid if a number does not fit.
    """
    if shape.form not in (INTEGER, FLOATING):
        return None
    texts = pc.ascii_trim(texts, white)
    pattern = _PLAIN_INTEGER if shape.form == INTEGER else _PLAIN_NUMBER
    if not pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py():
        return None
    return texts.cast(pa.int64() if shape.form == INTEGER else pa.float64()).cast(shape.kind)


def _decode_singly(
    payloads: pa.Array, schema: pa.Schema, decode: Callable[[str], dict[str, object]]
) -> Decoded:
    def decode_payload(payload: bytes) -> object:
        try:
            text = payload.decode()
        except UnicodeDecodeError as problem:
            raise Undecodable("the payload is not UTF-8", problem.start) from None
        return decode(text)

    found = decode_each(payloads, storage_schema(schema), decode_payload)
    return Decoded(from_storage(found.values, pa.struct(list(schema))), found.problems)


def split_record(text: str, separator: str, expected: int) -> list[str]:
    """The fields of one record of CSV, of which `expected` are expected. Raises Undecodable."""
    line = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
    if not line:
        raise Undecodable("the record is empty")
    if '"' not in line:
        _check_line(line, 0, len(line))
        found_fields = line.count(separator) + 1
        if found_fields != expected:
            raise _wrong_count(expected, f"{found_fields:,}")
        return line.split(separator)
    fields: list[str] = []
    at = 0
    while True:
        if len(fields) == expected:
            raise _wrong_count(expected, "more")
        if line.startswith('"', at):
            found = _QUOTED.match(line, at)
            if found is None:
                raise Undecodable("the record ends inside quotation marks", _byte(line, at))
            fields.append(found[1].replace('""', '"'))
            end = found.end()
            if end < len(line) and line[end] != separator:
                raise Undecodable(
                    "expected a separator after quotation marks, found other text",
                    _byte(line, end),
                )
        else:
            end = line.find(separator, at)
            end = len(line) if end < 0 else end
            _check_line(line, at, end)
            fields.append(line[at:end])
        if end == len(line):
            break
        at = end + 1
    if len(fields) != expected:
        raise _wrong_count(expected, f"{len(fields):,}")
    return fields


def _wrong_count(expected: int, found: str) -> Undecodable:
    return Undecodable(f"expected {count(expected, 'field')}, found {found}")


def _check_line(line: str, begin: int, end: int) -> None:
    found = _LINE_BREAK.search(line, begin, end)
    if found is not None:
        raise Undecodable("expected one record, found a line break", _byte(line, found.start()))


def _byte(line: str, at: int) -> int:
    return len(line[:at].encode())


def _fit_field(text: str, shape: JsonShape) -> object:
    """The value of a field as a column of `storage_schema` takes it, or Rejected."""
    if not text:
        return None
    if shape.form == TEXT:
        return text
    if shape.form == BYTES:
        return text.encode()
    text = text.strip(_BLANK)
    return _fit_text(text, shape) if text else None


def _fit_text(text: str, shape: JsonShape) -> object:
    """The value of text that is not for a STRING, or Rejected."""
    if shape.form in _NUMERIC and _NUMBER.fullmatch(text):
        whole = _INTEGER.fullmatch(text) if shape.form == INTEGER else None
        text = text.removeprefix("+") if whole is None else whole[1] + whole[2]
        return fit_value(JsonNumber(text), shape)
    if shape.form == BOOLEAN:
        return fit_value(_BOOLEANS.get(text.lower(), text), shape)
    return fit_value(text, shape)


def make_csv_decoder(schema: pa.Schema, options: Mapping[str, object]) -> CsvDecoder:
    """The decoder for `options`. Raises OptionError."""
    check_option_names(CSV, options, OPTIONS)
    _check_columns(schema)
    separator = text_option(CSV, options, "separator") or COMMA
    return CsvDecoder(schema, separator)


def make_number_decoder(schema: pa.Schema, options: Mapping[str, object]) -> NumberDecoder:
    """The decoder of numbers into one column. Raises OptionError."""
    check_option_names(NUMBER, options, ())
    _check_columns(schema)
    return NumberDecoder(schema)


def _check_columns(schema: pa.Schema) -> None:
    stored = storage_schema(schema)
    check_schema(stored)
    for field in stored:
        if not is_leaf(field.type):
            raise OptionError(f"column {field.name} is nested, but text has no nested columns")
