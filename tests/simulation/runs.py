"""Runs many seeds in several processes; the command line of the simulation.

    --seeds 100000           run this many schedules, from --first on
    --seed 4711 --trace      run one schedule, and print everything that happens in it
    --variants               print how many seeds it takes to detect each broken variant

A failing schedule is shrunk, and its trace is printed; it replays exactly.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.broken_variants import BROKEN
from tests.simulation.final_checks import check
from tests.simulation.finishing import play
from tests.simulation.schedule import schedule_of
from tests.simulation.shrinking import failure_of, shrunk, story
from tests.simulation.variants import FAITHFUL, Blind, Variant
from tests.simulation.world import World

# How many schedules a process runs before it reports.
CHUNK: Final = 250
# How many failing seeds are shown with their traces, and how many are listed.
SHOWN: Final = 3
LISTED: Final = 20


@dataclass
class Outcome:
    """The outcome of some schedules."""

    schedules: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    # seed, what is wrong
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        """Add another outcome."""
        self.schedules += other.schedules
        self.tally += other.tally
        self.failures += other.failures


def run_seeds(first: int, count: int, variant: Variant = FAITHFUL) -> Outcome:
    """Run the schedules of these seeds one by one."""
    outcome = Outcome()
    for seed in range(first, first + count):
        schedule = schedule_of(seed)
        world = World(schedule.plan, variant=variant)
        try:
            play(world, schedule.actions)
            check(world)
        except Exception as problem:
            outcome.failures.append((seed, f"{type(problem).__name__}: {problem}"))
        outcome.schedules += 1
        outcome.tally += world.tally
        outcome.tally["actions"] += len(schedule.actions)
        # Its parts refer to each other: without this it stays open until garbage collection.
        world.database.close()
    return outcome


def _chunk(bounds: tuple[int, int]) -> Outcome:
    return run_seeds(*bounds)


def run_many(first: int, count: int, processes: int) -> Iterator[Outcome]:
    """Run the schedules in several processes, in chunks."""
    bounds = [
        (start, min(CHUNK, first + count - start)) for start in range(first, first + count, CHUNK)
    ]
    if processes == 1:
        yield from map(_chunk, bounds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_chunk, bounds)


def seeds_to_notice(variant: Variant, most: int, first: int = 0) -> int | None:
    """How many seeds it takes to detect a broken variant; None: more than `most`."""
    for seed in range(first, first + most):
        if failure_of(schedule_of(seed), variant) is not None:
            return seed - first + 1
    return None


def table(outcome: Outcome) -> str:
    """The outcome as a table."""
    lines = [f"{'schedules':>24}  {outcome.schedules:,}"]
    for name, count in sorted(outcome.tally.items()):
        lines.append(f"{name:>24}  {count:,}")
    lines.append(f"{'guarantees broken':>24}  {len(outcome.failures):,}")
    return "\n".join(lines)


def _run(arguments: argparse.Namespace) -> int:
    began = shown = time.monotonic()
    total = Outcome()
    for outcome in run_many(arguments.first, arguments.seeds, arguments.processes):
        total.add(outcome)
        for seed, what in outcome.failures:
            print(f"seed {seed}: {what}", file=sys.stderr, flush=True)
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            rate = total.schedules / (shown - began)
            print(
                f"{total.schedules:,} of {arguments.seeds:,} schedules, {rate:.0f} per second,"
                f" {len(total.failures)} failed",
                file=sys.stderr,
                flush=True,
            )
    seconds = time.monotonic() - began
    total.failures.sort()
    if arguments.json:
        print(
            json.dumps(
                {
                    "first": arguments.first,
                    "schedules": total.schedules,
                    "seconds": round(seconds, 1),
                    "processes": arguments.processes,
                    "happened": dict(sorted(total.tally.items())),
                    "failures": [
                        {"seed": seed, "what": what} for seed, what in total.failures[:LISTED]
                    ],
                    "failed": len(total.failures),
                },
                indent=2,
            )
        )
    else:
        print(table(total))
        print(f"{'seconds':>24}  {seconds:,.1f} on {arguments.processes} processes")
        for seed, _ in total.failures[:SHOWN]:
            print(f"\n{story(shrunk(schedule_of(seed)))}")
            print(f"to replay: python -m tests.long.simulate --seed {seed} --trace")
    return 1 if total.failures else 0


def _replay(seed: int, *, trace: bool, variant: Variant) -> int:
    """Run one seed: with the whole trace, or else with a shrunk one if it fails."""
    schedule = schedule_of(seed)
    problem = failure_of(schedule, variant)
    if trace:
        print(story(schedule, variant))
    elif problem is not None:
        print(story(shrunk(schedule, variant), variant))
    else:
        print(f"seed {seed}: {len(schedule.actions)} actions, every guarantee is kept")
    return 0 if problem is None else 1


def _show_variants(most: int, *, as_json: bool) -> int:
    missed = 0
    rows: list[dict[str, object]] = []
    for variant in BROKEN:
        sighted = seeds_to_notice(variant, most)
        blind = seeds_to_notice(Blind(variant), most)
        missed += sighted is None
        rows.append(
            {
                "variant": variant.name,
                "fault": variant.fault,
                "seeds": sighted,
                "seeds_without_looking_at_the_disk": blind,
            }
        )
        if not as_json:
            print(f"{variant.name:>20}  {sighted or '-':>6}  {blind or '-':>6}  {variant.fault}")
    if as_json:
        print(json.dumps(rows, indent=2))
    return 1 if missed else 0


def main(words: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="simulate", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--seeds", type=int, default=2_000, help="the number of schedules")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--trace", action="store_true", help="print everything that happens in it")
    parser.add_argument("--variant", help="run it with this broken variant")
    parser.add_argument("--variants", action="store_true", help="run all broken variants")
    arguments = parser.parse_args(words)
    if arguments.variants:
        return _show_variants(arguments.seeds, as_json=arguments.json)
    if arguments.seed is not None:
        known = {each.name: each for each in (FAITHFUL, *BROKEN)}
        variant = known.get(arguments.variant or FAITHFUL.name)
        if variant is None:
            parser.error(f"--variant must be one of: {', '.join(known)}")
        return _replay(arguments.seed, trace=arguments.trace, variant=variant)
    return _run(arguments)
