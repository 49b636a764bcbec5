"""PINGREQ and PINGRESP [3.12, 3.13]."""

import pytest

from semel.mqtt import PingReq, PingResp, rules
from tests.mqtt.verdicts import BOTH, check_both_ways, check_refused, framed

EACH = pytest.mark.parametrize(("packet", "first"), [(PingReq(), 0xC0), (PingResp(), 0xD0)])


@EACH
def test_a_ping_is_two_bytes(packet: PingReq | PingResp, first: int) -> None:
    for version in BOTH:
        check_both_ways(bytes((first, 0)), version, packet)


@EACH
def test_a_ping_with_a_body_is_refused(packet: PingReq | PingResp, first: int) -> None:
    for version in BOTH:
        check_refused(framed(first, "00"), version, rules.NO_SURPLUS_BYTES)


@EACH
def test_a_ping_with_flags_is_refused(packet: PingReq | PingResp, first: int) -> None:
    for flags in range(1, 16):
        for version in BOTH:
            check_refused(bytes((first | flags, 0)), version, rules.FIXED_HEADER_FLAGS)


def test_a_request_is_equal_to_a_request_and_not_to_a_response() -> None:
    assert PingReq() == PingReq()
    assert PingResp() == PingResp()
    unlike: object = PingResp()
    assert PingReq() != unlike
