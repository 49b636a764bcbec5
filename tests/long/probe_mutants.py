"""Every mutant of the broker with every case of `semel probe`: the whole table of soundness.

    python -m tests.long.probe_mutants [--jobs 2] [--only PATTERN]

`make test` runs each mutant with the cases of its statements and a sample of the others; this runs
all of them, slow ones too. Prints what is blamed without an explanation, and exits with 1 then.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatchcase

from tests.probe.broker.mutants.form import sorted_ids
from tests.probe.broker.mutants.running import CaseSelection, compare, examine
from tests.probe.broker.mutants.table import GUILTY, LAWFUL, broker_mutant


def check(name: str) -> tuple[str, list[str]]:
    """A line on what is blamed, and what is wrong with that."""
    mutant = broker_mutant(name)
    began = time.monotonic()
    result = compare(mutant, examine(mutant, CaseSelection().every()))
    seconds = time.monotonic() - began
    blamed = " | ".join(sorted_ids(result.blamed[version]) for version in (4, 5))
    return f"{name} ({seconds:.0f} s): {blamed}", result.problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every mutant with every case.")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="*", help="mutants with such a name")
    options = parser.parse_args()
    names = [mutant.name for mutant in (*GUILTY, *LAWFUL) if fnmatchcase(mutant.name, options.only)]
    failed = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(check, name) for name in names]):
            line, problems = done.result()
            print(line, flush=True)
            for problem in problems:
                print(f"    {problem}", flush=True)
            failed += bool(problems)
    print(f"{len(names)} mutants, {failed} with something that is not explained")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
