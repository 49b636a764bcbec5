"""Opens and drops thousands of connections per second, and checks what is left of them.

    python -m tests.long.connection_floods --seconds 60

Connections over TCP, TLS and WebSocket are dropped at once, in the middle of a handshake, after
CONNECT and after CONNACK. Exit code 1 if a stranger was admitted, if an innocent client lost a
message or could not log in, or if the broker holds more afterwards than before.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.broker.flooded_broker import run_flood


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--rate", type=float, default=2_000.0, help="connections per second, at most"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="semel-connection-flood-") as folder:
        result = run_flood(
            Path(folder), seconds=arguments.seconds, rate=arguments.rate, seed=arguments.seed
        )
    summary = {"seed": arguments.seed, **result.summary()}
    if arguments.json:
        print(json.dumps({**summary, "faults": result.faults}, indent=1))
    else:
        for name, value in summary.items():
            print(f"{name}: {value}")
    for fault in result.faults:
        print(f"failed: {fault}", file=sys.stderr)
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
