"""A SparkSession: the one that there is, or a quiet local one.

A session that exists is returned as it is, whoever made it: spark-submit, a notebook, Spark
Connect, the program itself. Otherwise one is started, and all that Spark would do by default and
that does not suit a command or a test is set: it binds to this machine only, serves no web page,
prints errors only, keeps time in UTC, writes nothing into the working folder, runs this very
Python and a Java that can be found (`semel.pipeline.java`). Settings that a user gives, in
`settings` or in Spark's own files, win over ours.

The environment of the process is changed while Spark starts, because that is where Spark's scripts
look, and is put back afterwards.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

# What is printed: errors, on stderr. The gateway is named because Spark announces another level if
# it has none of its own. What is off tells, with the stacks of the JVM and once for each attempt,
# what the exception says that the query ends with.
_LOG: Final = b"""\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} spark %p %c{1}: %m%n%ex{2}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.writes.name = org.apache.spark.sql.execution.datasources.v2
logger.writes.level = off
logger.queries.name = org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution
logger.queries.level = off
logger.context.name = org.apache.spark.SparkContext
logger.context.level = error
logger.context.filter.start.type = RegexFilter
logger.context.filter.start.regex = Error initializing SparkContext.*
logger.context.filter.start.onMatch = DENY
logger.context.filter.start.onMismatch = NEUTRAL
logger.util.name = org.apache.spark.util.Utils
logger.util.level = error
logger.util.filter.aborts.type = RegexFilter
logger.util.filter.aborts.regex = Aborting task.*
logger.util.filter.aborts.onMatch = DENY
logger.util.filter.aborts.onMismatch = NEUTRAL
"""

# For every session that is started.
_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without a web page they are kept all the same. A landing runs for months, in small steps.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
    # Tables of the session only: no metastore, and none of its files.
    "spark.sql.catalogImplementation": "in-memory",
    # Micro-batches are small and many: keep the notes of few, and do not ask the source every 10 ms
    # whether there is more. Batches without data stay enabled: without them a watermark closes no
    # window until more data comes. A landing has no state, and Spark makes none for it.
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.pollingDelay": "100ms",
    # A writer in Python gets record batches of this many rows. Spark could bound them by bytes, but
    # would ask for the size of a batch after each row, which takes ten times as long as all else:
    # what bounds them are the bytes of a partition of `format("mqtt")` (source_partitions).
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # Batch reads of `format("mqtt")` skip what a filter rules out.
    "spark.sql.python.filterPushdown.enabled": "true",
}
# Spark says what it thinks of any other with a stack on stderr.
_MASTER: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(, *[1-9]\d*)?\])?|local-cluster\[ *\d+ *, *\d+ *, *\d+ *\]"
    r"|spark://[^\s:/]+:\d+(,[^\s:/]+:\d+)*|yarn|k8s://\S+"
)
# A cluster whose master listens on this machine only.
_HERE: Final = re.compile(r"spark://(127\.0\.0\.1|localhost):\d+$")
_FORMATS: Final = ("mqtt", "semel_delta")
_STARTING: Final = threading.Lock()
# How long Java may take to end when it is told to.
_JAVA_STOP_TIMEOUT: Final = 60.0


def session(
    name: str = "semel", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session that knows `format("mqtt")` and `format("semel_delta")`.

    One that exists is returned, and `name`, `master` and `settings` are for one that has to be
    started: by default with all cores of this machine (`master="local[*]"`). Raises MissingExtra
    without pyspark, PipelineError if there is no Java or Spark does not start.
    """
    need("pyspark.sql", extra="spark", by="semel.pipeline.session()")
    with _STARTING:
        spark = _existing()
        if spark is None:
            spark = _start(name, master, dict(settings or {}))
    if not _knows_formats(spark):
        register(spark)
    return spark


