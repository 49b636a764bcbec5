"""The option `cluster_by` of a landing: by which columns rows of compacted files are sorted.

`clustering.py` sorts them. This does not import Arrow, because commands read options first.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from semel.pipeline.errors import OptionError

# Most queries are about some topics, and a time.
DEFAULT_CLUSTER_BY: Final = ("topic",)
# Types of Spark, or the beginnings of their names, that have no order or no bounds in files.
_UNSORTABLE: Final = ("binary", "array", "map", "struct", "variant")


def default_cluster_by(partition_by: Sequence[str]) -> tuple[str, ...]:
    """The columns for a table of messages that names none."""
    return tuple(name for name in DEFAULT_CLUSTER_BY if name not in partition_by)


def check_cluster_by(
    columns: Sequence[str], kinds: Mapping[str, str], partition_by: Sequence[str]
) -> None:
    """Raise OptionError unless rows of a table can be sorted by these columns.

    `kinds` are the columns of the table with their types as Spark names them.
    """
    for name in columns:
        if name in partition_by:
            raise OptionError(
                f"cluster_by: the table is partitioned by {name}, so that all rows of a file have"
                " the same value: leave it out"
            )
        if name not in kinds:
            near = get_close_matches(name, kinds, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose of {', '.join(kinds)}"
            raise OptionError(f"cluster_by: there is no column {name}: {hint}")
        if kinds[name].lower().startswith(_UNSORTABLE):
            raise OptionError(
                f"cluster_by: {name}: rows cannot be sorted by a {kinds[name]} column"
            )
