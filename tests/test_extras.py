"""An optional package that is missing is one sentence that names the extra."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from semel import extras
from semel.extras import EXTRAS, MissingExtra, missing, need

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
# Packages whose import name differs from their name on PyPI.
IMPORT_NAMES = {"argon2-cffi": "argon2", "protobuf": "google", "pyjwt": "jwt"}


@pytest.fixture
def fake_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    brought = ("json", "no_such_package", "broken_package")
    monkeypatch.setattr(extras, "EXTRAS", {"fake": brought})


def test_the_table_names_what_pyproject_lists() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    listed = dict(project["optional-dependencies"])
    assert listed.pop("all") == [f"semel[{','.join(sorted(listed))}]"]

    def packages(extra: str) -> set[str]:
        found: set[str] = set()
        for requirement in listed[extra]:
            if included := re.fullmatch(r"semel\[(\w+)\]", requirement):
                found |= packages(included[1])
            else:
                name = re.findall(r"^[\w-]+", requirement)[0]
                found.add(IMPORT_NAMES.get(name, name))
        return found

    names = {extra: tuple(sorted(packages(extra))) for extra in listed}
    assert names == EXTRAS


def test_spark_includes_what_sql_needs() -> None:
    assert set(EXTRAS["sql"]) < set(EXTRAS["spark"])


@pytest.mark.usefixtures("fake_extra")
def test_a_package_that_is_there_is_imported() -> None:
    assert need("json", extra="fake", by="semel test") is sys.modules["json"]
    assert need("json.decoder", extra="fake", by="semel test").__name__ == "json.decoder"


@pytest.mark.usefixtures("fake_extra")
def test_a_missing_package_is_one_sentence_that_names_the_extra() -> None:
    with pytest.raises(MissingExtra) as caught:
        need("no_such_package.part", extra="fake", by="semel test")
    assert str(caught.value) == "semel test needs no_such_package: pip install 'semel[fake]'"


@pytest.mark.usefixtures("fake_extra")
def test_a_package_that_fails_to_import_keeps_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text("import another_missing_one\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="another_missing_one"):
        need("broken_package", extra="fake", by="semel test")


@pytest.mark.usefixtures("fake_extra")
def test_a_module_that_the_extra_does_not_bring_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="does not contain os"):
        need("os", extra="fake", by="semel test")


@pytest.mark.usefixtures("fake_extra")
def test_missing_lists_what_is_not_installed() -> None:
    assert missing("fake") == ("no_such_package", "broken_package")
