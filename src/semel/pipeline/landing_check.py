"""What a landing file makes of recorded messages, before anything lands; and columns from them.

The check runs the same expressions and decoders as the landing, on the last messages of the record.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from semel.pipeline.cluster_by import check_cluster_by
from semel.pipeline.dead_letters import count_messages, schema_json
from semel.pipeline.errors import OptionError, PipelineError, TableError, UnfitRows
from semel.pipeline.landing_file import ALWAYS, LandedTable
from semel.pipeline.landing_plan import LandingPlan, landing_table
from semel.pipeline.sink import NAME_RULE, NOT_IN_NAMES
from semel.pipeline.source_columns import DATE
from semel.pipeline.spark_names import quoted_name
from semel.pipeline.stream_record import StreamRecord
from semel.pipeline.table import LandingBatch, Table
from semel.pipeline.table_rows import TableShape, needed_columns, rows_of_tables, without_ansi
from semel.pipeline.table_split import TableSplit
from semel.pipeline.topic_template import LandingTemplate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Rows of a table, and topics and reasons, that a check shows.
SHOWN_ROWS: Final = 3
SHOWN_TOPICS: Final = 10
# Text of payloads from which columns are inferred.
INFERRED_BYTES: Final = 8 * 1024 * 1024
# The decoders that `_kind_of` finds: what else each of them decodes.
_DECODES_TOO: Final = {
    "raw": frozenset({"text", "json_text", "json", "number"}),
    "text": frozenset({"json_text", "json", "number"}),
    "json_text": frozenset({"json", "number"}),
    "json": frozenset[str](),
    "number": frozenset[str](),
}


@dataclass(frozen=True)
class BadMessages:
    """Messages that cannot be decoded, for the same reason."""

    reason: str
    column: str | None
    count: int
    # One of them.
    topic: str
    node: str
    seq: int


@dataclass(frozen=True)
class TableCheck:
    """What a table would get of the messages."""

    table: str
    topic: str
    # Messages that the template takes; the rows that they become; messages without a row, because
    # of the filter or an empty array.
    taken: int
    rows: int
    left_out: int
    bad: tuple[BadMessages, ...]
    # Names and types of all columns.
    columns: dict[str, str]
    # The first rows.
    sample: tuple[dict[str, Any], ...]
    # Columns that the table will get, and why it cannot take the rows.
    new_columns: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class FileCheck:
    """What a landing file makes of the last messages of a stream."""

    messages: int
    tables: tuple[TableCheck, ...]
    # Messages that no table takes, and some of their topics.
    unmatched: int
    unmatched_topics: tuple[str, ...] = field(default=())


def check_landing(spark: "SparkSession", plan: LandingPlan, count: int) -> FileCheck:
    """Check the landing file against the last messages. Raises PipelineError."""
    assert plan.file is not None
    tables = plan.file.tables
    messages = last_messages(spark, plan, count, needed_columns(tables))
    with without_ansi(spark):
        frame, shapes = rows_of_tables(messages, tables, {})
        check_clusters(tables, shapes)
        check_dead_letters(plan, schema_json(messages.columns))
        found = frame.toArrow()
    # A message has several rows if a table explodes an array.
    by_message = found.group_by(["node", "seq"], use_threads=False).aggregate([("topic", "first")])
    topics = by_message.column("topic_first").to_pylist()
    is_taken = {
        topic: [each.template.explain(topic) is None for each in tables] for topic in set(topics)
    }
    checks = []
    for place, (table, shape) in enumerate(zip(tables, shapes, strict=True)):
        taken = sum(is_taken[topic][place] for topic in topics)
        checks.append(_check_table(plan, table, shape, found, place, taken))
    lost = [topic for topic in topics if not any(is_taken[topic])]
    return FileCheck(
        messages=len(topics),
        tables=tuple(checks),
        unmatched=len(lost),
        unmatched_topics=tuple(topic for topic, _ in Counter(lost).most_common(SHOWN_TOPICS)),
    )


def _check_table(
    plan: LandingPlan,
    table: LandedTable,
    shape: TableShape,
    found: pa.Table,
    place: int,
    taken: int,
) -> TableCheck:
    rows, letters = TableSplit(place, shape, plan.stream).split(found)
    new, problem = fit_of(plan, shape)
    columns = {
        each.name: each.dataType.simpleString()
        for each in StructType.fromJson(json.loads(shape.schema)).fields
    }
    return TableCheck(
        table=table.name,
        topic=table.template.text,
        taken=taken,
        rows=rows.num_rows,
        left_out=taken - count_messages(rows) - letters.num_rows,
        bad=_grouped(letters),
        columns=columns,
        sample=tuple(rows.slice(0, SHOWN_ROWS).to_pylist()),
        new_columns=new,
        problem=problem,
    )


def check_clusters(tables: Sequence[LandedTable], shapes: Sequence[TableShape]) -> None:
    """Raise OptionError unless the rows of each table can be sorted as it says."""
    for table, shape in zip(tables, shapes, strict=True):
        fields = StructType.fromJson(json.loads(shape.schema)).fields
        kinds = {each.name: each.dataType.simpleString() for each in fields}
        try:
            check_cluster_by(table.cluster_by, kinds, table.partition_by)
        except OptionError as problem:
            raise OptionError(f"table {table.name}: {problem}") from None


def fit_of(plan: LandingPlan, shape: TableShape) -> tuple[tuple[str, ...], str | None]:
    """The columns that an existing table will get, and why it cannot take the rows, if so."""
    table = Table(landing_table(plan.lake, shape.name))
    try:
        new = table.new_columns_for(
            LandingBatch([], shape.schema, shape.partition_by, stream=plan.stream)
        )
    except TableError as problem:
        return (), (
            f"{_fact_of(problem)}; a landing file cannot change that: give the table another name"
            " there, and fill it with `semel land backfill`"
        )
    return tuple(new), None


def check_dead_letters(plan: LandingPlan, schema: str) -> None:
    """Raise OptionError if there is a table that cannot take the dead letters of this schema.

    Otherwise that would be noticed with the first of them.
    """
    assert plan.file is not None
    table = Table(landing_table(plan.lake, plan.file.dead_letters))
    try:
        table.new_columns_for(LandingBatch([], schema, (DATE,)))
    except TableError as problem:
        raise OptionError(
            f"dead letters cannot land: {_fact_of(problem)}; set dead_letters in"
            f" {plan.file.path} to another name"
        ) from None


def _fact_of(problem: TableError) -> str:
    """Why a table cannot take rows, without advice about options of Spark."""
    return problem.fact if isinstance(problem, UnfitRows) else str(problem)


def _grouped(letters: pa.Table) -> tuple[BadMessages, ...]:
    """Dead letters by reason, the most frequent first."""
    groups: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for each in letters.drop_columns(["payload"]).to_pylist():
        groups.setdefault((each["reason"], each["column_name"]), []).append(each)
    found = [
        BadMessages(
            reason,
            column,
            len(rows),
            topic=rows[0]["topic"],
            node=rows[0]["node"],
            seq=rows[0]["seq"],
        )
        for (reason, column), rows in groups.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.count))


def last_messages(
    spark: "SparkSession",
    plan: LandingPlan,
    count: int,
    columns: Iterable[str],
    template: LandingTemplate | None = None,
) -> "DataFrame":
    """The last messages of the record (of a template), at most `count`. Raises PipelineError."""
    record = StreamRecord(plan.root_address, plan.stream)
    first = {}
    for node in plan.root.nodes(plan.stream):
        held = record.ranges(node)
        if held:
            # A template may take few of the messages, so more of them are read.
            reach = count if template is None else 100 * count
            first[node] = max(held[0][0], held[-1][1] - reach + 1)
    if not first:
        raise PipelineError(
            f"{plan.root.address} has no sealed messages of stream {plan.stream} yet: publish some,"
            " and wait a few seconds"
        )
    messages = (
        spark.read.format("mqtt")
        .option("root", plan.root_address)
        .option("stream", plan.stream)
        .option("start", json.dumps(first))
        .option("columns", ",".join(columns))
        .load()
    )
    if template is not None:
        messages = messages.where(template.takes(functions.col("topic")))
    return messages.orderBy(functions.desc("received"), functions.desc("seq")).limit(count)


# --- columns from messages ------------------------------------------------------------------------


@dataclass(frozen=True)
class InferredTable:
    """A table for the messages of a template, from what was recorded."""

    name: str
    topic: str
    decoder: str
    # Spark's DDL; None if the decoder needs none.
    columns: str | None
    messages: int
    # Messages that look like another format; those of them that the decoder cannot decode; and the
    # decoders for them.
    others: int
    undecodable: int = 0
    other_decoders: tuple[str, ...] = ()
    # Columns with arrays of structs, which could become rows.
    arrays: tuple[str, ...] = ()
    # Keys that cannot be columns, and why.
    left_out: dict[str, str] = field(default_factory=dict)

    def as_toml(self) -> str:
        """The table as a part of a landing file."""
        lines = [
            "[[table]]",
            f"name = {json.dumps(self.name)}",
            f"topic = {json.dumps(self.topic)}",
            f"decoder = {json.dumps(self.decoder)}",
        ]
        if self.columns is not None:
            lines.append(f"columns = {json.dumps(self.columns)}")
        for key, reason in self.left_out.items():
            lines.append(f"# left out of columns: {json.dumps(key)}: {reason}")
        for name in self.arrays:
            lines.append(f"# explode = {json.dumps(name)}  # a row for each element")
        return "\n".join(lines) + "\n"


def infer_table(
    spark: "SparkSession", plan: LandingPlan, template: LandingTemplate, count: int
) -> InferredTable:
    """A table for the last messages of a template. Raises PipelineError."""
    columns = ["node", "seq", "received", "topic", "payload"]
    found = last_messages(spark, plan, count, columns, template).toArrow()
    payloads: list[bytes] = found.column("payload").to_pylist()
    if not payloads:
        raise PipelineError(
            f"none of the last messages of stream {plan.stream} has a topic of {template.text}"
        )
    objects, size = [], 0
    kinds: Counter[str] = Counter()
    for payload in payloads:
        kind = _kind_of(payload)
        kinds[kind] += 1
        if kind == "json" and size < INFERRED_BYTES:
            size += len(payload)
            objects.append(payload.decode())
    decoder, messages = kinds.most_common(1)[0]
    ddl = None
    arrays: tuple[str, ...] = ()
    left_out: dict[str, str] = {}
    if decoder == "json":
        keys = _inferred_columns(spark, objects)
        fields, left_out = _possible_columns(keys, template)
        if not fields.fields:
            shown = "; ".join(f"{json.dumps(key)}: {reason}" for key, reason in left_out.items())
            raise OptionError(f"no key of the JSON objects can be a column: {shown}")
        ddl = _columns_ddl(fields)
        arrays = tuple(each.name for each in fields.fields if _is_array_of_structs(each.dataType))
    elif decoder == "number":
        numbers = [each for each in payloads if _kind_of(each) == "number"]
        is_whole = all(each.strip().lstrip(b"+-").isdigit() for each in numbers)
        ddl = "value BIGINT" if is_whole else "value DOUBLE"
    return InferredTable(
        name=_name_of(template),
        topic=template.text,
        decoder=decoder,
        columns=ddl,
        messages=len(payloads),
        others=len(payloads) - messages,
        undecodable=sum(
            number
            for kind, number in kinds.items()
            if kind != decoder and kind not in _DECODES_TOO[decoder]
        ),
        other_decoders=tuple(sorted(kind for kind in kinds if kind != decoder)),
        arrays=arrays,
        left_out=left_out,
    )


def _kind_of(payload: bytes) -> str:
    """The decoder for a payload."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "raw"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "text"
    if isinstance(value, dict):
        return "json"
    return "number" if type(value) in (int, float) else "json_text"


