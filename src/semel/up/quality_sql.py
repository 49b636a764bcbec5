"""The SQL of `semel quality`: statements that measure each client and topic of a stream.

The rows of the range become a temporary table without their payloads. All other statements read
tables that these make, so that the record is read once and each payload is parsed once:

    rows      one row per message: time, size, hash of the payload, number, event time
    devices   a number for each client and topic
    arrived   the messages of each device in order of arrival, with the interval before each
    runs      where a sequence is named: the numbers between two restarts
    sums      one row per device: counts, sums and the chart
    counted   how often each interval, size, lateness and rate per minute occurs, per device
    medians   the medians and percentiles of these
    spreads   the outliers of sizes and of rates

DuckDB's own median keeps all values in memory, outside of its limit. Here, values are grouped and
summed up in order, which DuckDB does in files if they do not fit.

The order of arrival is the order of `seq` within a node. A client that has moved to another node
has rows of both: they are merged by time, where a clock that was set back counts as standing still
(running maximum), so that rows of one node keep their order.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from semel.up.sql import COMPUTED
from semel.up.sql_connection import quoted
from semel.up.sql_errors import SqlError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
# Columns of the chart.
BUCKETS: Final = 24

# A number that is more than this below the one before is a restart, not a late message.
RESTART_FALL: Final = 1_000
# So is one from 0 to this, if it is more than this below the one before.
RESTART_SMALL: Final = 10
# Sequence numbers are those of 64 bits, with or without a sign.
LOWEST_NUMBER: Final = -(2**63)
HIGHEST_NUMBER: Final = 2**64 - 1
MAXIMUM_COUNT: Final = 2**63 - 1

# A number is seconds since 1970 below this (the year 5138), else milliseconds, and no time beyond.
MAXIMUM_SECONDS: Final = 1e11
MAXIMUM_MILLISECONDS: Final = 1e14
# Seconds by which the clock of a device may be ahead.
CLOCK_TOLERANCE: Final = 1.0

# The usual interval counts as at least this, in seconds, when silences are found.
LEAST_RHYTHM: Final = 1.0
# A deviation counts as at least 1, and at least this part of the median.
LEAST_DEVIATION: Final = 0.05

# Kinds of values in `counted`.
INTERVAL, SIZE, LATENESS, RATE = range(1, 5)

_STEP: Final = r'\.(?:"[^"*\\]+"|[^.\[\]"*\s\\]+)|\[[0-9]{1,9}\]'
_PATH: Final = re.compile(rf"\$(?:{_STEP})*")


@dataclass(frozen=True)
class QualityQuery:
    """What to measure: a range of time [begin, end) in microseconds, filters and bounds."""

    begin: int
    end: int
    topic: str | None = None
    client_id: str | None = None
    # JSON paths in the payload.
    sequence: str | None = None
    event_time: str | None = None
    # Silence is more than this many times the usual interval.
    silence: float = 5.0
    # An outlier is more than this many deviations from the median.
    deviations: float = 5.0
    # Seconds.
    repeat_within: float = 1.0
    late_after: float = 60.0


def is_json_path(text: str) -> bool:
    """Whether a text is a path to one value: $, $.name, $.a.b, $."any name" or $.list[0]."""
    return _PATH.fullmatch(text) is not None


def topic_pattern(topic_filter: str) -> str:
    """A regular expression of RE2 for the names that a valid topic filter matches.

    It has to match the whole name, and agrees with `semel.mqtt.topics.topic_matches`.
    """
    levels = topic_filter.split("/")
    is_open = levels[-1] == "#"
    if is_open:
        levels.pop()
    patterns = ["[^/]*" if level == "+" else _escaped(level) for level in levels]
    # [MQTT-4.7.2-1] A wildcard at the beginning does not match names that begin with $.
    if topic_filter == "#":
        return "(?s)(?:[^$].*)?"
    if topic_filter[0] == "+":
        patterns[0] = "(?:[^$/][^/]*)?"
    # "a/#" matches "a", too.
    return "(?s)" + "/".join(patterns) + ("(?:/.*)?" if is_open else "")


def _escaped(text: str) -> str:
    return "".join(
        each if each.isalnum() or not each.isascii() else f"\\x{{{ord(each):x}}}" for each in text
    )


def literal(text: str) -> str:
    """A text as SQL quotes it. Raises SqlError if it is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SqlError(f"{text!a} is not UTF-8") from None
    return "'" + text.replace("'", "''") + "'"


