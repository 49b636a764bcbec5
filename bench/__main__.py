"""`python -m bench [WORD]`: codec, imports, paths, broker, transports, rights, fairness, store,
client, pipeline, soak or churn.

Without a word it measures everything except the pipeline, which starts Spark, the soak and the
churn. A missed target is printed but does not change the exit code, because timing depends on the
machine and the moment. Soak and churn exit with 1 if the broker's memory grows.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import semel.mqtt.codec
from bench.broker.attacks import parse_attacks
from bench.broker.churn import churn
from bench.broker.contenders import BEFORE_VARIABLE, MOSQUITTO, parse_contenders, version_of
from bench.broker.fairness import AttackResult, fairness_lines, fairness_targets, measure_fairness
from bench.broker.measure import Measured, measure_broker
from bench.broker.paths import PathTimes, as_json, measure_paths, path_lines
from bench.broker.report import busy_machine_warning, file_limit_warning, losses, table, targets
from bench.broker.scenarios import parse_scenarios, parse_versions
from bench.broker.soak import soak
from bench.broker.variants import (
    PLAIN,
    TRANSPORTS,
    WITH_RULES,
    measure_variants,
    rule_lines,
    rule_targets,
    transport_lines,
    transport_targets,
)
from bench.client import measure as client
from bench.pipeline import report as pipeline
from bench.pipeline.queries import ROWS
from bench.store.report import StoreReport, measure_store, parse_parts
from bench.timing import import_milliseconds

WORDS: Final = (
    "codec",
    "imports",
    "paths",
    "broker",
    "transports",
    "rights",
    "fairness",
    "store",
    "client",
    "pipeline",
    "soak",
    "churn",
)
BROKER_WORDS: Final = ("broker", "transports", "rights", "fairness", "store", "client")
ROUNDS: Final = 15
BROKER_ROUNDS: Final = 3
IMPORT_TARGET: Final = 60.0
TIMES_FASTER_THAN_AMQTT: Final = 8.0
SHARE_OF_MQTT5: Final = 0.8


def target(met: bool, sentence: str) -> str:
    return f"{'✓' if met else '✗'} {sentence}"


def measure_codec(rounds: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of times, and the targets: decoding by the first case, encoding by the second.

    The second case passes semel's arguments by position, which is faster; mqtt5 has no such form.
    """
    # Imported here, because only this bench needs the peers.
    from bench.codec import (
        AMQTT,
        CASE_SUBSCRIBE,
        CASE_WITH_PROPERTIES,
        CASES,
        MQTT5_RUST,
        SEMEL5,
        SEMEL311,
        measure,
    )

    rows = measure(rounds)
    decoding, keywords = (row["nanoseconds"] for row in rows if row["case"] == CASES[0].name)
    (encoding,) = (row["nanoseconds"] for row in rows if row["case"] == CASES[1].name)
    times_decode = decoding[AMQTT] / decoding[SEMEL311]
    times_encode = encoding[AMQTT] / encoding[SEMEL311]
    targets = [
        target(
            decoding[SEMEL5] <= decoding[MQTT5_RUST],
            f"decode is no slower than mqtt5: {decoding[SEMEL5]:.0f} to "
            f"{decoding[MQTT5_RUST]:.0f} ns",
        ),
        target(
            encoding[SEMEL5] < encoding[MQTT5_RUST],
            f"construct + encode is faster than mqtt5: {encoding[SEMEL5]:.0f} to "
            f"{encoding[MQTT5_RUST]:.0f} ns",
        ),
        target(
            min(times_decode, times_encode) >= TIMES_FASTER_THAN_AMQTT,
            f"both are at least {TIMES_FASTER_THAN_AMQTT:.0f} times as fast as amqtt: "
            f"{times_decode:.1f} and {times_encode:.1f} times",
        ),
        f"  (with keywords: {keywords[SEMEL5]:.0f} to {keywords[MQTT5_RUST]:.0f} ns, "
        f"{keywords[AMQTT] / keywords[SEMEL311]:.1f} times amqtt)",
    ]
    for case in (CASE_WITH_PROPERTIES, CASE_SUBSCRIBE):
        times = next(row["nanoseconds"] for row in rows if row["case"] == case.name)
        share = times[MQTT5_RUST] / times[SEMEL5]
        targets.append(
            target(
                share >= SHARE_OF_MQTT5,
                f"decode of {case.name} has at least {SHARE_OF_MQTT5} of the speed of mqtt5: "
                f"{share:.2f}",
            )
        )
    return rows, targets


