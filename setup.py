"""Compiles the hot modules with mypyc while a wheel is built; configuration is in pyproject.toml.

They are semel.mqtt, semel.broker but for its settings and its users, and of its network shell,
semel.store and semel.client what their loops use. The sources are ordinary Python and work
uncompiled, so compiling is all or nothing: either every one of them (but the ``__init__`` files)
becomes an extension module, or none does and one sentence says why. None does when SEMEL_PURE=1 is
set, when no C compiler works, when compilation fails, and in an editable install, which exists to
run the sources. With SEMEL_PURE=0 a build that cannot compile fails instead.

Everything that is generated goes to a temporary folder, and each attempt has its own: nothing is
written under src/, and nothing left by an earlier build can end up in a wheel.
"""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError
from setuptools.extension import Extension

# What is compiled, and what is left out of its folders.
COMPILED = (
    "src/semel/mqtt",
    "src/semel/broker",
    "src/semel/broker/network/peers.py",
    "src/semel/broker/network/plain_sockets.py",
    "src/semel/store/row_checksums.py",
    "src/semel/store/row_flags.py",
    "src/semel/store/commit.py",
    "src/semel/store/rows.py",
    "src/semel/store/write_batch.py",
    "src/semel/store/store.py",
    "src/semel/store/streams.py",
    "src/semel/client/awaiting_commit.py",
    "src/semel/client/connect_parameters.py",
    "src/semel/client/connection_end.py",
    "src/semel/client/core.py",
    "src/semel/client/disconnecting.py",
    "src/semel/client/events.py",
    "src/semel/client/inbox.py",
    "src/semel/client/keep_alive.py",
    "src/semel/client/received.py",
    "src/semel/client/recording.py",
    "src/semel/client/stored_session.py",
    "src/semel/client/subscriptions.py",
)
INTERPRETED = (
    "__init__.py",
    "src/semel/broker/access/*",
    "src/semel/broker/network/*",
    "src/semel/broker/settings.py",
)


class NotCompiled(Exception):
    """Why this build goes on without compiled modules."""


class BuildAllOrNothing(build_ext):
    """build_ext whose failure reaches us as NotCompiled instead of ending the build."""

    def run(self) -> None:
        try:
            super().run()
        except (BaseError, CCompilerError, OSError) as problem:
            raise NotCompiled("compilation failed: the compiler's words are above") from problem


# Without these, gcc may not inline one function of a shared library into another, nor call it
# directly: decoding takes a fifth longer. A compiler that does not know one does without it.
WANTED_FLAGS = ("-fno-semantic-interposition", "-fno-plt")


def known_flags(folder: str) -> list[str]:
    """Those of the wanted flags that the compiler takes; NotCompiled if it compiles nothing."""
    compile_probe(folder, [])
    known: list[str] = []
    for flag in WANTED_FLAGS:
        try:
            compile_probe(folder, ["-Werror", flag])
        except NotCompiled:
            continue
        known.append(flag)
    return known


def compile_probe(folder: str, flags: list[str]) -> None:
    """Return if a C file that includes Python.h compiles, else raise NotCompiled."""
    # setuptools provides distutils, also where Python no longer does, once it is imported.
    from distutils.ccompiler import new_compiler
    from distutils.sysconfig import customize_compiler

    probe = Path(folder, "probe.c")
    probe.write_text("#include <Python.h>\n", encoding="ascii")
    compiler = new_compiler()
    customize_compiler(compiler)
    try:
        compiler.compile(
            [str(probe)],
            output_dir=folder,
            include_dirs=[sysconfig.get_path("include")],
            extra_postargs=flags,
        )
    except (BaseError, CCompilerError, OSError) as problem:
        raise NotCompiled("no working C compiler: it fails on a bare Python.h") from problem


def compiled_in(folder: Path) -> list[Path]:
    """The modules of a folder that are compiled."""
    return [
        path
        for path in folder.rglob("*.py")
        if not any(path.match(left_out) for left_out in INTERPRETED)
    ]


def compiled_modules(folder: str) -> list[Extension]:
    """The extension modules, as C sources under `folder`; NotCompiled if there can be none."""
    if os.environ.get("SEMEL_PURE") == "1":
        raise NotCompiled("SEMEL_PURE=1 is set")
    sources = sorted(
        path.as_posix()
        for name in COMPILED
        for path in (compiled_in(Path(name)) if Path(name).is_dir() else [Path(name)])
    )
    if not sources:
        raise NotCompiled("there is no module to compile")
    flags = known_flags(folder)
    try:
        from mypyc.build import mypycify
    except ImportError as problem:
        raise NotCompiled(f"mypyc cannot be imported: {problem}") from problem
    # No configuration file: strictness is for `make check`. A later mypy with a new complaint
    # about style must not turn a user's build into a slow one. Nor must a package that only
    # modules which are not compiled import: it need not be where the wheel is built.
    arguments = [
        "--config-file=",
        f"--cache-dir={folder}/mypy",
        "--disable-error-code=import-not-found",
        *sources,
    ]
    try:
        modules: list[Extension] = mypycify(  # type: ignore[assignment] # or distutils' class
            arguments, opt_level="3", strip_asserts=False, group_name="semel", target_dir=folder
        )
    except SystemExit as problem:  # how mypycify reports errors, after printing them
        raise NotCompiled(f"mypyc refused the sources: exit {problem.code}") from problem
    for module in modules:
        module.extra_compile_args = [*(module.extra_compile_args or []), *flags]
    return modules


def build(folder: str, extensions: list[Extension]) -> None:
    """Run the command that the build front end asked for, generating under `folder` only."""
    setup(
        ext_modules=extensions,
        cmdclass={"build_ext": BuildAllOrNothing},
        options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}},
    )


def main() -> None:
    """Build; only a wheel has anything to compile (what is editable runs its sources)."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            build(folder, compiled_modules(folder) if "bdist_wheel" in sys.argv else [])
    except NotCompiled as reason:
        if os.environ.get("SEMEL_PURE") == "0":
            sys.exit(f"semel: not built, because {reason}, and SEMEL_PURE=0 is set")
        print(f"semel: built without compiled modules, because {reason}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            build(folder, [])


main()
