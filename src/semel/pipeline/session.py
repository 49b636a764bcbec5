"""A SparkSession: the existing one, or a quiet local one.

An existing session is returned unchanged, whether spark-submit, a notebook, Spark Connect or the
program itself created it. Otherwise one is started with defaults that suit commands and tests: it
binds to localhost, serves no web page, logs only errors, uses UTC, writes nothing into the working
directory, and runs this Python and the Java that `semel.pipeline.java` finds. Settings of the user,
in `settings` or in Spark's own files, take precedence.

Spark's scripts read the environment, so it is changed while Spark starts, and restored afterwards.
"""

import atexit
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from semel import __version__
from semel.extras import need
from semel.pipeline import java
from semel.pipeline.errors import PipelineError, sentence_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

# The logging configuration of sessions that we start.
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")

# Settings of every session that we start.
_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark keeps these even without a web page. A landing runs for months, in small batches.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
    # Temporary tables only: no metastore, and no files of one.
    "spark.sql.catalogImplementation": "in-memory",
    # Micro-batches are small and many: keep the metadata of few, and do not poll the source every
    # 10 ms. Batches without data stay enabled: without them a watermark closes no window until more
    # data arrives. Spark makes none for a landing, which has no state.
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.pollingDelay": "100ms",
    # Python functions and writers get record batches of this many rows. Most of what they do costs
    # as much for few rows as for some thousands: as a function of Spark, JSON of ten tables took
    # 21.5 µs per row with 1,024 rows, and 9.1 with these.
    # Spark could limit the bytes of a batch, but would measure it after each row, which takes ten
    # times as long as everything else. Instead, partitions of `format("mqtt")` are limited in bytes
    # (source_partitions), and so are decompressed payloads (arrow_decoding).
    "spark.sql.execution.arrow.maxRecordsPerBatch": "8192",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
# Settings of sessions whose tasks run in the driver's Java.
_LOCAL: Final = {
    # Java checks neither the bounds of Arrow's buffers, which pyarrow has made, nor twice whether a
    # value is null: a sixth of its time. A garbage collector is not chosen here: Java does not
    # start with two, and the user may have chosen one in the environment.
    "spark.driver.defaultJavaOptions": (
        "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
    ),
    # Bytes that Java and Python buffer for each other; Spark's default is 64 KiB.
    "spark.buffer.size": str(1024 * 1024),
}
# For any other master Spark prints a Java stack to stderr.
_MASTER: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(, *[1-9]\d*)?\])?|local-cluster\[ *\d+ *, *\d+ *, *\d+ *\]"
    r"|spark://[^\s:/]+:\d+(,[^\s:/]+:\d+)*|yarn|k8s://\S+"
)
# A cluster whose master listens on localhost only.
_HERE: Final = re.compile(r"spark://(127\.0\.0\.1|localhost):\d+$")
_FORMATS: Final = ("mqtt", "semel_delta")
_STARTING: Final = threading.Lock()
# How long Java may take to exit.
_JAVA_STOP_TIMEOUT: Final = 60.0


