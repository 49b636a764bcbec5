"""The process that runs the SQL queries of the page, one after the other.

It is a process of its own, so that a query that runs too long can be ended, and one that needs too
much memory harms nobody. It reads requests from standard input, one JSON object per line, and
writes an answer of one line to each. It ends with its input.

    ▶ {"lake": …, "root": …, "data": …, "stream": …, "table": …, "memory": …, "query": …}
    ◀ {"columns": [{"name": …, "type": …}], "rows": [[…]], "more": false, "notes": []}
    ◀ {"error": "a sentence"}
"""

import json
import math
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from semel.extras import MissingExtra
from semel.pipeline.errors import PipelineError
from semel.store.roots import RootError
from semel.store.schema import Unusable
from semel.store.segments import RecordError
from semel.up.sql import LakeSql, RecordLocation
from semel.up.sql_errors import SqlError
from semel.up.sql_session import SqlSession

# Rows of a result that are shown, and the characters of all of their values.
SHOWN_ROWS: Final = 1_000
SHOWN_CHARACTERS: Final = 4_000_000
# Characters of one value, and bytes of a binary one.
VALUE_CHARACTERS: Final = 10_000
VALUE_BYTES: Final = 256
# A larger integer is not exact in JavaScript.
_EXACT_INTEGER: Final = 2**53

Values = dict[str, Any]


def answer(request: Values) -> Values:
    """The answer to a request."""
    data = request.get("data")
    record = None
    if request.get("root") is not None or data is not None:
        record = RecordLocation(
            request.get("root"),
            None if data is None else Path(data),
            request["stream"],
            request["table"],
        )
    try:
        if "query" not in request:
            return _names(request["lake"], record, request["memory"])
        with LakeSql(request["lake"], record=record, memory=request["memory"]) as sql:
            return _result(sql, request["query"])
    except (
        *(SqlError, PipelineError, RootError, Unusable, RecordError, MissingExtra, OSError),
    ) as problem:
        return {"error": str(problem)}


def _names(lake: str, record: RecordLocation | None, memory: str) -> Values:
    """The tables and views that can be queried, with their columns."""
    with SqlSession(lambda: (lake, record), memory=memory) as session:
        columns = session.columns()
        return {
            "tables": [
                {"name": name, "kind": kind, "columns": columns.get(name, [])}
                for name, kind in session.tables()
            ]
        }


def _result(sql: LakeSql, query: str) -> Values:
    with sql.query(query) as found:
        columns = [{"name": field.name, "type": _kind(field.type)} for field in found.schema]
        rows: list[list[Any]] = []
        size = 0
        is_complete = True
        for batch in found.batches:
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if len(rows) == SHOWN_ROWS or size > SHOWN_CHARACTERS:
                    is_complete = False
                    break
                shown = [plain_value(each) for each in row]
                size += sum(len(each) for each in shown if isinstance(each, str))
                rows.append(shown)
            if not is_complete:
                break
    return {"columns": columns, "rows": rows, "more": not is_complete, "notes": sql.notes}


def plain_value(value: Any) -> Any:
    """A value for JSON, which the page can show without loss, or as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        number = float(value)
        return number if math.isfinite(number) and Decimal(repr(number)) == value else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, bytes):
        return _shown_bytes(value)
    if isinstance(value, str):
        return value if len(value) <= VALUE_CHARACTERS else f"{value[:VALUE_CHARACTERS]}…"
    return plain_value(json.dumps(_nested(value), ensure_ascii=False))


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _nested(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_nested(each) for each in value]
    return plain_value(value)


def _shown_bytes(value: bytes) -> str:
    """Bytes as text if they are that, otherwise as hexadecimal with a leading \\x."""
    try:
        return str(plain_value(value.decode("utf-8")))
    except UnicodeDecodeError:
        cut = "…" if len(value) > VALUE_BYTES else ""
        return f"\\x{value[:VALUE_BYTES].hex()}{cut}"


def _kind(kind: Any) -> str:
    import pyarrow.types as types

    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else "other"


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
