"""The tables of keys in docs/reference/settings.md, from the settings that the rooms declare.

The rest of the page is written by hand: what stands around a table stays as it is.
"""

import re
from dataclasses import fields
from typing import Final

from semel.cli.sections import SECTIONS
from semel.settings import settings_of
from semel.settings_values import Setting, toml_text, written

# Their settings are on the pages of the commands.
ELSEWHERE: Final = ("ingest", "land")
HEAD: Final = (
    "| key | default | minimum | maximum | what it does, and what happens at the limit |\n"
    "|---|---|---|---|---|\n"
)


def settings_page(page: str) -> str:
    """The page with a current table under the heading of each section it has."""
    for section in SECTIONS:
        if section.section in ELSEWHERE:
            continue
        name = re.escape(section.section)
        table = re.search(
            rf"^## \[?\[{name}\]\]?\n(?:(?!^## ).*\n)*?{re.escape(HEAD)}((?:\|.*\n)*)", page, re.M
        )
        assert table, f"the page has no table under [{section.section}]"
        rows = "".join(row_of(key.name, settings_of(section)[key.name]) for key in fields(section))
        page = page[: table.start(1)] + rows + page[table.end(1) :]
    return page


def row_of(key: str, setting: Setting) -> str:
    bounds = [
        "" if bound is None else f"`{written(setting, bound)}`"
        for bound in (setting.minimum, setting.maximum)
    ]
    default = "required" if setting.required else f"`{toml_text(setting, setting.default)}`"
    return f"| {' | '.join([f'`{key}`', default, *bounds, setting.help])} |\n"
