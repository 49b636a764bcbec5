"""What the README shows is true: its examples run, and its figures are those of the benchmark.

Every command and example of the README is run by a test:

    semel up, pub, sub, sql     tests/up/spark/test_readme.py, with Spark
    the example for Spark       tests/pipeline/spark/test_pages.py
    the example for asyncio     tests/client/live/test_page.py
    the example for pytest      here
    the landing file            here, that it is one; tests/pipeline lands such files
    the last line of the demo   tests/cli/spark/test_demo.py; here, that it is that of the recording
    the promises                the tests that they name; here, that there are such tests

`pip install` and the make targets would build an environment each time. Here only their extras and
targets are looked up; tests/test_build.py and tests/test_extras.py build and install the package.
"""

import ast
import itertools
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from semel import cli
from semel.lab.demo_reconciliation import Verdict
from semel.pipeline.landing_file import read_landing_file
from tests.lab.as_user import run

pytest_plugins = ["pytester"]

HOME = Path(__file__).resolve().parent.parent
README = HOME / "README.md"
TEXT = README.read_text("utf-8")
COMMANDS = re.findall(r"^\$ semel (.*?)(?:\s+#.*)?$", TEXT, re.MULTILINE)
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
# What the example for pytest calls: a program that reconnects and sends again what it must.
PROGRAM = """
import paho.mqtt.client as mqtt


class Program:
    def __init__(self, port):
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="program")
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def send(self, topic, payload):
        self.client.publish(topic, payload, qos=1)


def start_my_program(url):
    return Program(int(url.rpartition(":")[2]))
"""


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_readme_has_valid_options(line: str) -> None:
    name, *arguments = shlex.split(line)
    command = cli.group.get_command(click.Context(cli.group), name)
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("-")} <= known
    command.make_context(name, arguments, parent=click.Context(cli.group))


def test_the_readme_shows_four_commands_and_begins_with_what_starts_all() -> None:
    assert len(COMMANDS) == 4
    assert COMMANDS[0] == "up"


def test_every_python_example_of_the_readme_is_python() -> None:
    assert len(EXAMPLES) == 3
    for example in EXAMPLES:
        ast.parse(example)


def test_the_example_for_pytest_passes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = (each for each in EXAMPLES if "mqtt_broker" in each)
    pytester.makepyfile(
        my_program=PROGRAM, test_example=f"from my_program import start_my_program\n\n{example}"
    )
    # The program of the example is never stopped.
    result = run(pytester, monkeypatch, "-p", "no:unraisableexception", "-q")
    assert result.parseoutcomes() == {"passed": 1}, result.stdout.str()


def test_every_extra_of_the_readme_exists() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]
    named = set(re.findall(r"\.\[(\w+)\]", TEXT))
    assert named == {"all", "broker", "decoders", "sql", "spark", "web"}
    assert named <= set(project["optional-dependencies"])


def test_the_landing_file_of_the_readme_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    path = tmp_path / "landing.toml"
    path.write_text(block, "utf-8")
    (table,) = read_landing_file(path).tables
    assert table.template.explain("site/a/7/temp") is None


