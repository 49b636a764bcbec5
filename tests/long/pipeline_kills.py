"""Kills Spark, sealers, `semel ingest` and brokers repeatedly, and compares every row.

    python -m tests.long.pipeline_kills --kills 100 --seed 3
    python -m tests.long.pipeline_kills --landing --kills 30 --seed 1
    python -m tests.long.pipeline_kills --back --kills 30 --seed 1

With `--landing`, messages land in the tables of a landing file, and all kills are of the landing
and of `semel land retry`. With `--back`, a query publishes messages, and it and the broker that it
publishes to are killed.

The seed and the state of the lake choose the moments; what happens at a moment depends on the
machine. Exit code 1 if a message was lost or duplicated, or after any other fault; the directory
with stores, root, lake and logs is then kept, and its path is printed.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.kills.pipeline_back_run import BackResult, BackRunPlan, run_back
from tests.kills.pipeline_run import Plan, Result, make_strikes, run
from tests.kills.pipeline_tables_run import (
    TablesResult,
    TablesRunPlan,
    make_tables_strikes,
    run_tables,
)


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def run_kills(arguments: argparse.Namespace, folder: Path) -> Result | TablesResult | BackResult:
    kills, seed = arguments.kills, arguments.seed
    if arguments.back:
        return run_back(BackRunPlan(kills, seed, 2 * (arguments.rate or 20.0)), folder, progress)
    rate = arguments.rate or (10.0 if arguments.landing else 30.0)
    if arguments.landing:
        strikes = make_tables_strikes(kills, seed)
        retry_kills = arguments.retry_kills
        plan = TablesRunPlan(strikes, seed, retry_kills=retry_kills, rate=2 * rate)
        return run_tables(plan, folder, progress)
    return run(Plan(make_strikes(kills, seed), seed, rate=rate), folder, progress)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--kills", type=int, default=100, help="total number of SIGKILLs; 40 %% hit Spark"
    )
    parser.add_argument("--seed", type=int, default=1)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--landing", action="store_true", help="land in several tables, by a landing file"
    )
    which.add_argument("--back", action="store_true", help="publish from Spark to a broker")
    parser.add_argument(
        "--retry-kills", type=int, default=3, help="with --landing: more SIGKILLs, of the retry"
    )
    parser.add_argument(
        "--rate",
        type=float,
        help="messages/s per broker (30), or per node with --landing (10) or --back (20)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--keep", type=Path, help="work in this directory, and keep it")
    arguments = parser.parse_args()

    # So that the processes that a run has started are ended with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="semel-pipeline-kills-"))
    try:
        result = run_kills(arguments, folder)
    except BaseException:
        print(f"\nseed {arguments.seed} aborted; files are in {folder}", file=sys.stderr)
        raise
    print(file=sys.stderr)
    if arguments.json:
        details: dict[str, object] = {"faults": result.verdict.faults}
        if not isinstance(result, BackResult):
            details["sentences"] = result.sentences
        print(json.dumps({**result.summary(), **details}, indent=1))
    else:
        print(result.describe())
    if not result.is_clean:
        print(f"failed; files are in {folder}", file=sys.stderr)
        return 1
    if arguments.keep is None:
        shutil.rmtree(folder)
    print("0 lost, 0 duplicated, all accounted for", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