def statements(query: QualityQuery, source: str) -> str:
    """The statements; the last one returns the rows, the worst first."""
    parts = [
        _table("rows", _rows(query, source)),
        _table("devices", _DEVICES),
        _table("arrived", _arrived(query)),
        # The memory is needed for the others.
        "DROP TABLE semel_quality_rows",
        _table("runs", _RUNS),
        _table("sums", _sums(query)),
        _table("counted", _COUNTED),
        _table("medians", _MEDIANS),
        _table("spreads", _spreads(query)),
        _result(query),
    ]
    return ";\n".join(parts)


def _table(name: str, query: str) -> str:
    return f"CREATE TEMP TABLE semel_quality_{name} AS {query}"


# --- messages -------------------------------------------------------------------------------------


def _moment(microseconds: int) -> str:
    return f"TIMESTAMPTZ '{(EPOCH + timedelta(microseconds=microseconds)).isoformat(' ')}'"


def _rows(query: QualityQuery, source: str) -> str:
    conditions = [f"received >= {_moment(query.begin)}", f"received < {_moment(query.end)}"]
    if query.topic is not None:
        pattern = topic_pattern(query.topic)
        conditions.append(f"regexp_full_match(topic, {literal(pattern)})")
    if query.client_id is not None:
        conditions.append(f"client_id = {literal(query.client_id)}")
    number, event = (
        "NULL" if path is None else f"json_extract_string(document, {literal(path)})"
        for path in (query.sequence, query.event_time)
    )
    document = "NULL" if query.sequence is None and query.event_time is None else COMPUTED["json"]
    return f"""
    SELECT client_id, topic, node, seq, moment, size, digest, dup,
        CASE WHEN regexp_full_match(number, '-?[0-9]{{1,20}}([.]0+)?')
            AND CAST(regexp_extract(number, '-?[0-9]+') AS HUGEINT)
                BETWEEN {LOWEST_NUMBER} AND {HIGHEST_NUMBER}
            THEN CAST(regexp_extract(number, '-?[0-9]+') AS HUGEINT) END AS number,
        {_EVENT} AS event
    FROM (
        SELECT * EXCLUDE (document), CAST({number} AS VARCHAR) AS number,
            CAST({event} AS VARCHAR) AS event
        FROM (
            SELECT client_id, topic, node, seq, epoch_us(received) AS moment,
                coalesce(octet_length(payload), 0) AS size, hash(payload) AS digest,
                coalesce(dup, false) AS dup, {document} AS document
            FROM {quoted(source)} WHERE {" AND ".join(conditions)}
        )
    )"""


_EVENT: Final = f"""
        CASE WHEN regexp_full_match(event, '-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?') THEN
            CASE WHEN abs(TRY_CAST(event AS DOUBLE)) < {MAXIMUM_SECONDS}
                THEN CAST(round(TRY_CAST(event AS DOUBLE) * 1e6) AS BIGINT)
            WHEN abs(TRY_CAST(event AS DOUBLE)) < {MAXIMUM_MILLISECONDS}
                THEN CAST(round(TRY_CAST(event AS DOUBLE) * 1e3) AS BIGINT) END
        WHEN regexp_full_match(event, '[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([T ].*)?')
            THEN epoch_us(TRY_CAST(event AS TIMESTAMPTZ)) END"""

_DEVICES: Final = """
    SELECT row_number() OVER () AS device, client_id, topic
    FROM (SELECT DISTINCT client_id, topic FROM semel_quality_rows)"""


def _arrived(query: QualityQuery) -> str:
    """The messages in order, each with its number of the run and whether it is a repeat."""
    return f"""
    WITH clocked AS (
        SELECT device, node, seq, moment, size, digest, dup, number, event,
            max(moment) OVER (PARTITION BY device, node ORDER BY seq) AS clock
        FROM semel_quality_rows AS r JOIN semel_quality_devices AS d
            ON r.topic IS NOT DISTINCT FROM d.topic
            AND r.client_id IS NOT DISTINCT FROM d.client_id
    ), ordered AS (
        SELECT device, row_number() OVER arrival AS place, moment, size, dup, number, event,
            moment - lag(moment) OVER arrival AS pause,
            digest = lag(digest) OVER arrival AND size = lag(size) OVER arrival AS is_equal,
            lag(number IGNORE NULLS) OVER arrival AS before
        FROM clocked WINDOW arrival AS (PARTITION BY device ORDER BY clock, node, seq)
    )
    SELECT device, place, moment, size, dup, number, event, pause,
        number IS NULL AND NOT dup AND is_equal
            AND pause >= 0 AND pause < {round(query.repeat_within * SECOND)} AS is_repeat,
        sum(CASE WHEN before - number > {RESTART_FALL} OR
                (number BETWEEN 0 AND {RESTART_SMALL} AND before - number > {RESTART_SMALL})
            THEN 1 ELSE 0 END) OVER (PARTITION BY device ORDER BY place) AS run
    FROM ordered"""


