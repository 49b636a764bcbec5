"""What the pages under docs/ show is true: commands parse, examples run, links lead somewhere.

Every `semel …` command is parsed here by the command's own parser. Those with output that are
cheap to run are run, here or in the test of their page. `RUN_BY` names the test that runs the
Python examples of a page.
"""

import asyncio
import configparser
import doctest
import hmac
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from semel import Client, Disconnected, Refused, cli
from semel.broker.authority import Authority
from semel.cli.probe import DEFAULT, ProbeGroup
from semel.cli.sections import SECTIONS
from semel.lab.testing import TestBroker
from semel.mqtt import Auth, ConnAck, Connect, Properties
from semel.pipeline.landing_file import read_landing_file
from semel.probe.subjects_file import read_subjects
from semel.settings import SettingsError, load
from tests.broker.broker_process import Process
from tests.broker.world import World

HOME = Path(__file__).resolve().parent.parent
PAGES = sorted((HOME / "docs").rglob("*.md"))
EVERY_PAGE = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(HOME / "docs"))
)
WITH_LINKS = [*PAGES, *HOME.glob("*.md"), HOME / "bench" / "README.md"]
PAGE = HOME / "docs" / "program" / "authentication.md"
# Reports on other software, each with a reproducer of the same name.
FINDINGS = HOME / "docs" / "conformance" / "findings"
OF_CLIENTS = ("gmqtt_qos_2_twice.py",)
METHOD = "HMAC-SHA-256"
KEY = b"a key of hers"

