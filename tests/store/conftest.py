"""Stores to be broken: made once, copied for each test."""

from pathlib import Path

import pytest

from tests.store.stores import copied, make_large, make_small


@pytest.fixture(scope="session")
def small_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="session")
def large_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_large(tmp_path_factory.mktemp("large") / "data")


@pytest.fixture
def small(small_once: Path, tmp_path: Path) -> Path:
    """A data folder with something in every table: see `make_small`."""
    return copied(small_once, tmp_path / "data")


@pytest.fixture
def large(large_once: Path, tmp_path: Path) -> Path:
    """A data folder whose tables are trees of some depth."""
    return copied(large_once, tmp_path / "data")