# Without a sequence, no row has a number, and the table is empty.
_RUNS: Final = """
    WITH numbered AS (
        SELECT device, run, number, place, dup,
            max(number) OVER (PARTITION BY device, run ORDER BY place
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
        FROM semel_quality_arrived WHERE number IS NOT NULL
    ), numbers AS (
        SELECT device, run, number, arg_min(coalesce(number < highest, false), place) AS is_below,
            count(*) FILTER (NOT dup) AS times, arg_min(dup, place) AS is_first_dup
        FROM numbered GROUP BY ALL
    )
    SELECT device, run, max(number) - min(number) + 1 - count(*) AS missing,
        count(*) FILTER (is_below) AS out_of_order,
        sum(CASE WHEN is_first_dup THEN times ELSE times - 1 END) AS repeats
    FROM numbers GROUP BY device, run"""


# --- devices --------------------------------------------------------------------------------------


def _sums(query: QualityQuery) -> str:
    chart = ", ".join(f"count(*) FILTER (bucket = {each})" for each in range(BUCKETS))
    late = round(query.late_after * SECOND)
    return f"""
    SELECT device, count(*) AS messages, sum(size) AS bytes,
        min(moment) AS first, max(moment) AS last,
        count(*) FILTER (dup) AS dup, count(*) FILTER (is_repeat) AS repeats,
        max(pause) FILTER (pause >= 0) AS longest, count(number) AS numbered,
        count(event) AS dated, max(moment - event) AS latest,
        count(*) FILTER (moment - event > {late}) AS late,
        count(*) FILTER (event - moment > {round(CLOCK_TOLERANCE * SECOND)}) AS future,
        [{chart}] AS chart
    FROM (
        SELECT *, (moment - {query.begin}) * {BUCKETS} // {query.end - query.begin} AS bucket
        FROM semel_quality_arrived
    )
    GROUP BY device"""


# The first and the last minute of a device are incomplete; minutes without a message are silence.
_COUNTED: Final = f"""
    SELECT device, kind, value, count(*) AS weight FROM (
        SELECT device, {INTERVAL} AS kind, pause AS value
        FROM semel_quality_arrived WHERE pause >= 0
        UNION ALL SELECT device, {SIZE}, size FROM semel_quality_arrived
        UNION ALL SELECT device, {LATENESS}, moment - event
        FROM semel_quality_arrived WHERE event IS NOT NULL
        UNION ALL
        SELECT device, {RATE}, times FROM (
            SELECT device, moment // {MINUTE} AS minute, count(*) AS times
            FROM semel_quality_arrived GROUP BY ALL
        ) JOIN semel_quality_sums USING (device)
        WHERE minute * {MINUTE} >= first AND (minute + 1) * {MINUTE} <= last
    )
    GROUP BY ALL"""

_RANKED: Final = """
        sum(weight) OVER (PARTITION BY device, kind ORDER BY value) AS upto,
        sum(weight) OVER (PARTITION BY device, kind) AS total"""
_MEDIAN: Final = """
        (min(value) FILTER (upto * 2 >= total) + min(value) FILTER (upto * 2 > total)) / 2.0"""

_MEDIANS: Final = f"""
    SELECT device, kind, {_MEDIAN} AS median, min(value) FILTER (upto * 100 >= total * 99) AS p99
    FROM (SELECT device, kind, value, {_RANKED} FROM semel_quality_counted)
    GROUP BY device, kind"""


