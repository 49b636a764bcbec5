"""Numbers and durations that commands take."""

import click
import pytest

from semel.cli.numbers import Duration, WholeSeconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("0.5", 0.5), (".5", 0.5), ("90s", 90.0), ("1.5m", 90.0), ("250ms", 0.25)],
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert Duration(0, 3600).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1x", "nan", "inf", "-1", "2h", "1KiB", "1 h"])
def test_what_is_no_duration_within_the_bounds_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration(0, 3600).convert(text, None, None)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("60", 60), ("2m", 120), ("0.5m", 30)])
def test_whole_seconds_may_have_a_unit(text: str, seconds: int) -> None:
    assert WholeSeconds(0, 65_535).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "1.5", "1.5s", "500ms", "65536", "1d", "-1", "1x"])
def test_what_is_no_whole_number_of_seconds_within_the_bounds_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        WholeSeconds(0, 65_535).convert(text, None, None)
