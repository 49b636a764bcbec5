"""The README says what is true: its Python examples run, and its shell example prints that."""

import doctest
import re
from pathlib import Path

from click.testing import CliRunner

from semel import cli

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_python_examples_of_the_readme_run_as_shown() -> None:
    result = doctest.testfile(
        str(README), module_relative=False, optionflags=doctest.IGNORE_EXCEPTION_DETAIL
    )
    assert result.attempted > 20
    assert result.failed == 0


def test_the_shell_example_of_the_readme_prints_what_is_shown() -> None:
    found = re.search(r'\$ semel decode (.*?) "(.*?)"\n(.*?)```', README.read_text("utf-8"), re.S)
    assert found is not None
    options, packet, shown = found.groups()
    result = CliRunner().invoke(cli.group, ["decode", *options.split(), packet])
    assert result.output == shown


def test_every_file_that_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README.read_text("utf-8"))
    assert len(links) > 5
    for link in links:
        assert (README.parent / link).exists(), link
