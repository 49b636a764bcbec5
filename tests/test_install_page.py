"""The page on installation: its sizes are of every extra, and what measures them measures."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.reference.extra_sizes import NONE, Installed, extras, measure, megabytes, row

HOME = Path(__file__).resolve().parent.parent
PAGE = (HOME / "docs" / "start" / "install.md").read_text("utf-8")
ROW = re.compile(r"^\| (?:`(\w+)`|–) \| \d+ \| [\d,.]+ \| ([\d,.]+) \| .* \|$", re.MULTILINE)


def sizes() -> dict[str, float]:
    """By extra: MB on disk, as the page says."""
    return {extra or NONE: float(size.replace(",", "")) for extra, size in ROW.findall(PAGE)}


def test_the_page_has_the_size_of_every_extra() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras()) == {NONE, *project["optional-dependencies"]}
    assert list(sizes()) == extras()


def test_the_sizes_are_those_of_a_small_package_with_large_extras() -> None:
    found = sizes()
    assert found[NONE] < 20
    assert all(found[NONE] <= size <= found["all"] for size in found.values())
    assert found["sql"] < found["spark"]


def test_the_page_says_when_and_by_what_the_sizes_were_measured() -> None:
    assert "`make extra-sizes`" in PAGE
    assert re.search(r"\b\d{1,2} [A-Z][a-z]+ 20\d\d\b", PAGE)


def test_the_page_names_every_extra_with_its_purpose() -> None:
    table = PAGE.partition("## Extras")[2].partition("## Sizes")[0]
    named = {name for names in re.findall(r"\.\[([\w,]+)\]", table) for name in names.split(",")}
    assert named == set(extras()) - {NONE}


def add_package(site: Path, name: str, files: dict[str, int]) -> None:
    """A package as pip installs it."""
    folder = site / f"{name}-1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n", "utf-8")
    for file, size in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_bytes(bytes(size))
    # One is listed that there is not.
    listed = [*files, f"{name}/gone.py"]
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in listed), "utf-8")


def test_a_package_is_as_large_as_its_files(tmp_path: Path) -> None:
    add_package(tmp_path, "small", {"small/a.py": 100, "small/__pycache__/a.pyc": 20})
    add_package(tmp_path, "large", {"large/b.so": 3_000_000, "large/b.py": 50_000})
    found = measure(tmp_path)
    assert list(found.items()) == [("large", 3_050_000), ("small", 120)]
    assert row("web", Installed(1_700_000, found)) == "| `web` | 2 | 1.7 | 3.1 | large 3.0 |"
    assert row(NONE, Installed(60, {"small": 120})) == "| – | 1 | 0.0 | 0.0 |  |"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0.0"), (4_260_000, "4.3"), (12_600_000, "13"), (1_234_567_890, "1,235")],
)
def test_a_size_has_a_decimal_where_it_says_something(size: int, shown: str) -> None:
    assert megabytes(size) == shown
