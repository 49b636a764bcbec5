"""Measures what each extra installs, and prints the table of docs/start/install.md.

    python -m tests.reference.extra_sizes [--wheel FILE] [EXTRA …]

Each extra is installed into a virtual environment of its own that has nothing else, not even pip,
in the versions of constraints.txt. The download is the size of all wheels; the size on disk is that
of all files which pip wrote, bytecode included. MB are 1,000,000 bytes. Without --wheel a pure
wheel of this repository is built first. `none` is semel without an extra.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
CONSTRAINTS = HOME / "constraints.txt"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
NONE = "none"
# How many packages a row names, and from which size on.
NAMED = 3
LEAST = 1_000_000


@dataclass(frozen=True)
class Installed:
    """What an environment has: bytes of all wheels, and bytes by package, the largest first."""

    download: int
    sizes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.sizes.values())


def extras() -> list[str]:
    """The extras of pyproject.toml, after semel without one."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]
    names = sorted(set(project["optional-dependencies"]) - {"all"})
    return [NONE, *names, "all"]


def build_wheel(folder: Path) -> Path:
    """A pure wheel of this repository."""
    pinned = ["--build-constraint", str(CONSTRAINTS), "--no-deps"]
    subprocess.run(
        [*PIP, "wheel", *pinned, "--wheel-dir", str(folder), str(HOME)],
        env=os.environ | {"SEMEL_PURE": "1"},
        check=True,
    )
    (wheel,) = folder.glob("semel-*.whl")
    return wheel


def install(wheel: Path, extra: str, folder: Path) -> Installed:
    """Install the wheel with an extra into a new environment, and measure it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    what = str(wheel) if extra == NONE else f"{wheel}[{extra}]"
    wheels = folder / "wheels"
    pinned = ["-c", str(CONSTRAINTS), what]
    subprocess.run([*PIP, "wheel", "--wheel-dir", str(wheels), *pinned], check=True)
    python = ["--python", str(folder / "bin" / "python")]
    local = ["--no-index", "--find-links", str(wheels)]
    subprocess.run([*PIP, *python, "install", *local, *pinned], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    return Installed(sum(each.stat().st_size for each in wheels.iterdir()), measure(site))


def measure(site: Path) -> dict[str, int]:
    """The bytes of every package that is installed in a folder, the largest first."""
    sizes = {each.metadata["Name"]: size_of(each) for each in distributions(path=[str(site)])}
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    return {name: sizes[name] for name in ordered}


def size_of(distribution: Distribution) -> int:
    """The bytes of a package's files, those that pip compiled included."""
    files = {Path(str(each.locate())).resolve() for each in distribution.files or ()}
    return sum(file.stat().st_size for file in files if file.is_file())


def megabytes(size: int) -> str:
    """A size in MB: with one decimal where that says something."""
    return f"{size / 1e6:,.1f}" if size < 10e6 else f"{size / 1e6:,.0f}"


def row(extra: str, found: Installed) -> str:
    """A line of the table."""
    large = [name for name, size in found.sizes.items() if size >= LEAST][:NAMED]
    named = ", ".join(f"{name} {megabytes(found.sizes[name])}" for name in large)
    shown = "–" if extra == NONE else f"`{extra}`"
    size = f"{megabytes(found.download)} | {megabytes(found.total)}"
    return f"| {shown} | {len(found.sizes)} | {size} | {named} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--wheel", type=Path, help="install this wheel; by default a pure one")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="by default all of them")
    given = parser.parse_args()
    if unknown := set(given.extras) - set(extras()):
        parser.error(f"there is no extra {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = given.wheel.resolve() if given.wheel else build_wheel(folder / "wheel")
        print("| extra | packages | MB to download | MB on disk | the largest on disk, in MB |")
        print("|---|---:|---:|---:|---|")
        for extra in given.extras or extras():
            print(row(extra, install(wheel, extra, folder / extra)), flush=True)
            shutil.rmtree(folder / extra)
    return 0


if __name__ == "__main__":
    sys.exit(main())
