"""Wheels: compiled or pure, never half; nothing generated stays among the sources.

Builds run on a copy of the repository. Where a test needs the compiler, the copy's core is two
tiny modules, so that a build takes seconds; the real core's wheel is what the compiled run of this
suite is installed from, and `test_the_wheel_under_test_...` looks into it.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PARTS = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
# What is compiled of these rooms.
STORE = ("commit", "row_checksums", "row_flags", "rows", "store", "streams", "write_batch")
NETWORK = ("peers", "plain_sockets")
CLIENT = (
    "awaiting_commit",
    "connect_parameters",
    "connection_end",
    "core",
    "disconnecting",
    "events",
    "inbox",
    "keep_alive",
    "received",
    "recording",
    "stored_session",
    "subscriptions",
)
SENTENCE = "semel: built without compiled modules, because "

can_build = all(importlib.util.find_spec(tool) for tool in ("build", "mypyc", "setuptools"))
builds = pytest.mark.skipif(not can_build, reason="the build tools are not installed here")
has_compiler = shutil.which("cc") is not None


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what a wheel is built from."""
    root = tmp_path / "copy"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(REPOSITORY / "src", root / "src", ignore=ignore)
    for part in PARTS:
        shutil.copy(REPOSITORY / part, root / part)
    return root


@pytest.fixture
def small_copy(copy: Path) -> Path:
    """A copy whose core is a few tiny modules, and some that are not compiled."""
    # The package lends names that these rooms do not have here.
    (copy / "src" / "semel" / "__init__.py").write_text('__version__ = "0"\n', encoding="utf-8")
    for room, names in (("store", STORE), ("client", CLIENT)):
        folder = copy / "src" / "semel" / room
        shutil.rmtree(folder)
        folder.mkdir()
        for name in ("__init__", *names, "interpreted"):
            (folder / f"{name}.py").touch()
    broker = copy / "src" / "semel" / "broker"
    shutil.rmtree(broker)
    (broker / "network").mkdir(parents=True)
    (broker / "__init__.py").touch()
    for name in ("__init__", *NETWORK, "interpreted"):
        (broker / "network" / f"{name}.py").touch()
    # What is not compiled may import what is not there while the wheel is built.
    (broker / "settings.py").write_text(
        "try:\n    import package_of_nobody\nexcept ImportError:\n    pass\nONE = 1\n",
        encoding="utf-8",
    )
    (broker / "three.py").write_text(
        "from semel.broker.settings import ONE\n\nTHREE = ONE + 2\n", encoding="utf-8"
    )
    core = copy / "src" / "semel" / "mqtt"
    shutil.rmtree(core)
    (core / "inner").mkdir(parents=True)
    (core / "__init__.py").write_text("from semel.mqtt.one import add\n", encoding="utf-8")
    (core / "inner" / "__init__.py").touch()
    (core / "inner" / "two.py").write_text("TWO = 2\n", encoding="utf-8")
    (core / "one.py").write_text(
        "from semel.mqtt.inner.two import TWO\n\n"
        "def add(number: int) -> int:\n    assert number >= 0\n    return number + TWO\n",
        encoding="utf-8",
    )
    return copy