def _inferred_columns(spark: "SparkSession", objects: list[str]) -> StructType:
    """The columns of these JSON objects, as Spark infers them."""
    text = functions.lit(f"[{','.join(objects)}]")
    options = {"inferTimestamp": "true", "timeZone": "UTC"}
    ddl = spark.range(1).select(functions.schema_of_json(text, options)).collect()[0][0]
    kind = DataType.fromDDL(ddl)
    assert isinstance(kind, ArrayType)
    element = kind.elementType
    if not isinstance(element, StructType) or not element.fields:
        raise OptionError("the JSON objects of the last messages are empty: there is no column")
    return element


def _possible_columns(
    keys: StructType, template: LandingTemplate
) -> tuple[StructType, dict[str, str]]:
    """Those of these keys that can be columns of a table; the others, and why they cannot."""
    taken = {name.lower() for name in (*ALWAYS, DATE, *(each.column for each in template.named))}
    left_out: dict[str, str] = {}
    fields = []
    for each in keys.fields:
        if any(sign in each.name for sign in NOT_IN_NAMES):
            left_out[each.name] = NAME_RULE
        elif each.name.lower() in taken:
            left_out[each.name] = "the table has another column of this name"
        else:
            fields.append(each)
    found = _without_case_pairs(StructType(fields), "", left_out)
    assert isinstance(found, StructType)
    return found, left_out


