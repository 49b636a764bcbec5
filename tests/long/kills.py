"""Kills the broker repeatedly under load, and accounts for every message.

    python -m tests.long.kills --kills 200 --seed 1

The seed chooses the moments; what happens at a moment depends on the machine. Exit code 1 if a
message was lost, duplicated or out of order, or after any other fault; the directory with the
store, the broker's log and the journal of the clients is then kept, and its path is printed.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.kills.brokers import free_port, semel
from tests.kills.harness import Plan, run


def progress(text: str) -> None:
    print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--kills", type=int, default=200, help="minimum number of SIGKILLs of the broker"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=float, default=1.2, help="seconds of load before a kill")
    parser.add_argument("--cuts", type=float, default=0.0, help="cuts per client and second")
    parser.add_argument("--pairs", action="store_true", help="print a line per pair of clients")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--keep", type=Path, help="work in this directory, and keep it")
    parser.add_argument("options", nargs="*", help="more options for `semel broker`, after --")
    arguments = parser.parse_args()

    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="semel-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(arguments.kills, arguments.seed, arguments.load, cut_rate=arguments.cuts)
    try:
        result = run(plan, semel(free_port(), folder, *arguments.options), progress)
    except BaseException:
        print(f"\nseed {plan.seed} aborted; files are in {folder}", file=sys.stderr)
        raise
    print(file=sys.stderr)
    summary = {"seed": plan.seed, **result.summary()}
    if arguments.json:
        print(json.dumps({**summary, **result.verdict.as_json()}, indent=1))
    else:
        print(result.verdict.describe(every_pair=arguments.pairs))
        print()
        for name, value in summary.items():
            print(f"{name}: {value}")
    if not result.verdict.is_clean:
        print(f"failed; files are in {folder}", file=sys.stderr)
        return 1
    if arguments.keep is None:
        shutil.rmtree(folder)
    print("0 lost, 0 duplicated, all accounted for", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
