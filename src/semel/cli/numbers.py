"""Numbers that commands take."""

import math
from typing import Any, Final

import click

# More seconds than anybody waits: numbers beyond it are a slip, and not every timer takes them.
YEAR: Final = 366 * 86_400.0
# Messages a second: more than any broker takes from one process.
MOST_RATE: Final = 1_000_000.0


class NumberRange(click.FloatRange):
    """A number between two bounds. To click, nan is one: it is not outside of them."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number that a text is."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number