def print_codec(rows: list[dict[str, Any]]) -> None:
    """A Markdown table; in parentheses, the ratio to semel in the same version."""
    from bench.codec import AMQTT, MQTT5_RUST, PAHO, RIVALS, SEMEL5, SEMEL311

    columns = (SEMEL5, MQTT5_RUST, PAHO, SEMEL311, AMQTT)
    print(f"| ns per packet | | {' | '.join(columns)} |")
    print(f"|---|---|{'---:|' * len(columns)}")
    for row in rows:
        times = row["nanoseconds"]
        cells = []
        for name in columns:
            if name not in times:
                cells.append("–")
            elif name in RIVALS:
                cells.append(f"{times[name]:,.0f} ({times[name] / times[RIVALS[name]]:.2f}×)")
            else:
                cells.append(f"{times[name]:,.0f}")
        print(f"| {row['case']} | {row['operation']} | {' | '.join(cells)} |")
    print()


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def options_of(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; invalid arguments end the program."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=WORDS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"default {ROUNDS}; for {', '.join(BROKER_WORDS)} {BROKER_ROUNDS}, for pipeline "
        f"{pipeline.ROUNDS}",
    )
    parser.add_argument(
        "--version", type=parse_versions, default="both", help="broker, store: 3.1.1, 5.0 or both"
    )
    parser.add_argument(
        "--only",
        default="",
        help="broker, transports, rights: scenarios, such as a,c,p50; fairness: attacks, such as "
        "pings,levels; "
        "pipeline: parts, such as source,sink",
    )
    parser.add_argument(
        "--contenders",
        type=parse_contenders,
        default="",
        help="broker: such as semel,mosquitto; before is the semel of the environment whose "
        f"Python {BEFORE_VARIABLE} names",
    )
    parser.add_argument(
        "--parts", type=parse_parts, default="", help="store: such as durable,capture"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="store, pipeline: a directory on the disk to measure; default: temporary",
    )
    parser.add_argument("--rows", type=int, help=f"pipeline: rows to read; default {ROWS:,}")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="soak, churn: duration in minutes; default 10"
    )
    options = parser.parse_args(arguments)
    options.given = bool(options.only)
    parse: Callable[[str], Any] = parse_scenarios
    if options.what == "pipeline":
        parse = pipeline.parse_parts
    elif options.what == "fairness":
        parse = parse_attacks
    try:
        options.only = parse(options.only)
    except argparse.ArgumentTypeError as problem:
        parser.error(f"argument --only: {problem}")
    return options


