"""The suite runs in two modes, and a run may not mistake one for the other.

SEMEL_TEST_MODE=interpreted: semel comes from this repository's src/, and no core module (those of
semel.mqtt and of semel.broker, but for its settings, its users and most of its network shell) is an
extension.
SEMEL_TEST_MODE=compiled: semel comes from site-packages, every core module but the ``__init__``
files is an extension, and it was built from the sources that are in src/ now. Without the variable
the run only reports what it found.
"""

import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Generator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The suite says the same twice, also on a machine that has much else to do. For what is new in
# each run there are `make fuzz`, `make schedules` and `make histories`.
settings.register_profile(
    "suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

# A Spark that lives for a minute should not spend a third of it on being quick for hours.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Tests run beside each other, and the page has one port by default. Those of the page set another.
os.environ.setdefault("SEMEL_WEB_ENABLED", "false")

SOURCES = Path(__file__).resolve().parent.parent / "src"

# What measures this process, if it was told to at its start.
COVERAGE = sys.modules["coverage"].Coverage.current() if "coverage" in sys.modules else None

# Of the rooms that are compiled, these modules are not, but for the two that serve plain sockets.
INTERPRETED = ("broker/settings.py", "broker/access/*", "broker/network/*")
SERVING = ("broker/network/peers.py", "broker/network/plain_sockets.py")


def origin(module: str) -> Path:
    """The file that `module` would be imported from; UsageError if there is none."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise pytest.UsageError(f"{module} is in src/ but cannot be imported")
    return Path(spec.origin).resolve()


def core_modules() -> dict[str, Path]:
    """The modules that a wheel has compiled: name to source file."""
    return {
        ".".join(path.relative_to(SOURCES).with_suffix("").parts): path
        for room in ("mqtt", "broker")
        for path in sorted((SOURCES / "semel" / room).rglob("*.py"))
        if path.name != "__init__.py"
        and (
            any(path.match(name) for name in SERVING)
            or not any(path.match(left_out) for left_out in INTERPRETED)
        )
    }


def is_extension(path: Path) -> bool:
    return path.name.endswith(tuple(EXTENSION_SUFFIXES))


def check_interpreted() -> None:
    package = origin("semel").parent
    if package != SOURCES / "semel":
        raise pytest.UsageError(f"interpreted mode: semel comes from {package}, not from src/")
    for module in core_modules():
        if is_extension(origin(module)):
            raise pytest.UsageError(f"interpreted mode: {module} is compiled")


def check_compiled() -> None:
    package = origin("semel").parent
    if package.parent.name != "site-packages":
        raise pytest.UsageError(f"compiled mode: semel comes from {package}, not site-packages")
    for module, source in core_modules().items():
        found = origin(module)
        if not is_extension(found):
            raise pytest.UsageError(f"compiled mode: {module} is not; .build/wheel.log says why")
        installed = package.parent / source.relative_to(SOURCES)
        if installed.read_bytes() != source.read_bytes():
            raise pytest.UsageError(f"compiled mode: {module} is older than src/; build it again")


def pytest_sessionstart(session: pytest.Session) -> None:
    if not session.config.getoption("numprocesses", None):
        # This process runs tests, and measures itself if it was told to. It does not tell those
        # that it starts: a broker in a process of its own is as quick as a user's.
        os.environ.pop("COVERAGE_PROCESS_START", None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # So it is in what a shell runs in the background; it would be so in brokers, too, whom a
        # test ends with Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        # So it is under nohup; brokers, whom a test asks to reload with it, would ignore it, too.
        # They do not inherit a handler.
        signal.signal(signal.SIGHUP, lambda *_: None)
    mode = os.environ.get("SEMEL_TEST_MODE")
    if mode == "interpreted":
        check_interpreted()
    elif mode == "compiled":
        check_compiled()
    elif mode is not None:
        raise pytest.UsageError(f"SEMEL_TEST_MODE is {mode!r}, not interpreted or compiled")


# What a test in a folder called `core` may not do, as audit events of the interpreter: it would
# wait, or depend on how busy the machine is. `make quick` runs all of these folders.
NOT_IN_CORE = frozenset(
    (
        *("socket.bind", "socket.connect", "time.sleep"),
        *("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"),
    )
)
CORE = frozenset(("core", "mqtt", "simulation"))
in_core = False


def refuse_in_core(event: str, arguments: tuple[object, ...]) -> None:
    if in_core and event in NOT_IN_CORE and arguments != (0,):
        raise AssertionError(f"{event} in a test of a folder core; tests that wait are in live/")


sys.addaudithook(refuse_in_core)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave the tests themselves out of garbage collection.

    They are tens of thousands of items, which stay. Tests of asyncio collect garbage, so that what
    one has left behind is its own failure: searching all items took a second each time.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global in_core
    in_core = not CORE.isdisjoint(item.path.parts)
    measure_own_room(item)
    try:
        return (yield)
    finally:
        in_core = False


def measure_own_room(item: pytest.Item) -> None:
    """Measure a room by its own tests: those of others take half the time unmeasured."""
    if COVERAGE is None:
        return
    room = item.path.relative_to(SOURCES.parent / "tests").parts[0]
    wanted = f"semel.{room}" in COVERAGE.get_option("run:source_pkgs")
    if wanted != (COVERAGE.current() is not None):
        if wanted:
            COVERAGE.start()
        else:
            COVERAGE.stop()


def pytest_report_header() -> str:
    compiled = sum(is_extension(origin(module)) for module in core_modules())
    return f"semel: {origin('semel').parent}, {compiled} of {len(core_modules())} modules compiled"
