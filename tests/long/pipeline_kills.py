"""Kill Spark, the sealers, `semel ingest` and the brokers again and again, and compare every row.

    python -m tests.long.pipeline_kills --kills 100 --seed 3

The moments are chosen by the seed and by what the lake shows; what happens at them is the machine's
doing. Exit code 1 if a message was lost or doubled, or anything else was not as it must be; then
the folder with stores, root, lake and logs is kept and named.
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
    parser.add_argument("--kills", type=int, default=100, help="SIGKILLs in all; 40 %% are Spark's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=30.0, help="messages/s for each broker")
    parser.add_argument("--json", action="store_true", help="print all as JSON")
    parser.add_argument("--keep", type=Path, help="work in this folder, and leave it there")
    arguments = parser.parse_args()

    # So that a run that is ended ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="semel-pipeline-kills-"))
    strikes = make_strikes(arguments.kills, arguments.seed)
    plan = Plan(strikes, arguments.seed, rate=arguments.rate)
    try:
        result = run(plan, folder, progress)
    except BaseException:
        print(f"\nseed {plan.seed} ends early; what there is: {folder}", file=sys.stderr)
        raise
    print(file=sys.stderr)
    if arguments.json:
        said = {"sentences": result.sentences, "faults": result.verdict.faults}
        print(json.dumps({**result.summary(), **said}, indent=1))
    else:
        print(result.describe())
    if not result.is_clean:
        print(f"not as it must be; what there is: {folder}", file=sys.stderr)
        return 1
    if arguments.keep is None:
        shutil.rmtree(folder)
    print("0 lost, 0 doubled, all accounted for", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
