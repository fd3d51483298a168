"""The reference of all commands, as `--help` prints them."""

from collections.abc import Iterator

import click

from penstock.cli.main import cli

HEAD = """\
# Commands and options

What `penstock COMMAND --help` prints, for every command. This page is generated:
`python -m docs.generate` writes it anew, and a test compares it with the code.
[Command line](cli.md) explains the commands, with examples and pictures.
"""


def page() -> str:
    """Return the page."""
    return HEAD + "".join(_pages(cli, _context(cli, "penstock")))


def _context(
    command: click.Command, name: str, parent: click.Context | None = None
) -> click.Context:
    """Return a context that is 100 letters wide, whatever the terminal."""
    return click.Context(
        command, info_name=name, parent=parent, terminal_width=100, max_content_width=100
    )


def _pages(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        assert command is not None  # noqa: S101 - it was listed
        inner = _context(command, name, context)
        level = "##" if context.parent is None else "###"
        help_text = command.get_help(inner).rstrip()
        yield f"\n{level} {inner.command_path}\n\n```text\n{help_text}\n```\n"
        if isinstance(command, click.Group):
            yield from _pages(command, inner)