def main() -> int:
    options = options_of(sys.argv[1:])
    if options.what == "soak":
        return soak(options.minutes)
    if options.what == "churn":
        return churn(options.minutes)
    compiled = str(semel.mqtt.codec.__file__).endswith(tuple(EXTENSION_SUFFIXES))
    if not compiled and options.what in (*BROKER_WORDS, "pipeline"):
        print("bench: semel is not compiled: the figures are of plain Python", file=sys.stderr)
    elif not compiled:
        print("bench: semel.mqtt is not compiled: use `make bench`", file=sys.stderr)
        return 2
    rounds = options.rounds or ROUNDS
    broker_rounds = options.rounds or BROKER_ROUNDS
    names = ("mqtt5", "amqtt", "paho-mqtt", "aiomqtt", "librt", "uvloop")
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "versions": {
            "semel": semel.__version__,
            **{name: installed(name) for name in names},
            MOSQUITTO: version_of(MOSQUITTO) or "missing",
        },
        "compiled": compiled,
        "rounds": rounds,
        "broker_rounds": broker_rounds,
        "targets": [],
    }
    cells: list[Measured] = []
    store = StoreReport()
    if options.what in (None, "codec"):
        report["codec"], codec_targets = measure_codec(rounds)
        report["targets"] += codec_targets
    if options.what in (None, "imports"):
        modules = ["semel.mqtt", "mqtt5", "amqtt.mqtt", "paho.mqtt.client"]
        report["import_milliseconds"] = times = import_milliseconds(modules, rounds)
        ours = times["semel.mqtt"]
        report["targets"].append(
            target(
                ours < IMPORT_TARGET,
                f"import semel.mqtt takes less than {IMPORT_TARGET:.0f} ms: {ours:.1f} ms",
            )
        )
    paths: list[PathTimes] = []
    if options.what in (None, "paths"):
        paths = measure_paths(rounds)
        report["paths"] = as_json(paths)
    if options.what in (None, "broker"):
        cells = measure_broker(broker_rounds, options.version, options.only, options.contenders)
        report["broker"] = [cell.as_json() for cell in cells]
        report["targets"] += targets(cells)
    lines: list[str] = []
    if options.what in (None, "transports"):
        scenarios = options.only if options.given and options.what else None
        over = measure_variants(broker_rounds, scenarios, TRANSPORTS)
        report["transports"] = [cell.as_json() for cell in over.cells]
        report["targets"] += transport_targets(over)
        lines += [*transport_lines(over), busy_machine_warning(over.cells), ""]
    if options.what in (None, "rights"):
        scenarios = options.only if options.given and options.what else None
        ruled = measure_variants(broker_rounds, scenarios, (PLAIN, WITH_RULES))
        report["rights"] = [cell.as_json() for cell in ruled.cells]
        report["targets"] += rule_targets(ruled)
        lines += [*rule_lines(ruled), busy_machine_warning(ruled.cells), ""]
    results: list[AttackResult] = []
    if options.what in (None, "fairness"):
        attacked = options.only if options.what else []
        results = measure_fairness(broker_rounds, options.contenders, attacked)
        report["fairness"] = [cell.as_json() for cell in results]
        report["targets"] += fairness_targets(results)
    if options.what in (None, "store"):
        store = measure_store(broker_rounds, options.version, options.parts, options.folder)
        report["store"] = store.as_json()
        report["targets"] += store.targets()
    clients: list[client.Cell] = []
    if options.what in (None, "client"):
        clients = client.measure_client(broker_rounds)
        report["client"] = client.as_json(clients)
        report["targets"] += client.targets(clients)
    landed = pipeline.PipelineReport()
    if options.what == "pipeline":
        rounds = options.rounds or pipeline.ROUNDS
        report["rounds"] = rounds
        report["versions"] |= {
            name: installed(name) for name in ("pyspark", "pyarrow", "deltalake")
        }
        landed = pipeline.measure_pipeline(rounds, options.only, options.rows, options.folder)
        report["pipeline"] = landed.as_json()
        report["targets"] += landed.targets()
    if options.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return 0
    medians = broker_rounds if options.what in BROKER_WORDS else rounds
    print(f"Python {report['python']}, {report['versions']}, median of {medians} rounds\n")
    if "codec" in report:
        print_codec(report["codec"])
    for module, milliseconds in report.get("import_milliseconds", {}).items():
        print(f"import {module}: {milliseconds:.1f} ms")
    print()
    if paths:
        print("\n".join(path_lines(paths)))
    if cells:
        warnings = [busy_machine_warning(cells), file_limit_warning(cells)]
        print("\n".join([*table(cells), "", losses(cells), *filter(None, warnings), ""]))
    if lines:
        print("\n".join(lines))
    if results:
        print("\n".join(fairness_lines(results)))
    if clients:
        print("\n".join([*client.lines(clients), ""]))
    print("\n".join([*store.lines(), *landed.lines(), *report["targets"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