def session(
    name: str = "semel", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session that knows `format("mqtt")` and `format("semel_delta")`.

    Returns an existing session. Otherwise one is started with `name`, `master` and `settings`, by
    default with all cores of this machine (`master="local[*]"`). Raises MissingExtra without
    pyspark, PipelineError if there is no Java or Spark does not start.
    """
    need("pyspark.sql", extra="spark", by="semel.pipeline.session()")
    with _STARTING:
        spark = _existing()
        if spark is None:
            spark = _start(name, master, dict(settings or {}))
            _silence_accumulators(spark)
    if not _knows_formats(spark):
        register(spark)
    return spark


def _silence_accumulators(spark: "SparkSession") -> None:
    """Print no traceback if Java dies: whoever uses the session gets an error."""
    server = getattr(getattr(spark, "_sc", None), "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def register(spark: "SparkSession") -> None:
    """Register `format("mqtt")` and `format("semel_delta")` with `spark`.

    A session in an environment with semel finds both automatically. Other sessions need this call:
    their Python workers have another environment, or semel was installed after they started.
    """
    from semel.pipeline.sink import DeltaSink
    from semel.pipeline.source import MqttSource

    spark.dataSource.register(MqttSource)
    spark.dataSource.register(DeltaSink)


def close(spark: "SparkSession") -> None:
    """Stop `spark`, and wait until the Java process that was started for it has ended.

    `spark.stop()` alone keeps the process until the program ends. After this, the next session
    starts a new one, with its own environment and memory.
    """
    accumulators = getattr(getattr(spark, "_sc", None), "_accumulatorServer", None)
    spark.stop()
    if accumulators is not None:
        accumulators.server_close()  # stop() does not
    _end_java()


@contextmanager
def temporary_session(name: str, *, master: str | None = None) -> "Iterator[SparkSession]":
    """A session during the block, as `session` gives it, and closed as `close` does it."""
    made = session(name, master=master)
    try:
        yield made
    finally:
        close(made)


def trial() -> dict[str, str | list[str]]:
    """Start a session, run a Python worker, stop the session; returns the versions found.

    For `semel doctor`, in a separate process. Raises PipelineError, or the error of a query.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    spark = session("semel doctor", master="local[1]", settings={"spark.driver.memory": "1g"})
    try:
        rows = spark.range(1).mapInArrow(_worker_versions, "python string, semel string").collect()
        faults = []
        for name in _FORMATS:
            try:
                spark.read.format(name).load()
            except (Py4JError, PySparkException) as problem:
                # Without options it must fail, with our message.
                if sentence_of(problem) is None:
                    faults.append(f"format {name}: {str(problem).splitlines()[0]}")
        java_version = getattr(spark._jvm, "java.lang.System").getProperty("java.version")
        seen = {"spark": spark.version, "java": java_version, "faults": faults}
        return seen | rows[0].asDict()
    finally:
        close(spark)


def _worker_versions(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
    """For each batch, a row with the Python executable and the semel version of this worker."""
    import pyarrow

    for _ in batches:
        yield pyarrow.RecordBatch.from_pylist([{"python": sys.executable, "semel": __version__}])


def _existing() -> "SparkSession | None":
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        # A session is active only in threads that used it. Without options this changes nothing.
        return SparkSession.builder.getOrCreate()
    return active


def _start(name: str, master: str | None, settings: dict[str, str]) -> "SparkSession":
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    running = SparkContext._gateway is not None
    changes: dict[str, str] = {}
    if master is None and os.environ.get("SPARK_REMOTE"):
        chosen = os.environ["SPARK_REMOTE"]
        everything = {"spark.app.name": name} | settings
    else:
        user_settings = _user_settings()
        chosen = (
            master or settings.get("spark.master") or user_settings.get("spark.master", "local[*]")
        )
        if _MASTER.fullmatch(chosen) is None:
            raise PipelineError(
                f"{chosen} is not a Spark master: give local[*] (all cores of this machine), "
                "local[N], spark://HOST:PORT, yarn or k8s://ADDRESS"
            )
        everything = {"spark.app.name": name} | settings | {"spark.master": chosen}
        for key, value in _defaults(chosen).items():
            if key not in user_settings:
                everything.setdefault(key, value)
        changes = _worker_environment(chosen)
        if not running and "PYSPARK_GATEWAY_PORT" not in os.environ:
            changes |= _jvm_environment(chosen)
    builder = SparkSession.builder
    for key, value in everything.items():
        builder.config(key, value)
    try:
        with _environment(changes):
            return builder.getOrCreate()
    except (OSError, Py4JError, PySparkException) as problem:
        sentence = _describe_failure(problem, chosen)  # needs the Java process
        if not running:
            _end_java()
        raise PipelineError(sentence) from problem


def _end_java() -> None:
    """End the Java process, if this program started it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return  # there is none, or spark-submit started it
    with SparkContext._lock:
        SparkContext._gateway = None
        SparkContext._jvm = None
    gateway.shutdown()
    process.stdin.close()  # makes it exit
    try:
        process.wait(_JAVA_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _defaults(master: str) -> dict[str, str]:
    """The default settings of a new session."""
    defaults = _ALWAYS | {"spark.sql.warehouse.dir": _temporary_folder().as_uri()}
    if _is_local(master):
        # One partition per core: the default of 200 suits a cluster, and each costs a task.
        cores = re.fullmatch(r"local(?:\[(\d+)(?:,.*)?\])?", master)
        partitions = len(os.sched_getaffinity(0)) if cores is None else int(cores[1] or 1)
        defaults |= _LOCAL | {
            "spark.driver.memory": f"{_driver_memory()}m",
            "spark.sql.shuffle.partitions": str(partitions),
        }
    if _is_local(master) or _HERE.match(master) is not None:
        # No other machine has to reach the driver.
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    folders = _source_folders()
    if folders:
        # For executors; Python processes beside the driver inherit it.
        defaults["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(folders)
    return defaults


def _is_local(master: str) -> bool:
    """Whether everything runs in the driver."""
    return master == "local" or master.startswith("local[")


@cache
def _temporary_folder() -> Path:
    """A folder for tables that a session creates; it is deleted when the process ends."""
    folder = tempfile.mkdtemp(prefix="semel-warehouse-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _driver_memory() -> int:
    """MiB for the JVM of a local session: a quarter of the memory of the machine or container.

    At least 1 GiB, Spark's default, and at most 4 GiB: rows are mostly in the Python workers.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = "max"
    if limit.isdecimal():
        memory = min(memory, int(limit))
    return min(max(memory // 4 >> 20, 1024), 4096)


def _worker_environment(master: str) -> dict[str, str]:
    """Environment variables for a new context, even if its JVM is running already."""
    if _is_local(master) or "PYSPARK_PYTHON" not in os.environ:
        return {"PYSPARK_PYTHON": sys.executable}
    return {}


def _jvm_environment(master: str) -> dict[str, str]:
    """Environment variables for a new JVM."""
    changes = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    # NumPy's threads would wait for work in busy loops. Spark sets this for tasks, but not for the
    # Python processes that plan and commit.
    changes["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    changes["JAVA_HOME"] = os.fspath(java.java_home(java.require_java()))
    folders = [*_source_folders(), *filter(None, [os.environ.get("PYTHONPATH")])]
    if folders:
        changes["PYTHONPATH"] = os.pathsep.join(folders)
    if _settings_folder() is None:
        changes["SPARK_CONF_DIR"] = os.fspath(_logging_folder())
    if _is_local(master) and not os.environ.get("SPARK_HOME"):
        home = _home_without_archives(java.private_folders(), _installed_folders())
        if home is not None:
            changes["SPARK_HOME"] = os.fspath(home)
    return changes


def _home_without_archives(folders: Iterable[Path], installed: Container[str]) -> Path | None:
    """Spark's home without the archive of pyspark, or None if workers would not find pyspark.

    Spark puts the archive of its home first on the path of its Python processes. Python keeps no
    compiled code of an archive, so each of them compiled pyspark again: 0.6 s, and a query starts
    several. Without the archive they import the installed pyspark.

    The home is in the first of `folders` that can be used; `installed` are the folders of packages
    that workers find.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    if os.path.realpath(package.parent) not in installed:
        return None
    for folder in folders:
        home = folder / f"home-{java.digest(os.fsencode(package))}"
        try:
            home.mkdir(mode=0o700, exist_ok=True)
            for name in ("bin", "jars"):
                with suppress(FileExistsError):
                    (home / name).symlink_to(package / name)
                if not (home / name).samefile(package / name):
                    break
            else:
                return home
        except OSError:
            continue
    return None


def _logging_folder() -> Path:
    """A configuration folder for Spark that contains only the logging configuration."""
    content = _LOG4J.read_bytes()
    for folder in java.private_folders():
        settings = folder / f"conf-{java.digest(content)}"
        try:
            java.write_private(settings / _LOG4J.name, content)
        except OSError:
            continue
        return settings
    raise PipelineError(
        "Spark needs a configuration folder: set XDG_CACHE_HOME or TMPDIR to a folder that you own"
    )


def _settings_folder() -> Path | None:
    """The folder with the user's Spark configuration, if there is one."""
    if os.environ.get("SPARK_CONF_DIR"):
        return Path(os.environ["SPARK_CONF_DIR"])
    folder = Path(os.environ.get("SPARK_HOME", ""), "conf")
    if not os.environ.get("SPARK_HOME"):
        return None
    files = ("spark-defaults.conf", "spark-env.sh", "log4j2.properties")
    return folder if any((folder / file).is_file() for file in files) else None


def _user_settings() -> dict[str, str]:
    """The settings of spark-submit, or of the user's spark-defaults.conf."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    folder = _settings_folder()
    if folder is None:
        return {}
    try:
        text = (folder / "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        words = line.strip().replace("=", " ", 1).split(maxsplit=1)
        if len(words) == 2 and not words[0].startswith(("#", "!")):
            found[words[0]] = words[1]
    return found


def _source_folders() -> list[str]:
    """Folders that Python workers need on their path to import our packages.

    None if semel is installed, because they run the same Python. A source tree may be on our path
    for a reason that does not apply to them.
    """
    installed = _installed_folders()
    folders = []
    for package in ("semel", "pyspark_mqtt", "pyspark_semel_delta"):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue
        folder = os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))
        if os.path.realpath(folder) not in installed and folder not in folders:
            folders.append(folder)
    return folders


def _installed_folders() -> set[str]:
    """The folders of packages that are installed for this Python, and so for workers."""
    return {os.path.realpath(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change environment variables of this process temporarily."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _knows_formats(spark: "SparkSession") -> bool:
    """Whether `spark` has both formats; False if it cannot be asked (Spark Connect)."""
    from py4j.protocol import Py4JError

    try:
        known = spark._jsparkSession.sessionState().dataSourceManager()
        return all(known.dataSourceExists(name) for name in _FORMATS)
    except (AttributeError, Py4JError):
        return False


def _describe_failure(problem: Exception, master: str) -> str:
    """One sentence that says why Spark did not start."""
    cause = getattr(problem, "java_exception", None)
    words = str(problem if cause is None else cause.getMessage()).strip().splitlines()
    if words and "stopped SparkContext" in words[0]:
        # The only message for a master that never answered.
        words = ["it does not answer, or ended the application at once"]
    return f"Spark did not start with master {master}: {words[0] if words else problem!r}"
