"""The hooks of mkdocs: what the site has beside the pages of docs/.

The pages are written for the host of the repository, where a link may lead to any file of it. The
site has the same files under other names:

    docs/operate/store.md     operate/store.md
    bench/README.md           prove/measurements.md, as `extra.elsewhere` in mkdocs.yml says
    deploy/semel.toml         files/deploy/semel.toml.md, a page that shows the file
    README.md                 its first part, with docs/README.md below it, is the first page

`on_files` adds what is not in docs/, and `on_page_markdown` rewrites the links of each page.
`on_post_build` removes what the theme would load from other servers, and fails if anything of the
site still would.
"""

import posixpath
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

HOME: Final = "README.md"
# Code, in which there are no links; a link or a source of an image.
LINK: Final = re.compile(
    r"(?P<code>^ *(?P<fence>`{3,}).*?^ *(?P=fence)`*$|`[^`]*`)"
    r'|(?P<before>\]\(|\bsrc=")(?P<target>[^)"\s]+)',
    re.MULTILINE | re.DOTALL,
)
# A block without a language that begins with a prompt.
SESSION: Final = re.compile(r"^( *```)(?=\n *\$ )", re.MULTILINE)
# A folder with more than this is listed without its contents.
LARGEST_FOLDER: Final = 256 * 1024
LANGUAGES: Final = {
    ".ipynb": "json",
    ".json": "json",
    ".py": "python",
    ".service": "ini",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
    "Dockerfile": "docker",
}

# Programs that the theme would load, or ask, for features that this site does not use: diagrams,
# facts about a repository, old browsers.
UNUSED: Final = re.compile(r"https://(?:unpkg\.com|api\.github\.com|\$\{e\}/api)[^\"'`]*")
SOURCE_MAP: Final = re.compile(r"(?://#|/\*#) sourceMappingURL=.*$", re.MULTILINE)
# Links of a page that lead somewhere, and load nothing.
LEADING: Final = frozenset(("alternate", "canonical", "next", "prev"))
ELSEWHERE: Final = re.compile(r"(?:https?:)?//", re.IGNORECASE)
# What a style sheet loads; what a program may load, but for names of XML.
STYLE_LOADS: Final = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")
PROGRAM_LOADS: Final = re.compile(r"""["'`](https?://(?!www\.w3\.org/)[^"'`\s]+)""")


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading, as the host of the repository makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def root_of(config: "MkDocsConfig") -> Path:
    """The folder of the repository."""
    return Path(config.docs_dir).parent


def source_of(page: str, config: "MkDocsConfig") -> str:
    """The path in the repository of what a page of the site shows."""
    elsewhere: dict[str, str] = config.extra["elsewhere"]
    return elsewhere.get(page) or f"docs/{page}"


def page_of(path: str, config: "MkDocsConfig") -> str:
    """The page, or the file of docs/, that shows this path of the repository on the site."""
    for page, source in config.extra["elsewhere"].items():
        if path == source:
            return str(page)
    if path == HOME or path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}.md"


def targets_of(text: str, source: str) -> Iterator[str]:
    """The paths in the repository to which a text at `source` links."""
    for found in LINK.finditer(text):
        path = (found["target"] or "").partition("#")[0]
        if path and ":" not in path:
            yield posixpath.normpath(posixpath.join(posixpath.dirname(source), path))


def rewrite_links(text: str, source: str, page: str, config: "MkDocsConfig") -> str:
    """A text of the repository with its links as they are on a page of the site."""

    def rewrite(found: re.Match[str]) -> str:
        target, hash_sign, anchor = (found["target"] or "").partition("#")
        if not target or ":" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        link = posixpath.relpath(page_of(path, config), posixpath.dirname(page) or ".")
        return f"{found['before']}{link}{hash_sign}{anchor}"

    return LINK.sub(rewrite, text)


def first_part(readme: str) -> str:
    """The README without its heading, up to the section about installing."""
    return readme.partition("\n")[2].partition("\n## ")[0]


def first_page(introduction: str, index: str) -> str:
    """What semel is, and the index of all pages with a box for each of its sections."""
    _, *sections = index.split("\n## ")
    boxes = [f"<section markdown>\n\n## {each}\n\n</section>\n" for each in sections]
    return (
        f'<div class="semel-home" markdown>\n\n# semel\n{introduction}\n'
        f'<div class="semel-index" markdown>\n\n{"".join(boxes)}\n</div>\n</div>\n'
    )


