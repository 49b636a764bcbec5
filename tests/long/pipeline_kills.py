"""Kills Spark, sealers, `semel ingest` and brokers repeatedly, and compares every row.

    python -m tests.long.pipeline_kills --kills 100 --seed 3

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

from tests.kills.pipeline_run import Plan, make_strikes, run


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--kills", type=int, default=100, help="total number of SIGKILLs; 40 %% hit Spark"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=30.0, help="messages/s per broker")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--keep", type=Path, help="work in this directory, and keep it")
    arguments = parser.parse_args()

    # So that the processes that a run has started are ended with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="semel-pipeline-kills-"))
    strikes = make_strikes(arguments.kills, arguments.seed)
    plan = Plan(strikes, arguments.seed, rate=arguments.rate)
    try:
        result = run(plan, folder, progress)
    except BaseException:
        print(f"\nseed {plan.seed} aborted; files are in {folder}", file=sys.stderr)
        raise
    print(file=sys.stderr)
    if arguments.json:
        details = {"sentences": result.sentences, "faults": result.verdict.faults}
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
