"""`semel doctor`: check what this machine has for semel, what it lacks, and what to do about it.

Each check returns one finding: a subject, a state (ok, missing, problem), a sentence, and advice.
*Missing* is something optional that is not installed. *Problem* is something installed that is not
usable. The command fails only if an installed extra does not work: without Java, a machine with the
extra `spark` is broken, and another one is not.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path
from typing import Final

import click

import semel
from semel import __version__
from semel.cli.flags import ONE_OBJECT, shared_option
from semel.cli.option_groups import SemelCommand
from semel.cli.safe_text import shown_text
from semel.cli.version import is_compiled
from semel.extras import EXTRAS, missing
from semel.pipeline import java
from semel.pipeline.errors import PipelineError

OK: Final = "ok"
MISSING: Final = "missing"
PROBLEM: Final = "problem"

# The first with `INSERT … ON CONFLICT DO UPDATE` without a column.
OLDEST_SQLITE: Final = (3, 35, 0)
LEAST_FREE: Final = 1 << 30
LEAST_FILES: Final = 4096
# The file systems that this process sees.
MOUNTS: Final = Path("/proc/self/mountinfo")
# Spark starts in ten seconds; on a busy machine, in a minute.
SPARK_TIMEOUT: Final = 300
# Network file systems: the effect of locks and flushes depends on the server, and the shared memory
# of SQLite's WAL does not work across machines.
REMOTE: Final = frozenset(
    [
        *("9p", "afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs"),
        *("nfs", "nfs4", "smb3", "smbfs"),
    ]
)
# Our modules that use the packages of an extra: an incompatible version fails to import here.
USERS: Final = {
    "broker": ("semel.broker.network.server",),
    "client": ("semel.client.websocket",),
    "spark": ("semel.pipeline.lake", "semel.pipeline.sink", "semel.pipeline.source"),
    "sql": ("semel.pipeline.lake", "semel.up.sql"),
}
PEERS: Final = {
    "mosquitto": (["-h"], "a broker for comparison: install the package mosquitto"),
    "tshark": (["--version"], "it writes and reads captures: install the package tshark"),
}
_ORDER: Final = {"<": (-1,), "<=": (-1, 0), "==": (0,), "!=": (-1, 1), ">=": (0, 1), ">": (1,)}


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check."""

    subject: str
    state: str
    text: str
    todo: str = ""
    broken: bool = False
    """Whether an installed extra does not work."""
    details: dict[str, object] = field(default_factory=dict)


