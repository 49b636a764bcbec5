"""Kills the broker repeatedly under load, and accounts for every message.

    python -m tests.long.kills --kills 200 --seed 1

The rights of some users are taken away and given back meanwhile, by reloads and by restarts. The
seed chooses the moments; what happens at a moment depends on the machine. Exit code 1 if a message
was lost, duplicated or out of order, or reached a user without the right to it, or after any other
fault; the directory with the store, the broker's log and the journal of the clients is then kept,
and its path is printed.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.kills.brokers import free_port, semel
from tests.kills.guests import rights_of
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
    parser.add_argument(
        "--no-rights", action="store_true", help="no users, and so no rights that change"
    )
    parser.add_argument("--pairs", action="store_true", help="print a line per pair of clients")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--keep", type=Path, help="work in this directory, and keep it")
    parser.add_argument("options", nargs="*", help="more options for `semel broker`, after --")
    arguments = parser.parse_args()
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        # Under nohup. The broker would ignore it, too, and not reload.
        signal.signal(signal.SIGHUP, lambda number, frame: None)

    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="semel-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(arguments.kills, arguments.seed, arguments.load, cut_rate=arguments.cuts)
    rights = None if arguments.no_rights else rights_of(folder, plan.seed)
    options = (*arguments.options, *(() if rights is None else rights.arguments()))
    try:
        result = run(plan, semel(free_port(), folder, *options), progress, rights=rights)
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
