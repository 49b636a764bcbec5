"""All cases of the examination of a client, in the order of the report."""

from typing import Final

from semel.probe.client import (
    cases_limits,
    cases_order,
    cases_receiving,
    cases_sending,
    cases_vectors,
)
from semel.probe.client.case import ClientCase

ALL_CASES: Final[tuple[ClientCase, ...]] = (
    *cases_sending.CASES,
    *cases_receiving.CASES,
    *cases_limits.CASES,
    *cases_order.CASES,
    *cases_vectors.CASES,
)
