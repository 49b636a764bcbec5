"""A shift of a factory floor: four presses publish temperatures, pieces and states.

    python simulate.py [mqtt://localhost:1883]

Every message is QoS 2, so that each counts once. One thermometer sends a text now and then, which
becomes a dead letter.
"""

import asyncio
import json
import math
import sys
from datetime import UTC, datetime, timedelta

from semel import Client

SHIFT = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
MINUTES = 120
PRESSES = {("north", 1): 71.0, ("north", 2): 69.0, ("south", 3): 74.0, ("south", 4): 70.0}


def temperature(press: int, base: float, minute: int) -> float:
    """It rises while the press works; press 3 gets too hot in the second hour."""
    swing = 4 * math.sin(minute / 15 + press)
    fault = max(0, minute - 60) / 3 if press == 3 else 0
    return round(base + swing + fault, 2)


async def main(url: str) -> None:
    async with Client(url, client_id="factory-simulation") as client:
        for minute in range(MINUTES):
            at = (SHIFT + timedelta(minutes=minute)).isoformat()
            sending = []
            for (hall, press), base in PRESSES.items():
                topic = f"factory/{hall}/{press}"
                reading = {"celsius": temperature(press, base, minute), "at": at}
                if press == 2 and minute % 40 == 7:
                    reading["celsius"] = "sensor fault"
                sending.append(client.publish(f"{topic}/temperature", json.dumps(reading), qos=2))
                sending.append(client.publish(f"{topic}/pieces", str(3 + press % 2), qos=2))
                if minute % 30 == 0:
                    state = "overheated" if press == 3 and minute >= 90 else "running"
                    sending.append(client.publish(f"{topic}/state", state, qos=2))
            await asyncio.gather(*sending)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "mqtt://localhost"))
