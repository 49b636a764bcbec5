"""`COPY … TO 'file'`: what to write, in which format, and which query gives the rows.

DuckDB could write files only if it could also read them. So it never runs a COPY: it parses the
statement, its query runs as any other, and the caller writes the rows. Tokens of DuckDB separate
the parts of a statement whose grammar DuckDB's parser has already checked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from semel.extras import need
from semel.up.sql_errors import SqlError

PARQUET: Final = "parquet"
CSV: Final = "csv"
JSON: Final = "json"
FORMATS: Final = (PARQUET, CSV, JSON)
ENDINGS: Final = {
    ".parquet": PARQUET,
    ".csv": CSV,
    ".json": JSON,
    ".jsonl": JSON,
    ".ndjson": JSON,
}
SNAPPY: Final = "snappy"
COMPRESSIONS: Final = ("zstd", SNAPPY, "gzip", "uncompressed")

FORMAT: Final = "FORMAT"
HEADER: Final = "HEADER"
DELIMITER: Final = "DELIMITER"
COMPRESSION: Final = "COMPRESSION"
# The format that each option is for; "" is any.
OPTIONS: Final = {FORMAT: "", HEADER: CSV, DELIMITER: CSV, COMPRESSION: PARQUET}

_TRUE: Final = frozenset(["", "true", "1", "on"])
_FALSE: Final = frozenset(["false", "0", "off"])


@dataclass(frozen=True)
class CopyStatement:
    """A COPY … TO."""

    query: str
    # As the user wrote it.
    file: str
    format: str
    header: bool = True
    delimiter: str = ","
    compression: str = SNAPPY


@dataclass(frozen=True)
class _Token:
    """A token, and where it begins and ends in the bytes of the statement."""

    text: str
    begins: int
    ends: int
    is_string: bool
    # Neither a string nor a quoted identifier.
    is_plain: bool

    def is_word(self, word: str) -> bool:
        """Whether this is a keyword or a sign, written without quotes."""
        return self.is_plain and self.text.lower() == word


def parse_copy(statement: str, connection: Any) -> CopyStatement:
    """The parts of a COPY that DuckDB's parser has accepted. Raises SqlError."""
    data = statement.encode()
    tokens = [each for each in _tokens(statement) if not each.is_word(";")]
    # Of `COPY name (columns) TO` and `COPY (query) TO`, what is between COPY and TO.
    at = _end_of_source(tokens)
    source = tokens[1:at]
    if not tokens[at].is_word("to"):
        raise SqlError("COPY … FROM is not possible: semel sql reads no files and changes no table")
    if source[0].is_word("("):
        query = data[source[0].ends : source[-1].begins].decode()
    else:
        query = _table_query(data, source)
    rest = tokens[at + 1 :]
    if not rest or not rest[0].is_string:
        raise SqlError("COPY: write the name of the file in quotes, as in TO 'messages.parquet'")
    file = _literal(rest[0], connection)
    options = _options(rest[1:], connection)
    return _checked(query, file, options)


def _tokens(statement: str) -> Iterator[_Token]:
    """The tokens of a statement, without comments."""
    duckdb = need("duckdb", extra="sql", by="semel sql")
    kinds = duckdb.token_type
    # DuckDB gives offsets in bytes.
    data = statement.encode()
    found = duckdb.tokenize(statement)
    ends = [begins for begins, _ in found[1:]] + [len(data)]
    for (begins, kind), end in zip(found, ends, strict=True):
        if kind == kinds.comment:
            continue
        text = data[begins:end].decode().rstrip()
        is_string = kind == kinds.string_const
        is_plain = not is_string and not text.startswith('"')
        yield _Token(text, begins, begins + len(text.encode()), is_string, is_plain)


def _end_of_source(tokens: list[_Token]) -> int:
    """The position of TO or FROM, outside of parentheses."""
    depth = 0
    for at, token in enumerate(tokens):
        if token.is_word("("):
            depth += 1
        elif token.is_word(")"):
            depth -= 1
        elif depth == 0 and (token.is_word("to") or token.is_word("from")):
            return at
    raise AssertionError


