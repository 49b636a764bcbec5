"""The pages that are generated from the code are those that `make reference` writes now."""

import ast

import click
import pytest

from semel import cli
from tests.reference.api import (
    PAGES,
    assigned,
    attributes,
    find_definition,
    function_signature,
    members,
)
from tests.reference.commands import all_commands, section_of
from tests.reference.pages import DOCS, generated_pages

GENERATED = generated_pages()


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_current(name: str) -> None:
    found = (DOCS / name).read_text("utf-8")
    assert found == GENERATED[name], f"docs/{name} is not current: run `make reference`"


def test_every_command_has_a_section_with_all_of_its_options() -> None:
    text = GENERATED["reference/commands.md"]
    commands = list(all_commands())
    assert {context.command_path.split()[1] for _, context in commands} == set(cli.COMMANDS)
    assert len(commands) > 70
    for command, context in commands:
        section = section_of(command, context)
        assert section in text
        for parameter in command.get_params(context):
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for flag in parameter.opts:
                    assert flag == "--help" or flag in section, (context.command_path, flag)


def test_a_command_shows_its_help_and_its_examples() -> None:
    (found,) = (
        section_of(command, context)
        for command, context in all_commands()
        if context.command_path == "semel store backup"
    )
    assert found.startswith("### `semel store backup`\n\nCopy a store as it is now")
    assert "```text\nUsage: semel store backup [OPTIONS] [DIR] TARGET\n```\n" in found
    assert "| `--quiet` | Report problems only. |\n" in found
    assert found.endswith("--quiet\n```\n")


def test_every_public_name_of_the_client_and_of_the_pipeline_has_an_entry() -> None:
    listed = {name for page in PAGES for each in page.modules for name in each.names}
    for module in ("semel.client", "semel.pipeline"):
        (names,) = (
            {item.value for item in node.value.elts if isinstance(item, ast.Constant)}
            for node in ast.parse(
                (DOCS.parent / "src" / module.replace(".", "/") / "__init__.py").read_text("utf-8")
            ).body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
        )
        assert names <= listed, module


def test_a_definition_is_found_where_it_is_imported_from() -> None:
    node, source = find_definition("semel", "Client")
    assert isinstance(node, ast.ClassDef)
    assert "class Client:" in source
    with pytest.raises(AssertionError, match="has no Nothing"):
        find_definition("semel.mqtt", "Nothing")


SOURCE = '''
class Example:
    """What it is."""

    # How many there are.
    count: Final[int]
    _hidden: int
    name: str = "none"

    def __init__(self, count: int, *, name: "str" = 'x') -> None:
        self.count = count
        self.other = 1
        self._hidden = 0

    async def run(self, *names: str, **others: int) -> "dict[str, int]":
        """Runs."""

    def undocumented(self): ...
'''


def test_signatures_and_attributes_are_shown_as_programs_see_them() -> None:
    (node,) = ast.parse(SOURCE).body
    assert isinstance(node, ast.ClassDef)
    (run,) = members(node, None)
    shown = function_signature(run, "run", is_method=True)
    assert shown == "await run(*names: str, **others: int) -> dict[str, int]"
    assert attributes(node, SOURCE) == '# How many there are.\ncount: int\nname: str = "none"'
    (start,) = members(node, ("__init__",))
    assert assigned(start) == "count: int\nother"
    with pytest.raises(AssertionError, match="Example has no"):
        members(node, ("missing",))
