"""The script that completes commands, in a real shell."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from semel.cli.completion import LOADED_BY, command

PATIENCE = 60.0


@pytest.mark.parametrize("shell", sorted(LOADED_BY))
def test_a_script_is_printed_for_each_shell(shell: str) -> None:
    found = CliRunner().invoke(command, [shell])
    assert found.exit_code == 0
    assert f"_SEMEL_COMPLETE={shell}_complete" in found.output
    as_json = json.loads(CliRunner().invoke(command, [shell, "--json"]).output)
    assert as_json["script"] == found.output.removesuffix("\n")
    assert (as_json["line"], as_json["file"]) == LOADED_BY[shell]


def test_another_shell_is_refused() -> None:
    found = CliRunner().invoke(command, ["csh"])
    assert found.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in found.output


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("not installed: bash")
    program = tmp_path / "semel"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m semel "$@"\n')
    program.chmod(0o755)
    script = CliRunner().invoke(command, ["bash"]).output
    asked = """
        complete_words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _semel_completion semel
            echo "found ${COMPREPLY[*]}"
        }
        complete_words semel qual
        complete_words semel pub --reta
        complete_words semel nothing
    """
    done = subprocess.run(
        [bash, "-c", script + asked],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.stdout.splitlines() == ["found quality", "found --retain", "found "]