@click.command(
    cls=SemelCommand, examples=("semel doctor", "semel doctor --spark --data /var/lib/semel --json")
)
@click.option("--spark", is_flag=True, help="Start a Spark session too, which takes 10 s or more.")
@shared_option(
    "--data",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The directory for a store, a root or a lake. By default the current directory.",
)
@ONE_OBJECT
def command(spark: bool, folder: Path, is_json: bool) -> None:
    """Check what this machine has for semel, what is missing or unusable, and what to do about it.

    The exit code is 1 if an installed extra does not work.
    """
    findings = []
    for finding in examine(folder, spark=spark):
        findings.append(finding)
        if not is_json:
            print_finding(finding)
    broken = [finding for finding in findings if finding.broken]
    if is_json:
        result = {"works": not broken, "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(result))
    if broken:
        subjects = ", ".join(dict.fromkeys(finding.subject for finding in broken))
        click.echo(f"Error: does not work: {subjects}", err=True)
        sys.exit(1)


def print_finding(finding: DoctorFinding) -> None:
    """Print a line, and a second one if there is something to do."""
    color = {OK: "green", MISSING: "yellow", PROBLEM: "red"}[finding.state]
    state = click.style(f"{finding.state:<8}", fg=color)
    click.echo(f"{finding.subject:<14} {state} {shown_text(finding.text)}")
    if finding.todo:
        click.echo(f"{'':<23} -> {shown_text(finding.todo)}")


def examine(folder: Path, *, spark: bool) -> Iterator[DoctorFinding]:
    """All findings in order, each as soon as it is known."""
    yield python()
    yield DoctorFinding(
        "semel",
        OK,
        f"{__version__}, {'compiled' if is_compiled() else 'interpreted'}, in {_home()}",
        details={"version": __version__, "compiled": is_compiled()},
    )
    for extra in EXTRAS:
        yield packages(extra)
    has_spark = not missing("spark")
    yield from javas(is_needed=has_spark)
    yield from spark_home(is_needed=has_spark)
    if spark:
        yield session(has_spark=has_spark)
    yield sqlite()
    yield file_system(folder)
    yield space(folder)
    yield open_files()
    for peer in PEERS:
        yield program(peer)


def _home() -> Path:
    return Path(semel.__file__).parent


def python() -> DoctorFinding:
    """The Python that runs this. pip does not install semel for one that is too old."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    return DoctorFinding("python", OK, f"{name}, {sys.executable}", details={"version": name})


# --- packages -------------------------------------------------------------------------------------


def packages(extra: str) -> DoctorFinding:
    """Whether the packages of an extra are installed, importable and of a supported version."""
    subject = f"extra {extra}"
    names = {name: names[0] for name, names in packages_distributions().items()}
    absent = missing(extra)
    try:
        requirements = requires("semel") or []
    except PackageNotFoundError:  # semel runs from a source tree
        requirements = []
    versions: dict[str, str | None] = {}
    faults: list[str] = []
    for module in EXTRAS[extra]:
        distribution = names.get(module, module)
        versions[distribution] = None
        if module in absent:
            continue
        try:
            versions[distribution] = version(distribution)
        except PackageNotFoundError:
            versions[distribution] = "of unknown version"
        faults += unloadable(module)
        found = versions[distribution] or ""
        faults += misfits(extra, distribution, found, requirements=requirements)
    if not absent and not faults:
        faults = [fault for module in USERS.get(extra, ()) for fault in unloadable(module)]
    installed = [f"{name} {found}" for name, found in versions.items() if found is not None]
    todo = f"pip install 'semel[{extra}]'"
    details: dict[str, object] = {"packages": versions}
    if faults:
        text = "; ".join(faults)
        return DoctorFinding(subject, PROBLEM, text, todo, broken=not absent, details=details)
    if absent:
        text = f"lacks {', '.join(absent)}"
        if installed:
            text += f"; has {', '.join(installed)}"
        return DoctorFinding(subject, MISSING, text, todo, details=details)
    return DoctorFinding(subject, OK, ", ".join(installed), details=details)


def unloadable(module: str) -> list[str]:
    """Why `module` cannot be imported; empty if it can."""
    try:
        import_module(module)
    except Exception as problem:  # a package may raise anything when it is imported
        return [f"{module} cannot be imported: {_one_line(problem)}"]
    return []


def misfits(extra: str, distribution: str, found: str, *, requirements: Iterable[str]) -> list[str]:
    """Why semel's requirements exclude this version of a package of `extra`; empty if it fits."""
    for line in requirements:
        text, _, marker = line.partition(";")
        name = re.match(r"[\w.-]+", text)
        if name is None or f"extra == '{extra}'" not in marker.replace('"', "'"):
            continue
        if _plain(name[0]) == _plain(distribution) and not satisfies(found, text[name.end() :]):
            return [f"{distribution} {found} is not {text[name.end() :].strip()}"]
    return []


def satisfies(found: str, specifier: str) -> bool:
    """Whether version `found` matches `specifier`, such as ">=4.3,<4.4"; True if unclear."""
    have = _numbers(found)
    for sign, limit in re.findall(r"(<=|>=|==|!=|<|>)\s*([\d.]+)", specifier):
        numbers = _numbers(limit)
        width = max(len(have), len(numbers))
        left, right = (part + (0,) * (width - len(part)) for part in (have, numbers))
        if have and ((left > right) - (left < right)) not in _ORDER[sign]:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- Java and Spark -------------------------------------------------------------------------------


def javas(*, is_needed: bool) -> Iterator[DoctorFinding]:
    """Those that were skipped, with the reason, and then the Java that Spark will use."""
    result = java.find_java()
    for each in result.skipped:
        # JAVA_HOME was set on purpose, a Java in PATH was possibly not.
        state = PROBLEM if each.origin == "JAVA_HOME" else OK
        todo = "unset JAVA_HOME, or point it to Java 17 or newer" if state == PROBLEM else ""
        text = f"skipped: {each.program} ({each.origin}) {each.reason}"
        yield DoctorFinding("java", state, text, todo, details=asdict(each))
    found = result.java
    if found is None:
        state = PROBLEM if is_needed else MISSING
        yield DoctorFinding(
            "java", state, "none that Spark can use", java.INSTALL, broken=is_needed
        )
        return
    details: dict[str, object] = {
        "program": os.fspath(found.program),
        "version": found.version,
        "origin": found.origin,
    }
    text = f"{found.version} from {found.origin}, {found.program}"
    try:
        java.java_home(found)
    except PipelineError as problem:
        yield DoctorFinding(
            "java", PROBLEM, f"{text}; {problem}", broken=is_needed, details=details
        )
        return
    yield DoctorFinding("java", OK, text, details=details)


def spark_home(*, is_needed: bool) -> Iterator[DoctorFinding]:
    """SPARK_HOME, if it is set: pyspark then runs that Spark and not its own."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        return
    todo = "unset SPARK_HOME: pyspark contains a Spark"
    details: dict[str, object] = {"SPARK_HOME": home}
    jars = sorted(Path(home, "jars").glob("spark-core_*.jar"))
    if not jars:
        text = f"SPARK_HOME is {home}, which has no Spark"
        yield DoctorFinding("spark", PROBLEM, text, todo, broken=is_needed, details=details)
        return
    found = jars[0].stem.rpartition("-")[2]
    text = f"SPARK_HOME is {home}, with Spark {found}"
    with contextlib.suppress(PackageNotFoundError):
        ours = version("pyspark")
        if ours != found:
            text += f", and pyspark is {ours}"
            yield DoctorFinding("spark", PROBLEM, text, todo, broken=is_needed, details=details)
            return
    yield DoctorFinding("spark", OK, text, details=details)


def session(*, has_spark: bool) -> DoctorFinding:
    """Start Spark in a separate process, because it may hang and print to its output."""
    if not has_spark:
        return DoctorFinding(
            "session", MISSING, "not tested without Spark", "pip install 'semel[spark]'"
        )
    code = "import json; from semel.pipeline.session import trial; print(json.dumps(trial()))"
    try:
        process = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=SPARK_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        text = f"Spark did not start within {SPARK_TIMEOUT} s"
        return DoctorFinding(
            "session", PROBLEM, text, "check what java and python are doing", broken=True
        )
    lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
    if process.returncode != 0:
        text = lines[-1].removeprefix("semel.pipeline.errors.PipelineError: ")
        return DoctorFinding(
            "session", PROBLEM, text, broken=True, details={"stderr": process.stderr[-20000:]}
        )
    seen = json.loads(process.stdout.splitlines()[-1])
    text = f"Spark {seen['spark']} on Java {seen['java']} started, and its Python worker answered"
    if seen["faults"]:
        text = "; ".join([text, *seen["faults"]])
        return DoctorFinding("session", PROBLEM, text, broken=True, details=seen)
    return DoctorFinding("session", OK, f"{text}, as did both data sources", details=seen)


# --- the machine ----------------------------------------------------------------------------------


def sqlite(oldest: tuple[int, int, int] = OLDEST_SQLITE) -> DoctorFinding:
    """The SQLite of this Python, which a store uses."""
    details: dict[str, object] = {"version": sqlite3.sqlite_version}
    if sqlite3.sqlite_version_info < oldest:
        text = f"{sqlite3.sqlite_version} is older than {'.'.join(map(str, oldest))}"
        todo = "use a Python with a newer SQLite"
        return DoctorFinding("sqlite", PROBLEM, text, todo, broken=True, details=details)
    return DoctorFinding("sqlite", OK, sqlite3.sqlite_version, details=details)


def file_system(folder: Path, mounts: Path = MOUNTS) -> DoctorFinding:
    """Whether files in `folder` can be flushed, locked and shared as a store requires."""
    kind = _kind(folder, mounts)
    where = f"{folder.resolve()} ({kind})"
    details: dict[str, object] = {"folder": os.fspath(folder.resolve()), "type": kind}
    try:
        with tempfile.TemporaryDirectory(prefix=".semel-doctor-", dir=folder) as directory:
            fault = _fault(Path(directory))
    except OSError as problem:
        text = f"{where} cannot be written to ({problem.strerror})"
        return DoctorFinding("folder", PROBLEM, text, "choose another --data", details=details)
    if fault is None and kind in REMOTE:
        fault = "is on another machine, whose locks and flushes cannot be checked from here"
    if fault is None and kind in ("tmpfs", "ramfs"):
        fault = "is in memory and is lost when the machine restarts"
    if fault is not None:
        text = f"{where} {fault}"
        return DoctorFinding("folder", PROBLEM, text, "put stores on a local disk", details=details)
    return DoctorFinding("folder", OK, f"{where} flushes, locks and shares files", details=details)


def _fault(directory: Path) -> str | None:
    """What does not work in an empty directory; files are left in it."""
    try:
        with open(directory / "file", "wb") as first, open(directory / "file", "rb") as second:
            first.write(b"semel")
            first.flush()
            os.fsync(first.fileno())
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return "does not lock files: two processes could write one store"
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as problem:
        return f"cannot flush or lock files ({problem.strerror})"
    try:
        with contextlib.closing(sqlite3.connect(directory / "database")) as database:
            mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            database.execute("CREATE TABLE t (x)")
    except sqlite3.Error as problem:
        return f"does not work for SQLite ({problem})"
    return None if mode == "wal" else "cannot share memory, which SQLite's WAL needs"


def _kind(folder: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system that holds `folder`, as the kernel names it."""
    path = os.fspath(folder.resolve())
    best, kind = "", "unknown"
    with contextlib.suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            left, _, right = line.partition(" - ")
            # Spaces and some other characters are octal escapes.
            point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), left.split()[4])
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):  # the last mount is on top
                best, kind = point, right.split()[0]
    return kind


