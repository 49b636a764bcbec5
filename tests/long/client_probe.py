"""Examine semel's own client and the right client of the mutants with every case, several times.

    python -m tests.long.client_probe [RUNS]

Exits with 1 as soon as something is violated, arguable or undecided.
"""

import asyncio
import sys

from semel.probe.client.examination import examine_client
from semel.probe.client.trial import ClientSubject
from tests.probe.client.test_examination import MUTANT, doubtful, semel_subjects


def main(runs: int) -> int:
    for run in range(1, runs + 1):
        for name, subjects in (
            ("semel", semel_subjects(15.0)),
            ("the client of the mutants", [ClientSubject(MUTANT, timeout=15.0)]),
        ):
            report = asyncio.run(examine_client(subjects, versions=[4, 5]))
            found = doubtful(report)
            print(f"run {run}, {name}: {report.seconds:.0f} s, {len(found)} doubtful", flush=True)
            for entry in found:
                print("   ", *entry)
            if found:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