def try_build(root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel from `root` into its folder dist, or fail."""
    inherited = {name: text for name, text in os.environ.items() if name != "SEMEL_PURE"}
    return subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."],
        cwd=root,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def build(root: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel from `root`; return it and what the build printed."""
    before = tree(root)
    result = try_build(root, **environment)
    assert result.returncode == 0, result.stdout
    (wheel,) = (root / "dist").iterdir()
    assert tree(root) - before == {Path("dist"), Path("dist", wheel.name)}
    return wheel, result.stdout


def tree(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*")}


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def run_installed(wheel: Path, site: Path, program: str) -> str:
    """Install `wheel`, without its dependencies, into `site`; run `program` there."""
    install = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run(
        [*install, "--no-deps", "--no-index", "--target", str(site), str(wheel)], check=True
    )
    environment = os.environ | {"PYTHONPATH": str(site)}
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=site,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def check_pure(wheel: Path, output: str, reason: str) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in names_in(wheel) if name.endswith((".so", ".c", ".pyd"))]
    sentences = [line for line in output.splitlines() if line.startswith(SENTENCE)]
    assert len(sentences) == 1
    assert sentences[0].startswith(SENTENCE + reason)


# PySpark looks for data sources in modules that are called so.
PACKAGES = ("semel", "pyspark_mqtt", "pyspark_semel_delta")


def check_contents(names: list[str]) -> None:
    """All data is there, and nothing that is not the package."""
    package = REPOSITORY / "src" / "semel"
    wanted = [
        package / "py.typed",
        *package.glob("vectors/*.json"),
        *package.glob("standard/*.csv"),
        *package.glob("pipeline/*.sh"),
        *package.glob("pipeline/*.properties"),
    ]
    for path in [*wanted, *package.rglob("*.py")]:
        assert path.relative_to(package.parent).as_posix() in names
    for name in names:
        top = name.partition("/")[0]
        assert top in PACKAGES or top.startswith(("semel-", "semel__mypyc.")), name


@builds
def test_a_wheel_built_with_semel_pure_works_uncompiled(copy: Path, tmp_path: Path) -> None:
    wheel, output = build(copy, SEMEL_PURE="1")
    check_pure(wheel, output, "SEMEL_PURE=1 is set")
    check_contents(names_in(wheel))
    program = (
        "import sys; from semel.cli import main; sys.argv = ['semel', 'version']; sys.exit(main())"
    )
    assert "(interpreted)" in run_installed(wheel, tmp_path / "site", program)


@builds
def test_a_wheel_built_without_a_compiler_works_uncompiled(copy: Path, tmp_path: Path) -> None:
    wheel, output = build(copy, CC="/bin/false")
    check_pure(wheel, output, "no working C compiler: ")
    program = "import semel.mqtt; print(semel.mqtt.__file__)"
    assert str(tmp_path / "site") in run_installed(wheel, tmp_path / "site", program)


@builds
def test_a_wheel_that_must_be_compiled_is_not_built_without_a_compiler(copy: Path) -> None:
    result = try_build(copy, CC="/bin/false", SEMEL_PURE="0")
    assert result.returncode != 0
    assert "semel: not built, because no working C compiler" in result.stdout
    assert not list(copy.glob("dist/*"))


@builds
def test_a_source_distribution_has_what_a_wheel_is_built_from_and_no_tests(copy: Path) -> None:
    (copy / "tests").mkdir()
    (copy / "tests" / "test_half.py").touch()
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", "dist", "."]
    subprocess.run(command, cwd=copy, stdout=subprocess.DEVNULL, check=True)
    (archive,) = (copy / "dist").iterdir()
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {*PARTS, "src/semel/web/page/index.html"} <= names
    check_contents([name.removeprefix("src/") for name in names if name.startswith("src/semel/")])
    assert not [name for name in names if name.startswith("tests")]


@builds
@pytest.mark.skipif(not has_compiler, reason="there is no C compiler")
def test_a_wheel_whose_compilation_fails_half_way_is_pure(small_copy: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *two.c*) exit 1 ;; esac\nexec cc "$@"\n', encoding="utf-8"
    )
    compiler.chmod(0o755)
    wheel, output = build(small_copy, CC=str(compiler))
    check_pure(wheel, output, "compilation failed: ")


@builds
@pytest.mark.skipif(not has_compiler, reason="there is no C compiler")
def test_a_core_that_mypyc_refuses_is_installed_uncompiled(small_copy: Path) -> None:
    bad = small_copy / "src" / "semel" / "mqtt" / "bad.py"
    bad.write_text('NUMBER: int = "text"\n', encoding="utf-8")
    wheel, output = build(small_copy)
    check_pure(wheel, output, "mypyc refused the sources")


@builds
@pytest.mark.skipif(not has_compiler, reason="there is no C compiler")
def test_a_normal_wheel_is_compiled_whole_and_keeps_asserts(
    small_copy: Path, tmp_path: Path
) -> None:
    wheel, output = build(small_copy)
    assert SENTENCE not in output
    assert not wheel.name.endswith("-none-any.whl")
    extensions = [name.partition(".")[0] for name in names_in(wheel) if name.endswith(".so")]
    assert sorted(extensions) == [
        *(f"semel/broker/network/{name}" for name in NETWORK),
        "semel/broker/three",
        *(f"semel/client/{name}" for name in CLIENT),
        "semel/mqtt/inner/two",
        "semel/mqtt/one",
        *(f"semel/store/{name}" for name in STORE),
        "semel__mypyc",
    ]
    program = (
        "import semel.broker.three\n"
        "import semel.mqtt\n"
        "print(semel.broker.three.THREE)\n"
        "print(semel.mqtt.add(1))\n"
        "try:\n    semel.mqtt.add(-1)\n"
        "except AssertionError:\n    print('asserts')\n"
    )
    assert run_installed(wheel, tmp_path / "site", program).split() == ["3", "3", "asserts"]


@pytest.mark.skipif(
    os.environ.get("SEMEL_TEST_MODE") != "compiled", reason="no wheel is under test"
)
def test_the_wheel_under_test_holds_the_package_and_nothing_else() -> None:
    files = importlib.metadata.files("semel")
    assert files is not None
    check_contents([file.as_posix() for file in files if ".." not in file.parts])
