"""The command `penstock`: its commands in groups, and exit codes for errors."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from penstock.cli import (
    archive,
    backup,
    completion,
    cron,
    enqueue,
    entries,
    index,
    ingest,
    jobs,
    legacy,
    log,
    migrate,
    notebook,
    queues,
    schema,
    serve,
    stats,
    token,
    worker,
    workers,
)
from penstock.cli.errors import Exit, is_json, report
from penstock.cli.top import command as top

GROUPS: dict[str, Sequence[click.Command]] = {
    "Jobs": (*enqueue.COMMANDS, *jobs.COMMANDS, *log.COMMANDS),
    "Queues": (*queues.COMMANDS, *stats.COMMANDS),
    "Workers and schedules": (*worker.COMMANDS, *workers.COMMANDS, *cron.COMMANDS),
    "Store": (*archive.COMMANDS, *backup.COMMANDS, *migrate.COMMANDS, *schema.COMMANDS),
    "Server": (*serve.COMMANDS, *token.COMMANDS),
    "Applications": (
        *index.COMMANDS,
        *ingest.COMMANDS,
        *legacy.COMMANDS,
        *entries.COMMANDS,
        *notebook.COMMANDS,
    ),
    "Tools": (*top.COMMANDS, *completion.COMMANDS),
}
"""All commands, by the headings of the help."""


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
        names = [command.name or "" for commands in GROUPS.values() for command in commands]
        longest = max(map(len, names))
        room = formatter.width - longest - 6
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (f"{command.name:<{longest}}", command.get_short_help_str(room))
                        for command in commands
                    ]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Add the table of exit codes to the help."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), code.meaning) for code in Exit])


@click.group(
    "penstock",
    cls=Cli,
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


for _commands in GROUPS.values():
    for _command in _commands:
        cli.add_command(_command)


def main() -> NoReturn:
    """Run the command line of this process."""
    cli.main()


if __name__ == "__main__":
    main()