# The tests that run the Python examples of each page.
RUN_BY = {
    "data/delta.md": "pipeline/spark/test_pages.py",
    "data/landing.md": "pipeline/spark/test_pages.py",
    "data/publish.md": "pipeline/spark/test_publish_spark.py",
    "data/spark-live.md": "pipeline/spark/test_pages.py",
    "data/spark.md": "pipeline/spark/test_source_spark.py",
    "data/streams.md": "cli/test_stream_page.py",
    "operate/cluster.md": "pipeline/spark/test_pages.py",
    "program/authentication.md": "test_docs.py",
    "program/client.md": "client/live/test_page.py",
    "program/codec.md": "test_docs.py",
    "program/sessions.md": "test_docs.py",
    "program/testing.md": "lab/test_testing_page.py",
    "reference/codec-adapter.md": "probe/codec/test_libraries.py",
    "start/recipes.md": "pipeline/spark/test_start_pages.py",
    "start/tutorial.md": "pipeline/spark/test_start_pages.py",
}
# Commands that pages mention and that do not exist yet.
PLANNED = {"audit"}
# What ends a command in a shell.
SHELL = ("|", ">", "<", "&", ";")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def authority_of_the_page() -> Authority:
    """The Authority that the page defines, after its examples have run as shown."""
    text = PAGE.read_text("utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    result = doctest.DocTestRunner().run(test, clear_globs=False)
    assert result.attempted > 10
    assert result.failed == 0
    authority = test.globs["authority"]
    assert isinstance(authority, Authority)
    return authority


@pytest.mark.parametrize(
    ("client_id", "method", "key", "code"),
    [
        ("ann", METHOD, KEY, 0),
        ("ann", METHOD, b"a guess", 0x87),
        ("bob", METHOD, KEY, 0x87),
        ("ann", "HMAC-MD5", KEY, 0x8C),
        ("ann", None, KEY, 0x87),
        ("eve", METHOD, KEY, 0x85),
    ],
)
def test_the_hook_of_the_page_on_authentication_lets_in_who_knows_the_key(
    client_id: str, method: str | None, key: bytes, code: int
) -> None:
    world = World(authority=authority_of_the_page())
    client = world.open()
    user_name = "ann" if client_id == "eve" else client_id
    properties = Properties(authentication_method=method)
    (answer,) = client.send(Connect(client_id, user_name=user_name, properties=properties))
    if isinstance(answer, Auth):
        number = answer.properties.authentication_data
        assert number is not None
        proof = hmac.digest(key, number, "sha256")
        said = Properties(authentication_method=METHOD, authentication_data=proof)
        (answer,) = client.send(Auth(0x18, properties=said))
    assert isinstance(answer, ConnAck)
    assert answer.reason == code
    assert client.is_closed() == bool(code)


def links_of(page: Path) -> list[str]:
    """Where a page leads within the repository. What is in code blocks or a comment is no link."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    return [link for link in found if "://" not in link]


def anchors_of(page: Path) -> set[str]:
    """The names of a page's headings, as they stand behind a #. Of those that are the same, the
    second has -1 behind its name, and so on."""
    heads = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
    repeats = [names[:place].count(name) for place, name in enumerate(names)]
    return {
        f"{name}-{count}" if count else name for name, count in zip(names, repeats, strict=True)
    }


@pytest.mark.parametrize("page", WITH_LINKS, ids=lambda page: str(page.relative_to(HOME)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def test_the_index_lists_every_page_once() -> None:
    """Findings have an index of their own."""
    for index in (HOME / "docs" / "README.md", FINDINGS / "README.md"):
        linked = [(index.parent / link).resolve() for link in links_of(index)]
        listed = [page for page in linked if page.suffix == ".md"]
        if index.parent == FINDINGS:
            listed = [page for page in listed if page.parent == FINDINGS]
            expected = [page for page in PAGES if page.parent == FINDINGS and page != index]
        else:
            expected = [page for page in PAGES if page.parent != FINDINGS and page != index]
            expected.append(FINDINGS / "README.md")
        assert sorted(listed) == sorted(expected)


@EVERY_PAGE
def test_every_page_opens_with_what_it_is_for(page: Path) -> None:
    """One heading, then a paragraph: no list, table, code or further heading comes first."""
    heading, _, rest = page.read_text("utf-8").partition("\n\n")
    assert re.fullmatch(r"# \S.*", heading)
    assert re.match(r"[A-Z*\[]|`[^`]", rest), rest[:40]


def test_every_reproducer_of_a_finding_finds_nothing_in_our_broker() -> None:
    with TestBroker() as broker:
        for script in sorted(FINDINGS.glob("*.py")):
            assert script.with_suffix(".md").is_file()
            if script.name in OF_CLIENTS:
                continue
            command = [sys.executable, str(script), broker.host, str(broker.port)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert result.returncode == 0, script.name + result.stdout + result.stderr
            assert result.stdout.endswith("\nright\n")


@pytest.mark.parametrize(("page", "least"), [("codec.md", 12), ("sessions.md", 12)])
def test_the_examples_of_the_core_run_as_shown(page: str, least: int) -> None:
    result = doctest.testfile(
        str(HOME / "docs" / "program" / page),
        module_relative=False,
        optionflags=doctest.IGNORE_EXCEPTION_DETAIL,
    )
    assert result.attempted >= least
    assert result.failed == 0


def test_the_example_of_decode_prints_what_is_shown() -> None:
    text = (HOME / "docs" / "reference" / "decode.md").read_text("utf-8")
    found = re.search(r'\$ semel decode (.*?) "(.*?)"\n(.*?)```', text, re.DOTALL)
    assert found is not None
    options, packet, shown = found.groups()
    result = CliRunner().invoke(cli.group, ["decode", *options.split(), packet])
    assert result.output == shown


# --- commands -------------------------------------------------------------------------------------


def words_of(line: str) -> list[str]:
    """The words of a command line, without a comment and without what comes after a pipe."""
    words = shlex.split(re.sub(r"\s#\s.*", "", line))
    end = next((at for at, word in enumerate(words) if word.startswith(SHELL)), len(words))
    return words[:end]


def shown_commands(page: Path) -> Iterator[list[str]]:
    """The `semel` commands in the blocks of a page, with or without a prompt."""
    for _, block in BLOCK.findall(page.read_text("utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.search(r"(?:^\s*|^\$ .*?|\| |^ExecStart=\S*/)\bsemel ([a-z]+\b.*)", line)
            if found is not None and found[1].split()[0] in cli.COMMANDS:
                yield words_of(found[1])


def mentioned_commands(page: Path) -> Iterator[list[str]]:
    """The `semel` commands in the sentences and tables of a page, which may be incomplete."""
    text = BLOCK.sub("", page.read_text("utf-8"))
    for line in re.findall(r"`semel ([a-z][^`]*)`", text):
        yield words_of(" ".join(line.replace("\\|", "|").split()))


def resolve(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that the words name, the context above it, and its arguments."""
    command: click.Command = cli.group
    context = click.Context(cli.group)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if isinstance(command, ProbeGroup) and "://" in words[0]:
            words = [DEFAULT, *words]
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, name
        if isinstance(found, click.Group):
            context = click.Context(found, parent=context, info_name=name)
        command = found
    return command, context, words


def flags_of(command: click.Command, context: click.Context) -> set[str]:
    """The flags of a command; those of a group are those of its commands."""
    flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            flags |= flags_of(found, context)
    return flags


# tests/cli/test_conventions.py checks the examples of commands, which the page of commands repeats.
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "commands.md"],
    ids=lambda page: str(page.relative_to(HOME / "docs")),
)
def test_every_command_in_a_block_is_valid(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in shown_commands(page):
        command, above, arguments = resolve(words)
        # Parses everything, converts and checks values, and runs nothing.
        command.make_context(command.name, arguments, parent=above)


@EVERY_PAGE
def test_every_command_in_a_sentence_exists_and_has_the_flags(page: Path) -> None:
    for words in mentioned_commands(page):
        if words[0] in PLANNED:
            continue
        command, context, arguments = resolve(words)
        known = flags_of(command, context) | {"--help"}
        flags = {word.partition("=")[0] for word in arguments if re.match(r"--?[A-Za-z]", word)}
        assert flags <= known, words


def test_the_commands_of_the_pages_are_found() -> None:
    shown = {words[0] for page in PAGES for words in shown_commands(page)}
    assert {"up", "broker", "land", "sql", "store", "stream", "ingest", "fleet", "load"} <= shown
    assert sum(1 for page in PAGES for _ in shown_commands(page)) > 40
    assert sum(1 for page in PAGES for _ in mentioned_commands(page)) > 100


def masked(text: str) -> list[str]:
    """The words of a text, without its numbers."""
    return re.sub(r"\d[\d.,:]*\d|\d", "N", text).split()


def output_of(page: str) -> tuple[list[str], str]:
    """The first command of a page, and the first block behind it, which is its output."""
    path = HOME / "docs" / page
    _, (_, output), *_ = BLOCK.findall(path.read_text("utf-8"))
    return next(shown_commands(path)), output


def test_the_example_of_fleet_prints_what_is_shown() -> None:
    words, shown = output_of("prove/fleet.md")
    # As many messages, at that rate, take 50 seconds.
    changes = ("-h", "127.0.0.1", "--count", "500", "--rate", "0")
    with TestBroker() as broker:
        arguments = [*words, *changes, "-p", str(broker.port)]
        result = CliRunner().invoke(cli.group, arguments)
    assert result.exit_code == 0, result.output
    assert masked(result.stdout) == masked(shown)


def test_the_example_of_load_prints_what_is_shown() -> None:
    words, shown = output_of("prove/load.md")
    with TestBroker(store=False) as broker:
        arguments = [broker.url if word.startswith("mqtt://") else word for word in words]
        result = CliRunner().invoke(cli.group, [*arguments, "--count", "20"])
    assert result.exit_code == 0, result.output
    assert masked(result.stdout) == masked(shown)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`data` in the working directory: a store with a session and retained messages."""
    monkeypatch.chdir(tmp_path)

    async def fill(url: str) -> None:
        forever = 0xFFFF_FFFF
        async with Client(
            url, client_id="test-17", user_name="ann", session_expiry=forever
        ) as client:
            await client.subscribe("a", "b", "c", qos=1)
            await client.publish("old/1", "x", qos=1, retain=True)
            await client.publish("old/2", "x", qos=1, retain=True)

    with Process("--data", "data", "--maximum-session-expiry", "4294967295") as broker:
        asyncio.run(fill(f"mqtt://127.0.0.1:{broker.address[1]}"))
        check_shown("operate/store.md", "broker --data data", run_in_process)
    return tmp_path / "data"


def run_in_process(words: list[str]) -> str:
    """What a command prints that has to fail."""
    result = subprocess.run(
        [sys.executable, "-m", "semel", *words], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    return result.stderr


def run_here(words: list[str]) -> str:
    """What a command prints that has to succeed."""
    result = CliRunner().invoke(cli.group, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def check_shown(page: str, start: str, run: Callable[[list[str]], str]) -> None:
    """Run the command of a page that begins so. It prints the lines that are shown below it."""
    text = (HOME / "docs" / page).read_text("utf-8")
    pattern = rf"^\$ semel ({re.escape(start)}.*)\n((?:(?![$`]).*\n)*)"
    found = re.search(pattern, text, re.MULTILINE)
    assert found is not None, start
    replaced = {"DIR": "data", "TARGET": "copy"}
    words = [replaced.get(word, word) for word in words_of(found[1])]
    printed = run(words)
    if found[2]:
        assert masked(printed) == masked(found[2]), start


@pytest.mark.usefixtures("data")
def test_the_commands_of_the_page_on_the_store_print_what_is_shown() -> None:
    for name in ("info", "check", "backup", "export", "repair", "sessions list", "retained list"):
        check_shown("operate/store.md", f"store {name} DIR", run_here)
    for name in ("sessions list", "sessions delete"):
        check_shown("operate/store.md", f"store {name} DIR --match", run_here)
    check_shown("operate/store.md", "store retained delete DIR", run_here)


# --- examples -------------------------------------------------------------------------------------


def test_every_page_with_python_examples_has_a_test_that_runs_them() -> None:
    pages = {
        str(page.relative_to(HOME / "docs"))
        for page in PAGES
        if any(kind == "python" for kind, _ in BLOCK.findall(page.read_text("utf-8")))
    }
    assert pages == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert Path(page).name in (HOME / "tests" / test).read_text("utf-8")


def test_the_example_that_serves_with_a_hook_starts_a_broker(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    (serving,) = (block for _, block in BLOCK.findall(text) if "import run\n" in block)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    program = tmp_path / "serve.py"
    program.write_text(
        doctest.script_from_examples(text) + serving.replace("port=1884", f"port={port}"), "utf-8"
    )

    async def connect() -> None:
        async with Client(f"mqtt://127.0.0.1:{port}"):
            pass

    process = subprocess.Popen([sys.executable, str(program)])
    try:
        end = time.monotonic() + 60
        reason = None
        while reason is None:
            assert process.poll() is None
            assert time.monotonic() < end
            try:
                asyncio.run(connect())
            except Refused as refused:
                reason = refused.reason
            except Disconnected:
                time.sleep(0.05)
    finally:
        process.terminate()
        code = process.wait(60)
    # The hook refuses a client that uses no method.
    assert reason == 0x87
    assert code == 0


@EVERY_PAGE
def test_every_settings_file_of_a_page_loads(page: Path, tmp_path: Path) -> None:
    for kind, block in BLOCK.findall(page.read_text("utf-8")):
        if kind == "toml" and block.startswith("# landing.toml\n"):
            path = tmp_path / "landing.toml"
            path.write_text(block, "utf-8")
            assert read_landing_file(path).tables
        elif kind == "toml" and block.startswith("# subjects.toml\n"):
            path = tmp_path / "subjects.toml"
            path.write_text(block, "utf-8")
            assert read_subjects(path)
        elif kind == "toml":
            path = tmp_path / "semel.toml"
            path.write_text(block, "utf-8")
            load(SECTIONS, path=path, environ={}, flags={})


@EVERY_PAGE
def test_every_unit_file_of_a_page_is_one(page: Path) -> None:
    for kind, block in BLOCK.findall(page.read_text("utf-8")):
        if kind == "ini":
            unit = configparser.ConfigParser(interpolation=None)
            unit.read_string(block)
            assert unit.sections() == ["Unit", "Service", "Install"]
            assert " semel " in unit["Service"]["ExecStart"].replace("/", " ")


def test_the_page_on_settings_shows_how_errors_are_reported(tmp_path: Path) -> None:
    page = HOME / "docs" / "reference" / "settings.md"
    shown = next(block for kind, block in BLOCK.findall(page.read_text("utf-8")) if kind == "text")
    path = tmp_path / "semel.toml"
    path.write_text("[broker]\nport = 99999\nmaximum_conections = 5\n", "utf-8")
    with pytest.raises(SettingsError) as caught:
        load(SECTIONS, path=path, environ={"SEMEL_BROKER_HOTS": "::"}, flags={})
    assert str(caught.value).replace(f"{tmp_path}/", "") + "\n" == shown


# --- figures --------------------------------------------------------------------------------------


def test_the_figures_of_the_page_on_sizing_are_those_of_the_measurements() -> None:
    text = (HOME / "docs" / "operate" / "sizing.md").read_text("utf-8")
    measured = (HOME / "bench" / "README.md").read_text("utf-8").splitlines()
    table = text.partition("## The figures")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| ([\d.,]+)[^|]* \| `([^`]+)` \|$", table, re.MULTILINE)
    assert len(rows) > 15
    for figure, row in rows:
        lines = [line for line in measured if row in line]
        assert any(re.search(rf"(?<![\d.,]){figure}(?![\d.])", line) for line in lines), row