def contents(folder: Path) -> list[Path]:
    """The files in a folder of the repository."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if "__pycache__" not in path.parts)


def page_about(path: str, config: "MkDocsConfig") -> str:
    """A page that shows a file of the repository, or lists the files of a folder."""
    place = root_of(config) / path
    head = f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n"
    if place.is_file():
        text = place.read_text("utf-8")
        fence = max(["``", *re.findall(r"`{3,}", text)], key=len) + "`"
        language = LANGUAGES.get(place.suffix or place.name, "text")
        return f"{head}{fence}{language}\n{text.rstrip()}\n{fence}\n"
    files = contents(place)
    small = sum(each.stat().st_size for each in files) <= LARGEST_FOLDER
    lines = []
    for each in files:
        name = each.relative_to(place).as_posix()
        lines.append(f"- [`{name}`]({place.name}/{name}.md)\n" if small else f"- `{name}`\n")
    return f"{head}The repository has these files in the folder:\n\n{''.join(lines)}"


def linked_files(config: "MkDocsConfig") -> set[str]:
    """What pages of the site link to and is neither in docs/ nor a page from elsewhere."""
    root = root_of(config)
    sources = {source.relative_to(root).as_posix() for source in (root / "docs").rglob("*.md")}
    sources |= set(config.extra["elsewhere"].values())
    linked = {
        target
        for source in sources
        for target in targets_of((root / source).read_text("utf-8"), source)
        if page_of(target, config).startswith("files/")
    }
    for folder in [root / each for each in linked if (root / each).is_dir()]:
        files = contents(folder)
        if sum(each.stat().st_size for each in files) <= LARGEST_FOLDER:
            linked |= {each.relative_to(root).as_posix() for each in files}
    return linked


# --- nothing from elsewhere -----------------------------------------------------------------------


class LoadFinder(HTMLParser):
    """Finds the addresses on other servers from which a page loads something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._inside = tag
        loaded = [values.get("src", ""), values.get("poster", ""), values.get("data", "")]
        loaded += [each.strip().partition(" ")[0] for each in values.get("srcset", "").split(",")]
        if tag == "link" and not LEADING & set(values.get("rel", "").split()):
            loaded.append(values.get("href", ""))
        if tag in ("use", "image"):
            loaded += [values.get("href", ""), values.get("xlink:href", "")]
        self.found += [each for each in loaded if ELSEWHERE.match(each)]
        self.found += STYLE_LOADS.findall(values.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.found += STYLE_LOADS.findall(data)
        elif self._inside == "script":
            self.found += PROGRAM_LOADS.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def external_loads(site: Path) -> list[str]:
    """Everything that the site would load from another server, each with the file that does."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            finder = LoadFinder()
            finder.feed(path.read_text("utf-8"))
            addresses = finder.found
        elif path.suffix in (".css", ".svg"):
            addresses = STYLE_LOADS.findall(path.read_text("utf-8"))
        # The index of the search has the text of pages, and runs nothing.
        elif path.suffix == ".js" and path.name != "search_index.js":
            addresses = PROGRAM_LOADS.findall(path.read_text("utf-8"))
        else:
            continue
        found += [f"{path.relative_to(site)}: {address}" for address in addresses]
    return found


def remove_unused(site: Path) -> None:
    """Remove what the theme brings and this site does not use."""
    # Other languages for the search.
    shutil.rmtree(site / "assets" / "javascripts" / "lunr", ignore_errors=True)
    for path in sorted(site.joinpath("assets").rglob("*.*")):
        if path.suffix == ".map":
            path.unlink()
        elif path.suffix in (".css", ".js"):
            text = path.read_text("utf-8")
            path.write_text(UNUSED.sub("about:invalid", SOURCE_MAP.sub("", text)), "utf-8")


# --- called by mkdocs -----------------------------------------------------------------------------


def on_config(config: "MkDocsConfig") -> None:
    config.mdx_configs["toc"]["slugify"] = slug
    config.extra["logo"] = (Path(config.docs_dir) / "images" / "logo.svg").read_text("utf-8")


def on_files(files: "Files", config: "MkDocsConfig") -> None:
    from mkdocs.structure.files import File

    root = root_of(config)
    for page, source in config.extra["elsewhere"].items():
        text = (root / source).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    for path in sorted(linked_files(config)):
        files.append(File.generated(config, f"files/{path}.md", content=page_about(path, config)))


def on_page_markdown(
    markdown: str, page: "Page", config: "MkDocsConfig", files: "Files"
) -> str | None:
    name = page.file.src_uri
    if name.startswith("files/"):
        return None
    text = rewrite_links(markdown, source_of(name, config), name, config)
    if name == HOME:
        readme = first_part((root_of(config) / "README.md").read_text("utf-8"))
        page.meta = {"title": "semel", "hide": ["navigation", "toc"]}
        text = first_page(rewrite_links(readme, "README.md", name, config), text)
    return SESSION.sub(r"\1console", text)


def on_post_build(config: "MkDocsConfig") -> None:
    from mkdocs.exceptions import PluginError

    site = Path(config.site_dir)
    remove_unused(site)
    found = external_loads(site)
    if found:
        raise PluginError("the site would load from other servers: " + ", ".join(found))
