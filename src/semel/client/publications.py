"""The publications that the program awaits, and their outcomes."""

import asyncio
import logging
from typing import Final

from semel.client.errors import Refused
from semel.client.events import PublishOutcome
from semel.mqtt.reasons import FAILURE, SUCCESS

LOG: Final = logging.getLogger("semel.client")

EXPIRED: Final = "the message expired before it could be sent"


class Publications:
    """The QoS 1 and 2 publications of one client, by their numbers."""

    def __init__(self) -> None:
        # Futures of the reason code: of the server, and of the outbox (always SUCCESS).
        self.completing: dict[int, asyncio.Future[int]] = {}
        self.storing: dict[int, asyncio.Future[int]] = {}
        self.acknowledged = 0
        self.refused = 0

    def on_stored(self, numbers: list[int]) -> None:
        """The outbox has these publications."""
        for number in numbers:
            waiting = self.storing.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_result(SUCCESS)

    def on_published(self, outcomes: list[PublishOutcome]) -> None:
        """Publications are complete, or were given up."""
        for outcome in outcomes:
            problem = _problem_of(outcome)
            if problem is None:
                self.acknowledged += 1
            else:
                self.refused += 1
            waiting = self.completing.get(outcome.number)
            if waiting is None or waiting.done():
                if problem is not None:
                    LOG.warning("a message that no task awaits was not delivered: %s", problem)
            elif problem is None:
                waiting.set_result(outcome.reason)
            else:
                waiting.set_exception(problem)

    def fail(self, problem: Exception) -> None:
        """Raise this error in every task that awaits a publication: none will complete."""
        for waiting in (*self.completing.values(), *self.storing.values()):
            if not waiting.done():
                waiting.set_exception(problem)


def _problem_of(outcome: PublishOutcome) -> Exception | None:
    """Why a publication was not sent or not accepted, None if it was accepted."""
    if outcome.violation is not None:
        return outcome.violation
    if outcome.expired:
        return TimeoutError(EXPIRED)
    if outcome.reason < FAILURE:
        return None
    about = "the message"
    return Refused(outcome.reason, outcome.packet_type, about=about, properties=outcome.properties)
