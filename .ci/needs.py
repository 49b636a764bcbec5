"""Describe the Python that runs this, or the C compiler too: needs.py python, needs.py compiler

make keeps both descriptions in .build, and makes anew what another Python or compiler has made. If
something is missing that it could not go on without, one sentence says what, and which package of
Debian brings it. An old Python has to understand this file.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile


def missing_python():
    """What this Python lacks for making environments."""
    if sys.version_info < (3, 11):  # noqa: UP036
        return [f"Python 3.11 or newer ({sys.executable} is {sys.version.split()[0]})"]
    try:
        import ensurepip
        import venv
    except ImportError:
        return ["venv with ensurepip (Debian's package python3-venv)"]
    del ensurepip, venv
    return []


def compiler():
    """The command of the compiler, as setuptools chooses it."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shlex.split(command) + shlex.split(os.environ.get("CFLAGS", ""))


def compiles(source):
    """Whether the compiler takes these lines."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "probe.c")
        with open(path, "w") as file:
            file.write(source)
        include = "-I" + sysconfig.get_path("include")
        command = [*compiler(), include, "-c", "-o", os.path.join(folder, "probe.o"), path]
        try:
            return subprocess.call(command, stderr=subprocess.DEVNULL) == 0
        except OSError:
            return False


def missing_compiler():
    """What is lacking for compiling extension modules."""
    if compiles("#include <Python.h>\n"):
        return []
    missing = []
    if not compiles("int nothing;\n"):
        missing.append("a C compiler that works (Debian's package gcc)")
    if missing == [] or not os.path.exists(sysconfig.get_path("include") + "/Python.h"):
        missing.append("Python's headers, Python.h (Debian's package python3-dev)")
    return missing


wants_compiler = sys.argv[1:] == ["compiler"]
missing = missing_python() + (missing_compiler() if wants_compiler else [])
if missing:
    sys.exit("make: this needs " + " and ".join(missing))
# The prefix is the same in and outside an environment that was made with this Python.
print(sys.version, sys.base_prefix)
if wants_compiler:
    print(*compiler(), flush=True)
    subprocess.call([compiler()[0], "--version"])