def _table_query(data: bytes, source: list[_Token]) -> str:
    """The query for `name` or `name (columns)`."""
    opens = next((at for at, each in enumerate(source) if each.is_word("(")), len(source))
    name = data[source[0].begins : source[opens - 1].ends].decode()
    if opens == len(source):
        return f"SELECT * FROM {name}"
    columns = data[source[opens].ends : source[-1].begins].decode()
    return f"SELECT {columns}\nFROM {name}"


def _literal(token: _Token, connection: Any) -> str:
    """The value of a string, which DuckDB can write in several ways."""
    # An unfinished result would keep the connection busy.
    ((value,),) = connection.execute(f"SELECT {token.text}").fetchall()
    if not isinstance(value, str):
        raise SqlError(f"COPY: {token.text} is not text")
    return value


def _options(tokens: list[_Token], connection: Any) -> dict[str, str]:
    """The options in parentheses; the value of an option without one is empty."""
    if tokens and tokens[0].is_word("with"):
        tokens = tokens[1:]
    if not tokens:
        return {}
    if not tokens[0].is_word("("):
        raise SqlError("COPY: write options in parentheses, as in (FORMAT csv, HEADER true)")
    found: dict[str, str] = {}
    for part in _comma_parts(tokens[1:-1]):
        name = part[0].text.strip('"').upper()
        if name not in OPTIONS:
            raise SqlError(f"COPY: option {name} is not supported: there are {', '.join(OPTIONS)}")
        if len(part) > 2:
            raise SqlError(f"COPY: give option {name} one value")
        found[name] = ""
        for value in part[1:]:
            text = value.text.strip('"')
            found[name] = _literal(value, connection) if value.is_string else text
    return found


def _comma_parts(tokens: list[_Token]) -> Iterator[list[_Token]]:
    part: list[_Token] = []
    depth = 0
    for token in tokens:
        depth += token.is_word("(") - token.is_word(")")
        if depth == 0 and token.is_word(","):
            yield part
            part = []
        else:
            part.append(token)
    # The list may end with a comma.
    if part:
        yield part


def _checked(query: str, file: str, options: dict[str, str]) -> CopyStatement:
    found = options.get(FORMAT, "").lower()
    if FORMAT not in options:
        found = ENDINGS.get(PurePosixPath(file).suffix.lower(), "")
        if not found:
            raise SqlError(
                f"COPY: the name '{file}' does not end with {', '.join(ENDINGS)}: rename it, or add"
                f" an option such as (FORMAT {PARQUET})"
            )
    if found not in FORMATS:
        raise SqlError(f"COPY: format '{found}' is not supported: there are {', '.join(FORMATS)}")
    for name in options:
        if OPTIONS[name] not in ("", found):
            raise SqlError(f"COPY: option {name} is for {OPTIONS[name]}, not for {found}")
    return CopyStatement(
        query,
        file,
        found,
        header=_truth(options.get(HEADER, "")),
        delimiter=_delimiter(options.get(DELIMITER, ",")),
        compression=_compression(options.get(COMPRESSION, SNAPPY)),
    )


def _truth(value: str) -> bool:
    if value.lower() not in _TRUE | _FALSE:
        raise SqlError(f"COPY: option {HEADER} is true or false, not '{value}'")
    return value.lower() in _TRUE


def _delimiter(value: str) -> str:
    # DuckDB accepts this as a tab, too.
    value = "\t" if value == "\\t" else value
    if len(value) != 1 or value in '"\r\n\0':
        raise SqlError(f"COPY: option {DELIMITER} is one character, such as ';', and not a quote")
    return value


def _compression(value: str) -> str:
    if value.lower() not in COMPRESSIONS:
        raise SqlError(
            f"COPY: compression '{value}' is not supported: there are {', '.join(COMPRESSIONS)}"
        )
    return value.lower()