def test_every_make_target_of_the_readme_exists() -> None:
    named = set(re.findall(r"`make ([\w-]+)", TEXT))
    assert {"run", "demo", "bench"} <= named
    targets = re.findall(r"^([\w-]+):", (HOME / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert named <= set(targets)


PROMISES = re.findall(r"^\| (.+) \| \[`(\w+)`\]\((tests/[\w/]+\.py)\) \|$", TEXT, re.MULTILINE)


def is_test(name: str, path: str) -> bool:
    """Whether pytest runs a function of this name in this file, and does not always skip it."""
    file = HOME / path
    if not file.name.startswith("test_") or not name.startswith("test_") or not file.exists():
        return False
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == name
        and any(isinstance(each, ast.Assert | ast.Call) for each in ast.walk(node))
        and not any(
            re.search(r"mark\.(skip|xfail)\b", ast.unparse(each)) for each in node.decorator_list
        )
        for node in ast.parse(file.read_text("utf-8")).body
    )


def test_every_promise_names_a_test() -> None:
    section = TEXT.partition("\n## Promises\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    # The first row has the titles.
    assert len(PROMISES) == len(rows) - 1 >= 10


def test_the_page_on_tests_lists_what_each_promise_costs() -> None:
    page = (HOME / "docs" / "prove" / "tests.md").read_text("utf-8")
    assert re.findall(r"\[`(\w+)`\]\(\.\./\.\./(tests/[\w/]+\.py)\) \| [\d.]+ \|", page) == [
        (name, path) for _, name, path in PROMISES
    ]


@pytest.mark.parametrize(("promise", "name", "path"), PROMISES)
def test_the_test_of_a_promise_exists(promise: str, name: str, path: str) -> None:
    assert is_test(name, path), promise


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("test_every_promise_is_broken", "tests/test_readme.py"),
        ("is_test", "tests/test_readme.py"),
        ("test_every_promise_names_a_test", "tests/test_nothing.py"),
        ("test_every_promise_names_a_test", "tests/modes.py"),
    ],
)
def test_a_promise_whose_test_does_not_exist_is_noticed(name: str, path: str) -> None:
    assert not is_test(name, path)
    assert is_test("test_every_promise_names_a_test", "tests/test_readme.py")


def test_the_last_line_of_the_demo_is_what_the_demo_prints() -> None:
    (shown,) = re.findall(r"^published .*$", TEXT, re.MULTILINE)
    verdict = Verdict(50_000, 662, 50_000, 50_000, 0, 0, (), 0)
    assert str(verdict) == shown
    # tests/lab/test_demo_recording.py checks the picture.
    assert f">{shown}</text>" in (HOME / "docs" / "images" / "demo.svg").read_text("utf-8")


def shown_figure(measured: str) -> str:
    """A figure of the benchmark as the README rounds it."""
    value = float(measured.replace(",", ""))
    rounded = round(value, 1 if value > 0.1 else 3)
    return f"{rounded:,.1f}".removesuffix(".0") if value > 0.1 else str(rounded)


@pytest.mark.parametrize(
    ("row", "start", "figures"),
    [
        ("QoS 0, 16 B, pipelined", "| a: 1→1 ", ("0.070", "8.07", "86.6")),
        ("QoS 1, durable sessions, 200 B", "| durable1: ", ("5.80", "20.1")),
        ("QoS 0, one message at a time", "| p50: ", ("10.5", "11.7", "143")),
        (
            "a new connection",
            "| connections: ",
            ("128 / 2.30", "72.8 / 0.73", "1,202 / 49.5"),
        ),
        ("client, publish QoS 1", "| publish, QoS 1 ", ("9.9", "60.9", "42.6")),
    ],
)
def test_the_figures_of_the_comparison_are_those_of_the_bench(
    row: str, start: str, figures: tuple[str, ...]
) -> None:
    lines = (HOME / "bench" / "README.md").read_text("utf-8").splitlines()
    # The same scenario has a row in other sections too, measured on another day.
    after = lines[lines.index("## The comparison of the README") + 1 :]
    own = list(itertools.takewhile(lambda each: not each.startswith("#"), after))
    (line,) = (each for each in own if each.startswith(start))
    (compared,) = (each for each in TEXT.splitlines() if each.startswith(f"| {row}"))
    cells = re.findall(r"[\d.,]*\d", compared.partition("|")[2].partition("|")[2])
    expected = [shown_figure(part) for figure in figures for part in figure.split(" / ")]
    assert [figure for figure in figures if not re.search(rf"\| {re.escape(figure)}\b", line)] == []
    assert cells == expected


def test_the_comparison_names_the_day_of_its_figures() -> None:
    (day,) = re.findall(r"all of one day\s+\((\d+\s+\w+ \d{4})\)", TEXT)
    section = (HOME / "bench" / "README.md").read_text("utf-8").partition("of the README\n")[2]
    assert f"on one day, {' '.join(day.split())}" in section