def space(folder: Path, least: int = LEAST_FREE) -> DoctorFinding:
    """The free space of `folder`."""
    free = shutil.disk_usage(folder).free
    text = f"{free / (1 << 30):,.1f} GiB free"
    details: dict[str, object] = {"free_bytes": free}
    if free < least:
        return DoctorFinding(
            "disk", PROBLEM, text, "free some space: a full disk stops a broker", False, details
        )
    return DoctorFinding("disk", OK, text, details=details)


def open_files(least: int = LEAST_FILES) -> DoctorFinding:
    """How many files and connections one process may have; a broker raises its limit to this."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    unlimited = limit == resource.RLIM_INFINITY
    text = "unlimited" if unlimited else f"at most {limit:,} per process"
    details: dict[str, object] = {"limit": None if unlimited else limit}
    if not unlimited and limit < least:
        todo = f"raise it: ulimit -Hn {least}, or LimitNOFILE of a systemd unit"
        text += ", which limits connections"
        return DoctorFinding("open files", PROBLEM, text, todo, details=details)
    return DoctorFinding("open files", OK, text, details=details)


def program(name: str) -> DoctorFinding:
    """Another program that semel can work with."""
    arguments, use = PEERS[name]
    path = shutil.which(
        name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
    )
    if path is None:
        return DoctorFinding(name, MISSING, "not installed, and not required", use)
    try:
        output = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as problem:
        return DoctorFinding(name, PROBLEM, f"{path} does not run ({_one_line(problem)})", use)
    found = re.search(r"\d+\.\d+(?:\.\d+)?", output)
    number = found[0] if found else "of unknown version"
    return DoctorFinding(
        name, OK, f"{number}, {path}", details={"program": path, "version": number}
    )


def _one_line(problem: BaseException) -> str:
    """The text of an exception on one line."""
    words = str(problem).split()
    return " ".join(words)[:200] or type(problem).__name__
