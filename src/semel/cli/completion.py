"""`semel completion`: the script with which a shell completes commands and options of semel."""

import json
from typing import Final

import click
from click.shell_completion import get_completion_class

from semel.cli.flags import json_option
from semel.cli.option_groups import SemelCommand

# Where each shell reads it: the line that loads it, and the file for that line.
LOADED_BY: Final = {
    "bash": ('eval "$(semel completion bash)"', "~/.bashrc"),
    "zsh": ('eval "$(semel completion zsh)"', "~/.zshrc"),
    "fish": ("semel completion fish | source", "~/.config/fish/config.fish"),
}


@click.command(
    cls=SemelCommand,
    examples=("semel completion bash", "semel completion fish >semel.fish"),
)
@click.argument("shell", type=click.Choice(list(LOADED_BY)))
@json_option("Print one JSON object with the script, and how to load it.")
def command(shell: str, is_json: bool) -> None:
    """Print the script that completes commands and options of semel in a shell.

    To load it in each new shell, add its line to the file of the shell: for bash
    eval "$(semel completion bash)" to ~/.bashrc, for zsh the same with zsh to ~/.zshrc, for fish
    semel completion fish | source to ~/.config/fish/config.fish.
    """
    found = get_completion_class(shell)
    assert found is not None
    # The shell calls semel itself, whatever the name of this program.
    script = found(click.Command("semel"), {}, "semel", "_SEMEL_COMPLETE").source()
    if is_json:
        line, file = LOADED_BY[shell]
        click.echo(json.dumps({"shell": shell, "script": script, "line": line, "file": file}))
    else:
        click.echo(script)
