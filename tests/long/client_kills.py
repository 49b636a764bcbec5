"""Kills a client with an outbox repeatedly under load, and accounts for every message.

    python -m tests.long.client_kills --kills 100 --seed 1

The kills are distributed over the scenarios: semel or Mosquitto as the broker, 3.1.1 or 5.0, with
or without kills of the broker, and with or without connections cut at any byte. The seed chooses
the moments; what happens at a moment depends on the machine. Exit code 1 if a message was lost,
duplicated or out of order, or after any other fault; the directory with the outbox, the journals
and the logs is then kept, and its path is printed.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

from tests.kills.brokers import Broker, free_port, mosquitto, semel
from tests.kills.client_run import Plan, Result, run
from tests.kills.wire import V5, V311

# By name: the broker, the version, the rate of broker kills, whether connections are cut.
SCENARIOS: dict[str, tuple[str, int, float, bool]] = {
    "semel 5.0": ("semel", V5, 0.0, False),
    "semel 3.1.1": ("semel", V311, 0.0, False),
    "semel 5.0, killed too": ("semel", V5, 0.4, False),
    "semel 3.1.1, killed too": ("semel", V311, 0.4, False),
    "semel 5.0, cut": ("semel", V5, 0.0, True),
    "semel 3.1.1, cut and killed": ("semel", V311, 0.3, True),
    "mosquitto 5.0": ("mosquitto", V5, 0.0, False),
    "mosquitto 3.1.1": ("mosquitto", V311, 0.0, False),
    "mosquitto 3.1.1, cut": ("mosquitto", V311, 0.0, True),
}


def progress(name: str, text: str) -> None:
    print(f"\r{f'{name}: {text}':<70}", end="", file=sys.stderr, flush=True)


def broker_of(name: str, folder: Path) -> Broker:
    if name == "mosquitto":
        return mosquitto(free_port(), folder)
    return semel(free_port(), folder, streams=False)


def total(results: list[Result]) -> dict[str, object]:
    """The numbers of all scenarios together."""
    sums: Counter[str] = Counter()
    for result in results:
        for name, value in result.summary().items():
            if isinstance(value, int | float) and name != "load average":
                sums[name] += value  # type: ignore[assignment]
    return {name: round(value, 1) for name, value in sums.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--kills", type=int, default=104, help="minimum number of SIGKILLs of a client"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=float, default=0.5, help="seconds of work before a kill")
    parser.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), help="run only this scenario"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--keep", type=Path, help="work in this directory, and keep it")
    arguments = parser.parse_args()

    names: list[str] = arguments.scenario or list(SCENARIOS)
    if shutil.which("mosquitto") is None:
        names = [name for name in names if SCENARIOS[name][0] != "mosquitto"]
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="semel-client-kills-"))
    kills = -(-arguments.kills // len(names))
    results: dict[str, Result] = {}
    for place, name in enumerate(names):
        program, version, killed, cuts = SCENARIOS[name]
        here = folder / str(place)
        here.mkdir(parents=True)
        plan = Plan(
            kills,
            arguments.seed + place,
            version,
            load=arguments.load,
            broker=killed,
            cuts=cuts,
        )
        results[name] = run(plan, broker_of(program, here), partial(progress, name))
    print(file=sys.stderr)
    summary = {"seed": arguments.seed, **total(list(results.values()))}
    is_clean = all(result.is_clean for result in results.values())
    if arguments.json:
        every = {
            name: {**result.summary(), "faults": result.faults} for name, result in results.items()
        }
        print(json.dumps({**summary, "scenarios": every}, indent=1))
    else:
        for name, result in results.items():
            print(f"--- {name}\n{result.describe()}\n")
        print("--- total")
        for word, value in summary.items():
            print(f"{word}: {value}")
    if not is_clean:
        print(f"failed; files are in {folder}", file=sys.stderr)
        return 1
    if arguments.keep is None:
        shutil.rmtree(folder)
    print(f"{summary['kills of the client']} kills: 0 lost, 0 duplicated, all accounted for")
    return 0


if __name__ == "__main__":
    sys.exit(main())
