"""Importing semel, its core, or asking for help loads nothing heavy."""

import json
import subprocess
import sys

import pytest

import semel

HEAVY = {
    "deltalake",
    "duckdb",
    "mypy",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "pytest",
    "uvloop",
    "websockets",
}
# Top-level names that the core may load; semel__mypyc is the library its compiled modules share.
CORE = {"semel", "semel__mypyc", "mypy_extensions", "librt"}


def loaded_by(statement: str) -> set[str]:
    """Top-level names of the modules that `statement` loads in a fresh interpreter."""
    program = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        f"try:\n    {statement}\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "print()\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules: list[str] = json.loads(result.stdout.splitlines()[-1])
    return {module.partition(".")[0] for module in modules}


def test_the_package_loads_only_the_standard_library() -> None:
    assert loaded_by("import semel") - sys.stdlib_module_names == {"semel"}


def test_what_the_package_lends_is_there_when_it_is_asked_for() -> None:
    for name in dir(semel):
        assert getattr(semel, name) is not None
    assert semel.Client.__name__ == "Client"
    assert (semel.MQTT311, semel.MQTT5) == (4, 5)
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        semel.Server  # noqa: B018


def test_dir_shows_what_a_program_may_use_and_nothing_else() -> None:
    program = "import semel; print(*(name for name in dir(semel) if not name.startswith('__')))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert sorted(result.stdout.split()) == [
        *("Client", "Disconnected", "MQTT311", "MQTT5", "Messages", "Properties", "Received"),
        *("Refused", "Subscription", "Violation", "Will"),
    ]


def test_the_core_loads_only_the_standard_library_and_run_time_support() -> None:
    assert loaded_by("import semel.mqtt") - sys.stdlib_module_names <= CORE


def test_help_loads_nothing_heavy() -> None:
    statement = "sys.argv = ['semel', '--help']; from semel.cli import main; main()"
    assert not loaded_by(statement) & HEAVY


def test_help_does_not_load_the_core() -> None:
    program = (
        "import sys; from semel.cli import main; sys.argv = ['semel', '--help']\n"
        "try:\n    main()\n"
        "finally:\n    assert 'semel.mqtt' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