def _without_case_pairs(kind: DataType, path: str, left_out: dict[str, str]) -> DataType:
    """The type without fields that differ by case only, which are added to `left_out`."""
    if isinstance(kind, ArrayType):
        element = _without_case_pairs(kind.elementType, path, left_out)
        return ArrayType(element, kind.containsNull)
    if not isinstance(kind, StructType):
        return kind
    times = Counter(name.lower() for name in kind.names)
    fields = []
    for each in kind.fields:
        here = f"{path}{each.name}"
        inner = _without_case_pairs(each.dataType, f"{here}.", left_out)
        if times[each.name.lower()] > 1:
            left_out[here] = "another key differs by case only, which Delta ignores"
        elif _has_fields(inner):
            fields.append(StructField(each.name, inner, each.nullable))
        else:
            left_out[here] = "none of its keys can be a column"
    return StructType(fields)


def _has_fields(kind: DataType) -> bool:
    """Whether the type has a value: a struct needs fields."""
    if isinstance(kind, ArrayType):
        return _has_fields(kind.elementType)
    return not isinstance(kind, StructType) or bool(kind.fields)


def _is_array_of_structs(kind: DataType) -> bool:
    return isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType)


def _columns_ddl(columns: StructType) -> str:
    """Spark's DDL, with simple types in capitals."""
    return ", ".join(
        f"{_quoted(each.name)} {each.dataType.simpleString().upper()}"
        if not isinstance(each.dataType, StructType | ArrayType)
        else f"{_quoted(each.name)} {_type_ddl(each.dataType)}"
        for each in columns.fields
    )


def _type_ddl(kind: DataType) -> str:
    """Spark's DDL of a type, with quoted names where they need it: `simpleString` has none."""
    if isinstance(kind, ArrayType):
        return f"array<{_type_ddl(kind.elementType)}>"
    if isinstance(kind, StructType):
        fields = (f"{_quoted(each.name)}:{_type_ddl(each.dataType)}" for each in kind.fields)
        return f"struct<{','.join(fields)}>"
    return str(kind.simpleString())


def _quoted(name: str) -> str:
    is_plain = name.isascii() and name.isidentifier()
    return name if is_plain else quoted_name(name)


def _name_of(template: LandingTemplate) -> str:
    """A name for a table: the last literal level."""
    named = {each.at for each in template.named}
    for place in reversed(range(len(template.levels))):
        level = template.levels[place]
        if place not in named and level not in ("+", "#", ""):
            name = "".join(sign if sign.isalnum() else "_" for sign in level).strip("_").lower()
            if name:
                return name
    return "messages_typed"
