"""The pages of docs/ that are generated from the code, with their texts."""

from pathlib import Path
from typing import Final

from tests.reference.api import PAGES, api_page
from tests.reference.commands import commands_page
from tests.reference.settings import settings_page

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


def generated_pages() -> dict[str, str]:
    """The text of each page by its path in docs/."""
    pages = {f"program/{each.name}": api_page(each) for each in PAGES}
    settings = "reference/settings.md"
    return {
        "reference/commands.md": commands_page(),
        settings: settings_page((DOCS / settings).read_text("utf-8")),
        **pages,
    }