def _spreads(query: QualityQuery) -> str:
    return f"""
    WITH distances AS (
        SELECT device, kind, abs(value - median) AS value, sum(weight) AS weight, median
        FROM semel_quality_counted JOIN semel_quality_medians USING (device, kind)
        WHERE kind IN ({SIZE}, {RATE}) GROUP BY ALL
    ), deviations AS (
        SELECT device, kind, {_MEDIAN} AS deviation
        FROM (SELECT device, kind, value, {_RANKED} FROM distances)
        GROUP BY device, kind
    )
    SELECT device, kind, coalesce(sum(weight) FILTER (
        value > {query.deviations!r} * greatest(deviation, 1, median * {LEAST_DEVIATION})
    ), 0) AS outliers
    FROM distances JOIN deviations USING (device, kind) GROUP BY device, kind"""


def _result(query: QualityQuery) -> str:
    bound = f"{query.silence!r} * greatest(rhythm, {LEAST_RHYTHM * SECOND})"
    has_numbers = "true" if query.sequence is not None else "false"
    has_times = "true" if query.event_time is not None else "false"
    return f"""
    WITH usual AS (
        SELECT device,
            max(median) FILTER (kind = {INTERVAL}) AS rhythm,
            max(median) FILTER (kind = {SIZE}) AS size_median,
            max(median) FILTER (kind = {LATENESS}) AS lateness,
            max(p99) FILTER (kind = {LATENESS}) AS lateness_p99,
            max(median) FILTER (kind = {RATE}) AS rate_median
        FROM semel_quality_medians GROUP BY device
    ), quiet AS (
        SELECT device, coalesce(sum(weight) FILTER (value > {bound}), 0) AS silences
        FROM semel_quality_counted JOIN usual USING (device) WHERE kind = {INTERVAL} GROUP BY device
    ), outlying AS (
        SELECT device, max(outliers) FILTER (kind = {SIZE}) AS size_outliers,
            max(outliers) FILTER (kind = {RATE}) AS rate_outliers
        FROM semel_quality_spreads GROUP BY device
    ), gaps AS (
        SELECT device, least(sum(missing), {MAXIMUM_COUNT}) AS missing, count(*) - 1 AS restarts,
            sum(out_of_order) AS out_of_order, sum(repeats) AS repeated
        FROM semel_quality_runs GROUP BY device
    )
    SELECT client_id, topic, messages, CAST(bytes AS BIGINT) AS bytes,
        make_timestamp(first) AT TIME ZONE 'UTC' AS first_received,
        make_timestamp(last) AT TIME ZONE 'UTC' AS last_received,
        CASE WHEN last > first
            THEN (messages - 1) * {float(MINUTE)} / (last - first) END AS per_minute,
        CASE WHEN {has_numbers} THEN CAST(coalesce(missing, 0) AS BIGINT) END AS missing,
        CASE WHEN {has_numbers} THEN CAST(coalesce(restarts, 0) AS BIGINT) END AS restarts,
        CASE WHEN {has_numbers}
            THEN CAST(coalesce(out_of_order, 0) AS BIGINT) END AS out_of_order,
        CASE WHEN {has_numbers} THEN messages - numbered END AS without_number,
        CAST(repeats + coalesce(repeated, 0) AS BIGINT) AS repeats, dup,
        lateness / {float(SECOND)} AS lateness_median,
        lateness_p99 / {float(SECOND)} AS lateness_p99,
        latest / {float(SECOND)} AS lateness_maximum,
        CASE WHEN {has_times} THEN late END AS late,
        CASE WHEN {has_times} THEN future END AS from_future,
        CASE WHEN {has_times} THEN messages - dated END AS without_time,
        rhythm / {float(SECOND)} AS rhythm,
        longest / {float(SECOND)} AS longest_silence,
        CAST(silences AS BIGINT) AS silences,
        ({query.end} - last) / {float(SECOND)} AS since_last,
        CASE WHEN rhythm IS NOT NULL THEN {query.end} - last > {bound} END AS is_silent,
        CAST(size_median AS DOUBLE) AS size_median,
        CAST(size_outliers AS BIGINT) AS size_outliers,
        CAST(rate_median AS DOUBLE) AS rate_median,
        CAST(rate_outliers AS BIGINT) AS rate_outliers,
        chart
    FROM semel_quality_devices JOIN semel_quality_sums USING (device) LEFT JOIN usual USING (device)
        LEFT JOIN quiet USING (device) LEFT JOIN outlying USING (device)
        LEFT JOIN gaps USING (device)
    ORDER BY coalesce(is_silent, false) DESC, coalesce(missing, 0) DESC, coalesce(late, 0) DESC,
        repeats DESC, coalesce(size_outliers, 0) + coalesce(rate_outliers, 0) DESC,
        client_id NULLS FIRST, topic"""
