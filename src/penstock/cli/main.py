"""The command `penstock`: its commands in groups, and exit codes for errors."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from penstock.cli.errors import Exit, is_json, report

GROUPS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "Jobs": {
        "enqueue": ("enqueue",),
        "jobs": ("jobs", "explain", "cancel", "retry", "delete", "prioritise"),
        "log": ("log",),
    },
    "Queues": {
        "queues": ("status", "pause", "resume", "limit", "drain", "remove", "limit-queues"),
        "stats": ("stats",),
    },
    "Workers and schedules": {"worker": ("worker",), "workers": ("workers",), "cron": ("cron",)},
    "Store": {
        "archive": ("prune", "export", "import"),
        "backup": ("backup", "restore", "verify"),
        "migrate": ("migrate",),
        "schema": ("migrate-schema",),
    },
    "Server": {"serve": ("serve", "config"), "token": ("token",)},
    "Applications": {
        "index": ("index", "search"),
        "ingest": ("ingest", "queue"),
        "legacy": ("migrate-legacy",),
        "entries": ("entries",),
        "notebook": ("notebook",),
    },
    "Tools": {"top.command": ("top",), "completion": ("completion",)},
}
"""The names of all commands, by the headings of the help and the modules that define them."""


class Commands(Mapping[str, click.Command]):
    """All commands by their names. The module of a command is imported when it is looked up."""

    def __init__(self) -> None:
        self._modules = {
            name: module
            for modules in GROUPS.values()
            for module, names in modules.items()
            for name in names
        }

    def __getitem__(self, name: str) -> click.Command:
        defined: Sequence[click.Command] = import_module(
            f"penstock.cli.{self._modules[name]}"
        ).COMMANDS
        return next(command for command in defined if command.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


class Cli(click.Group):
    """A group with headings, whose errors are one line each and set the exit code."""

    def main(  # type: ignore[override] # ends with our own exit codes
        self, args: Sequence[str] | None = None, prog_name: str | None = "penstock", **extra: Any
    ) -> NoReturn:
        """Run one command line and exit."""
        given = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            code = super().main(given, prog_name, **extra)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - nobody else reports it
            report(error, as_json=is_json(given))
            sys.exit(Exit.of(error))
        sys.exit(code if isinstance(code, int) else Exit.OK)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands under their headings, all with the same indentation."""
        longest = max(map(len, self.commands))
        room = formatter.width - longest - 6
        for heading, modules in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (f"{name:<{longest}}", self.commands[name].get_short_help_str(room))
                        for names in modules.values()
                        for name in names
                    ]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Add the table of exit codes to the help."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), code.meaning) for code in Exit])


@click.group(
    "penstock",
    cls=Cli,
    commands=Commands(),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="penstock", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Enqueue, inspect and manage jobs and queues, run workers and a server.

    Commands work on the store or server that --store or --url names, or else PENSTOCK_STORE or
    PENSTOCK_URL. Exceptions are worker, migrate, migrate-legacy, serve, config and completion.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> NoReturn:
    """Run the command line of this process."""
    cli.main()


if __name__ == "__main__":
    main()
