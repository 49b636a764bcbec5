"""The site that `make docs` builds: every page is in its navigation, and it loads nothing from
other servers.

What needs mkdocs is skipped where neither this Python nor .venv-docs (`make docs`) has it: with the
theme it takes 140 MB, too much for the environments of the suite.
"""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from tests.test_docs import anchors_of, links_of

HOME = Path(__file__).resolve().parent.parent
DOCS = HOME / "docs"
CONFIG = yaml.safe_load((HOME / "mkdocs.yml").read_text("utf-8"))
ELSEWHERE: dict[str, str] = CONFIG["extra"]["elsewhere"]
INDEX = "README.md"


def load_hooks() -> ModuleType:
    """The hooks as mkdocs loads them: from their file. They import mkdocs only when called."""
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "theme" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = load_hooks()


def pages_in(part: Any) -> list[str]:
    """The pages of a part of the navigation, in order."""
    if isinstance(part, str):
        return [part]
    if isinstance(part, dict):
        return [page for value in part.values() for page in pages_in(value)]
    return [page for each in part for page in pages_in(each)]


def test_the_navigation_lists_every_page_once_and_no_other() -> None:
    listed = pages_in(CONFIG["nav"])
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*pages, *ELSEWHERE])


def test_every_page_from_elsewhere_has_a_source_and_hides_none_of_docs() -> None:
    for page, source in ELSEWHERE.items():
        assert (HOME / source).is_file(), source
        assert not (DOCS / page).exists(), page


def is_finding(page: str) -> bool:
    """Whether it is a report that the index of findings lists."""
    return page.startswith("conformance/findings/") and not page.endswith("/README.md")


def test_the_navigation_has_the_sections_of_the_index() -> None:
    sections = {name: pages_in(part) for each in CONFIG["nav"] for name, part in each.items()}
    _, *parts = (DOCS / INDEX).read_text("utf-8").split("\n## ")
    for part in parts:
        name = part.partition("\n")[0]
        listed = re.findall(r"\]\(([^)]+\.md)\)", part)
        # Findings have an index of their own.
        listed += [page for page in sections[name] if is_finding(page)]
        assert sorted(listed) == sorted(set(sections.pop(name)) - set(ELSEWHERE)), name
    assert set(sections) == {"Home", "Project"}


def test_the_site_makes_the_same_anchors_as_the_host_of_the_repository() -> None:
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
            assert HOOKS.slug(heading.replace("`", ""), "-") in anchors_of(page)


def test_the_theme_loads_no_fonts_and_the_site_no_plugins_but_search() -> None:
    assert CONFIG["theme"]["font"] is False
    assert CONFIG["plugins"] == ["search", "offline"]
    assert not {"extra_javascript", "repo_url"} & set(CONFIG)


def test_the_site_has_the_logo_of_the_page_that_semel_serves() -> None:
    served = HOME / "src" / "semel" / "web" / "page" / "logo.svg"
    assert (DOCS / "images" / "logo.svg").read_bytes() == served.read_bytes()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://cdn.example/a.js"></script>'),
        ("a.html", '<img srcset="a.png 1x, //cdn.example/b.png 2x">'),
        ("a.html", '<link rel="stylesheet" href="http://fonts.example/css">'),
        ("a.html", '<link rel="preconnect" href="https://fonts.example">'),
        ("a.html", "<style>@import 'https://fonts.example/css'</style>"),
        ("a.html", '<p style="background: url(https://cdn.example/a.png)">'),
        ("a.html", '<iframe src="https://video.example"></iframe>'),
        ("a.html", '<svg><use xlink:href="https://cdn.example/a.svg#b"/></svg>'),
        ("a.html", "<script>fetch('https://api.example')</script>"),
        ("a.css", "@font-face { src: url('https://fonts.example/a.woff2') }"),
        ("a.css", '@import url("//fonts.example/css");'),
        ("a.js", "load(`https://cdn.example/${name}.js`)"),
        ("a.svg", "<style>@import url(https://fonts.example/css)</style>"),
    ],
)
def test_what_would_be_loaded_from_elsewhere_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    (found,) = HOOKS.external_loads(tmp_path)
    assert found.startswith(f"{name}: ")


def test_links_to_other_sites_load_nothing(tmp_path: Path) -> None:
    page = (
        '<a href="https://duckdb.org">DuckDB</a><link rel="canonical" href="https://semel.example">'
        '<img src="data:image/png;base64,AA"><script src="../a.js"></script>'
        "<code>url(https://example.org)</code>"
    )
    (tmp_path / "a.html").write_text(page, "utf-8")
    (tmp_path / "a.css").write_text("p { background: url(data:image/png;base64,AA) }", "utf-8")
    (tmp_path / "a.js").write_text("const svg = 'http://www.w3.org/2000/svg'", "utf-8")
    assert HOOKS.external_loads(tmp_path) == []


# --- the built site -------------------------------------------------------------------------------


def python_with_mkdocs() -> str | None:
    if importlib.util.find_spec("material") and importlib.util.find_spec("mkdocs"):
        return sys.executable
    own = HOME / ".venv-docs" / "bin" / "python"
    return str(own) if (own.parent / "mkdocs").exists() else None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    python = python_with_mkdocs()
    if python is None:
        pytest.skip("not installed: mkdocs-material (make docs installs it in .venv-docs)")
    folder = tmp_path_factory.mktemp("site")
    # Material warns of the end of mkdocs on every run.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(
        [python, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=HOME,
        env=environment | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "WARNING" not in result.stdout + result.stderr
    return folder


class LinkFinder(HTMLParser):
    """The links of a page, and the names in it to which links can lead."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.names.add(value)


def test_the_site_loads_nothing_from_other_servers(site: Path) -> None:
    assert HOOKS.external_loads(site) == []
    for page in site.rglob("*.html"):
        assert "default-src 'self'" in page.read_text("utf-8"), page


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    pages = {path: LinkFinder(path) for path in site.rglob("*.html")}
    assert len(pages) > 80
    for path, page in pages.items():
        # The page for missing ones is served at any address, so its links begin with a slash.
        if path.name == "404.html":
            continue
        for link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            target, _, anchor = link.partition("#")
            found = (path.parent / unquote(target)).resolve() if target else path
            if found.is_dir():
                found /= "index.html"
            assert found.is_file(), (path, link)
            if anchor and found in pages and anchor != "__top":
                assert unquote(anchor) in pages[found].names, (path, link)


def test_every_page_of_the_navigation_is_built_and_can_be_searched(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text("utf-8")
    for page in pages_in(CONFIG["nav"]):
        name = page.replace("README.md", "index.md").removesuffix(".md") + ".html"
        assert (site / name).is_file(), name
        assert page == INDEX or f'"location":"{name}' in index, name


def test_the_first_page_begins_with_that_of_the_repository(site: Path) -> None:
    page = (site / "index.html").read_text("utf-8")
    assert "MQTT straight into Delta tables, exactly once." in page
    assert 'src="images/flow.svg"' in page
    for link in links_of(DOCS / INDEX):
        assert f'href="{link.replace(".md", ".html")}"' in page, link


def test_files_of_the_repository_that_pages_link_to_are_in_the_site(site: Path) -> None:
    page = (site / "operate" / "deploy.html").read_text("utf-8")
    assert 'href="../files/deploy/semel.toml.html"' in page
    assert "maximum_connections" in (site / "files/deploy/semel.toml.html").read_text("utf-8")
    listed = (site / "files" / "examples" / "factory.html").read_text("utf-8")
    assert 'href="factory/simulate.py.html"' in listed
