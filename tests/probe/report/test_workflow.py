"""The workflow of deploy/ci: its commands exist, and its files are those that the probe writes."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import yaml

from semel import cli
from semel.probe.report.files import write_report
from tests.probe.report.hand_made_reports import report

WORKFLOW = Path(__file__).resolve().parents[3] / "deploy" / "ci" / "conformance.yml"


def steps() -> list[dict[str, Any]]:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    # YAML 1.1 reads the key `on` as true.
    assert {"push", "pull_request"} == set(workflow[True])
    assert workflow["permissions"] == {"contents": "read", "security-events": "write"}
    (job,) = workflow["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def commands() -> list[list[str]]:
    """The commands of semel, without what the shell does after them."""
    lines = [step["run"].partition("||")[0] for step in steps() if "run" in step]
    return [shlex.split(line)[1:] for line in lines if line.startswith("semel ")]


def test_every_action_has_a_version() -> None:
    for step in steps():
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w/-]+@v\d+", step["uses"])


def test_every_command_is_understood() -> None:
    assert [words[:2] for words in commands()] == [
        ["probe", "mqtt://localhost:1883"],
        ["probe", "compare"],
    ]
    for words in commands():
        # Parsed by the group, which runs nothing as long as nothing is invoked.
        context = cli.group.make_context("semel", list(words))
        _, group, rest = cli.group.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert isinstance(group, click.Group)
        inner = group.make_context("probe", rest, parent=context)
        _, command, rest = group.resolve_command(inner, [*inner._protected_args, *inner.args])
        assert command is not None
        command.make_context(command.name, rest, parent=inner)


def test_the_files_it_names_are_written(tmp_path: Path) -> None:
    ((_, _, option, folder), (_, _, baseline, new)) = commands()
    assert option == "--out"
    (upload,) = [step["with"] for step in steps() if "sarif_file" in step.get("with", {})]
    written = [
        str(path.relative_to(tmp_path)) for path in write_report(report(), tmp_path / folder)
    ]
    assert {new, upload["sarif_file"]} <= set(written)
    assert baseline in WORKFLOW.read_text().partition("name:")[0]
    (kept,) = [step["with"]["path"] for step in steps() if step.get("if") == "always()"]
    assert kept == folder
