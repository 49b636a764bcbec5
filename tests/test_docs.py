"""The pages under docs/ say what is true: their examples run, and work in the broker."""

import doctest
import hmac
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from semel import cli
from semel.broker.authority import Authority
from semel.mqtt import Auth, ConnAck, Connect, Properties
from tests.broker.world import World

HOME = Path(__file__).resolve().parent.parent
PAGES = sorted((HOME / "docs").rglob("*.md"))
WITH_LINKS = [*PAGES, *HOME.glob("*.md"), HOME / "bench" / "README.md"]
PAGE = HOME / "docs" / "program" / "authentication.md"
METHOD = "HMAC-SHA-256"
KEY = b"a key of hers"


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
    """The names of a page's headings, as they stand behind a #."""
    heads = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", WITH_LINKS, ids=lambda page: str(page.relative_to(HOME)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def test_the_index_lists_every_page_once() -> None:
    index = HOME / "docs" / "README.md"
    listed = [(index.parent / link).resolve() for link in links_of(index) if link.endswith(".md")]
    assert sorted(listed) == [page for page in PAGES if page != index]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME / "docs")))
def test_every_page_opens_with_what_it_is_for(page: Path) -> None:
    """One heading, then a paragraph: no list, table, code or further heading comes first."""
    heading, _, rest = page.read_text("utf-8").partition("\n\n")
    assert re.fullmatch(r"# \S.*", heading)
    assert re.match(r"[A-Z*\[]|`[^`]", rest), rest[:40]


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
