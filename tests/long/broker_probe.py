"""Examine semel's own broker with every case, over each transport, several times.

    python -m tests.long.broker_probe [RUNS]

Exits with 1 as soon as something is violated, arguable or undecided.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.broker.live.test_server_listeners import broker, urls
from tests.broker.tls_files import TlsFiles
from tests.probe.broker.own_broker import TRANSPORTS, doubtful, examine_own


def main(runs: int) -> int:
    with TemporaryDirectory() as folder:
        files = TlsFiles(Path(folder))
        for run in range(1, runs + 1):
            for transport in TRANSPORTS:
                with broker(*urls(files, Path(folder))) as running:
                    report = examine_own(running, transport, files)
                found = doubtful(report)
                cases = f"{len(report.outcomes):,} cases in {report.seconds:.0f} s"
                print(f"run {run}, {transport}: {cases}, {len(found)} doubtful", flush=True)
                for entry in found:
                    print("   ", *entry)
                if found:
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
