"""Values that commands take as text: numbers, durations and versions of MQTT."""

import math
from fractions import Fraction
from typing import Any, Final

import click

from semel.mqtt.packet_types import MQTT5, MQTT311
from semel.settings_values import QUANTITY, SECONDS, UNITS

# Seconds. A longer duration is a typing mistake, and not every timer accepts one.
YEAR: Final = 366 * 86_400.0
# Messages per second: more than any broker accepts from one process.
MOST_RATE: Final = 1_000_000.0
# A bound that only a type has, such as 64 bits, and that nobody has to know.
NO_LIMIT: Final = 2**62

# The versions by all accepted spellings; the first two are ours, the others Mosquitto's.
VERSIONS: Final = {
    "3.1.1": MQTT311,
    "5": MQTT5,
    "311": MQTT311,
    "mqttv311": MQTT311,
    "mqttv5": MQTT5,
}
OLD_VERSIONS: Final = ("mqttv31", "31", "3.1")


def range_in_words(least: float | None, most: float | None, *, least_excluded: bool) -> str:
    """Bounds as `--help` and error messages state them, instead of click's inequalities."""
    lower = None if least is None else _number_in_words(least)
    upper = None if most is None or most >= NO_LIMIT else _number_in_words(most)
    if upper is None:
        return f"more than {lower}" if least_excluded else f"at least {lower}"
    if lower is None:
        return f"at most {upper}"
    return f"more than {lower}, at most {upper}" if least_excluded else f"from {lower} to {upper}"


def _number_in_words(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.15g}"


class IntegerRange(click.IntRange):
    """An integer between two bounds."""

    name = "integer"

    def _describe_range(self) -> str:
        return range_in_words(self.min, self.max, least_excluded=self.min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse an integer."""
        number = int(click.INT.convert(value, param, ctx))
        is_below = self.min is not None and number < self.min
        if is_below or (self.max is not None and number > self.max):
            self.fail(f"{number} is not {self._describe_range()}.", param, ctx)
        return number


class NumberRange(click.FloatRange):
    """A number between two bounds, and not nan, which click accepts."""

    name = "number"

    def _describe_range(self) -> str:
        return range_in_words(self.min, self.max, least_excluded=self.min_open)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class Duration(NumberRange):
    """Seconds between two bounds, written as a number or with a unit: 90, 90s, 5m, 1h, 7d."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a duration."""
        found = QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if found is not None and found[2] in UNITS[SECONDS]:
            value = float(Fraction(found[1]) * UNITS[SECONDS][found[2]])
        return super().convert(value, param, ctx)


class WholeSeconds(IntegerRange):
    """Whole seconds between two bounds, written as a number or with a unit: 90, 90s, 5m, 1h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a duration."""
        found = QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if found is not None and found[2] in UNITS[SECONDS]:
            seconds = Fraction(found[1]) * UNITS[SECONDS][found[2]]
            value = int(seconds) if seconds.denominator == 1 else value
        return int(super().convert(value, param, ctx))


class MqttVersion(click.ParamType[int]):
    """A version of MQTT, by our spelling or Mosquitto's."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a version: MQTT311 or MQTT5."""
        if isinstance(value, int):
            return value
        if value in OLD_VERSIONS:
            self.fail("MQTT 3.1 is not supported: choose 3.1.1 or 5", param, ctx)
        if value not in VERSIONS:
            self.fail(f"{value!r} is not one of {', '.join(VERSIONS)}", param, ctx)
        return VERSIONS[value]