def register(spark: "SparkSession") -> None:
    """Make `format("mqtt")` and `format("semel_delta")` known to `spark`.

    A session of an environment that has semel finds both by itself. This is for one that does
    not: its Python workers see another environment, or the packages came after it.
    """
    from semel.pipeline.sink import DeltaSink
    from semel.pipeline.source import MqttSource

    spark.dataSource.register(MqttSource)
    spark.dataSource.register(DeltaSink)


def close(spark: "SparkSession") -> None:
    """Stop `spark`, end the Java process that was started for it, and wait for that.

    `spark.stop()` alone leaves the process to the end of the program. After this, the next session
    starts a new one, with its own environment and memory.
    """
    accumulators = getattr(getattr(spark, "_sc", None), "_accumulatorServer", None)
    spark.stop()
    if accumulators is not None:
        accumulators.server_close()  # which stop() does not do
    _end_java()


def trial() -> dict[str, str | list[str]]:
    """Start a session, have a Python worker answer, end it; what was seen on the way.

    For `semel doctor`, in a process of its own. Raises PipelineError, or what a query fails with.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    spark = session("semel doctor", master="local[1]", settings={"spark.driver.memory": "1g"})
    try:
        rows = spark.range(1).mapInArrow(_who_works, "python string, semel string").collect()
        faults = []
        for name in _FORMATS:
            try:
                spark.read.format(name).load()
            except (Py4JError, PySparkException) as problem:
                # Without options it has to complain, and in our words.
                if sentence_of(problem) is None:
                    faults.append(f"format {name}: {str(problem).splitlines()[0]}")
        java_version = getattr(spark._jvm, "java.lang.System").getProperty("java.version")
        seen = {"spark": spark.version, "java": java_version, "faults": faults}
        return seen | rows[0].asDict()
    finally:
        close(spark)


def _who_works(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
    """A row about what runs this, for each batch."""
    import pyarrow

    for _ in batches:
        yield pyarrow.RecordBatch.from_pylist([{"python": sys.executable, "semel": __version__}])


def _existing() -> "SparkSession | None":
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        # Active is what this thread has used. Without options this changes nothing in it.
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
        elsewhere = _settings_elsewhere()
        chosen = master or settings.get("spark.master") or elsewhere.get("spark.master", "local[*]")
        if _MASTER.fullmatch(chosen) is None:
            raise PipelineError(
                f"there is no Spark master {chosen}: give local[*] (all cores of this machine), "
                "local[N], spark://HOST:PORT, yarn or k8s://ADDRESS"
            )
        everything = {"spark.app.name": name} | settings | {"spark.master": chosen}
        for key, value in _defaults(chosen).items():
            if key not in elsewhere:
                everything.setdefault(key, value)
        changes = _worker_environment(chosen)
        if not running and "PYSPARK_GATEWAY_PORT" not in os.environ:
            changes |= _jvm_environment()
    builder = SparkSession.builder
    for key, value in everything.items():
        builder.config(key, value)
    try:
        with _environment(changes):
            return builder.getOrCreate()
    except (OSError, Py4JError, PySparkException) as problem:
        sentence = _why_not(problem, chosen)  # before the process goes that it has to ask
        if not running:
            _end_java()
        raise PipelineError(sentence) from problem


def _end_java() -> None:
    """End the Java process that this program has started, if it has."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return  # none, or somebody else's, such as that of spark-submit
    with SparkContext._lock:
        SparkContext._gateway = None
        SparkContext._jvm = None
    gateway.shutdown()
    process.stdin.close()  # which tells it to end
    try:
        process.wait(_JAVA_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _defaults(master: str) -> dict[str, str]:
    """Our settings for a session that has to be started."""
    defaults = _ALWAYS | {"spark.sql.warehouse.dir": _temporary_folder().as_uri()}
    if _is_local(master):
        # A partition for each core; 200, the default, are for a cluster, and cost a task each.
        cores = re.fullmatch(r"local(?:\[(\d+)(?:,.*)?\])?", master)
        partitions = len(os.sched_getaffinity(0)) if cores is None else int(cores[1] or 1)
        defaults |= {
            "spark.driver.memory": f"{_driver_memory()}m",
            "spark.sql.shuffle.partitions": str(partitions),
        }
    if _is_local(master) or _HERE.match(master) is not None:
        # Nobody on another machine has to reach the driver.
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    places = _source_folders()
    if places:
        # For executors; the planner beside the driver has it from the environment.
        defaults["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(places)
    return defaults


def _is_local(master: str) -> bool:
    """Whether the driver is all there is of Spark."""
    return master == "local" or master.startswith("local[")


@cache
def _temporary_folder() -> Path:
    """A folder of this process, for tables that a session may make; it goes with the process."""
    folder = tempfile.mkdtemp(prefix="semel-warehouse-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _driver_memory() -> int:
    """MiB for the JVM of a local session: a quarter of the machine's or container's memory.

    At least 1 GiB, Spark's default, and at most 4: rows are in the Python workers, beside it.
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
    """What the start of a context reads, whoever has started its JVM."""
    if _is_local(master) or "PYSPARK_PYTHON" not in os.environ:
        return {"PYSPARK_PYTHON": sys.executable}
    return {}


def _jvm_environment() -> dict[str, str]:
    """What a JVM that has to be started is told, beside its settings."""
    changes = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    changes["JAVA_HOME"] = os.fspath(java.java_home(java.require_java()))
    places = [*_source_folders(), *filter(None, [os.environ.get("PYTHONPATH")])]
    if places:
        changes["PYTHONPATH"] = os.pathsep.join(places)
    if _settings_folder() is None:
        changes["SPARK_CONF_DIR"] = os.fspath(_quiet_folder())
    return changes


def _quiet_folder() -> Path:
    """A settings folder of ours for Spark: it says what to log, and nothing else."""
    for folder in java.private_folders():
        settings = folder / f"conf-{java.digest(_LOG)}"
        try:
            java.put(settings / "log4j2.properties", _LOG)
        except OSError:
            continue
        return settings
    raise PipelineError(
        "Spark needs a folder for its settings: give XDG_CACHE_HOME or TMPDIR a folder that you own"
    )


def _settings_folder() -> Path | None:
    """The folder with the user's own settings for Spark, if there is one."""
    if os.environ.get("SPARK_CONF_DIR"):
        return Path(os.environ["SPARK_CONF_DIR"])
    folder = Path(os.environ.get("SPARK_HOME", ""), "conf")
    if not os.environ.get("SPARK_HOME"):
        return None
    files = ("spark-defaults.conf", "spark-env.sh", "log4j2.properties")
    return folder if any((folder / file).is_file() for file in files) else None


def _settings_elsewhere() -> dict[str, str]:
    """What spark-submit was told, or what the user's spark-defaults.conf says."""
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
    """Folders that the Python workers need on their path to import what we have imported.

    None if semel is installed: they run the same Python. A source tree may have come onto our
    path in a way that they do not know.
    """
    installed = {os.path.realpath(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    folders = []
    for package in ("semel", "pyspark_mqtt", "pyspark_semel_delta"):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue
        folder = os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))
        if os.path.realpath(folder) not in installed and folder not in folders:
            folders.append(folder)
    return folders


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """The environment of this process with `changes`, for a while."""
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
    """Whether `spark` has both formats; False also if it cannot say (Spark Connect)."""
    from py4j.protocol import Py4JError

    try:
        known = spark._jsparkSession.sessionState().dataSourceManager()
        return all(known.dataSourceExists(name) for name in _FORMATS)
    except (AttributeError, Py4JError):
        return False


def _why_not(problem: Exception, master: str) -> str:
    """One sentence about a Spark that did not start."""
    cause = getattr(problem, "java_exception", None)
    words = str(problem if cause is None else cause.getMessage()).strip().splitlines()
    if words and "stopped SparkContext" in words[0]:
        # All that is left of a master that never answered.
        words = ["nobody answers there, or it has ended the program at once"]
    return f"Spark did not start with master {master}: {words[0] if words else problem!r}"
