"""The command `completion`: prints completion scripts for shells."""

from collections.abc import Sequence

import click
from click.shell_completion import get_completion_class

from penstock.cli.options import json_option
from penstock.cli.output import emit

_WHERE = {
    "bash": 'eval "$(penstock completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(penstock completion zsh)"  # in ~/.zshrc',
    "fish": "penstock completion fish | source  # in ~/.config/fish/config.fish",
}


@click.command(
    "completion", epilog="\b\n" + "\n".join(f"{shell}: {line}" for shell, line in _WHERE.items())
)
@click.argument("shell", type=click.Choice(sorted(_WHERE)))
@json_option
@click.pass_context
def print_completion(context: click.Context, shell: str, *, as_json: bool) -> None:
    """Print the completion script for bash, zsh or fish."""
    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"there is no completion for {shell}")
    root = context.find_root()
    script = completion(root.command, {}, "penstock", "_PENSTOCK_COMPLETE").source()
    if as_json:
        emit({"shell": shell, "script": script})
    else:
        click.echo(script)


COMMANDS: Sequence[click.Command] = (print_completion,)
