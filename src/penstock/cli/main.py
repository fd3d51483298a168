"""The command `penstock`: puts the commands together and turns errors into exit codes."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from penstock.cli import (
    admin,
    completion,
    cron,
    enqueue,
    entries,
    indexing,
    ingest,
    jobs,
    legacy,
    log,
    migrate,
    notebook,
    queues,
    serve,
    stats,
    token,
    worker,
    workers,
)
from penstock.cli.exits import Exit, is_json, report
from penstock.cli.top import command as top


class Cli(click.Group):
    """A group whose errors are one line each, with an exit code from the one table."""

    def main(  # type: ignore[override] # ends with our own exit codes
        self, args: Sequence[str] | None = None, prog_name: str | None = "penstock", **extra: Any
    ) -> NoReturn:
        """Run one command line and exit."""
        given = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            code = super().main(given, prog_name, **extra)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last to see it
            report(error, as_json=is_json(given))
            sys.exit(Exit.of(error))
        sys.exit(code if isinstance(code, int) else Exit.OK)

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
    """Run workers, look at jobs and queues, and steer them.

    All commands but `worker`, `migrate` and `completion` work on the store or server that --store
    or --url names, else PENSTOCK_STORE or PENSTOCK_URL.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (
    *worker.COMMANDS,
    *workers.COMMANDS,
    *enqueue.COMMANDS,
    *jobs.COMMANDS,
    *log.COMMANDS,
    *queues.COMMANDS,
    *stats.COMMANDS,
    *top.COMMANDS,
    *cron.COMMANDS,
    *admin.COMMANDS,
    *migrate.COMMANDS,
    *token.COMMANDS,
    *serve.COMMANDS,
    *indexing.COMMANDS,
    *entries.COMMANDS,
    *ingest.COMMANDS,
    *legacy.COMMANDS,
    *notebook.COMMANDS,
    *completion.COMMANDS,
):
    cli.add_command(_command)


def main() -> NoReturn:
    """Run the command line of this process."""
    cli.main()


if __name__ == "__main__":
    main()
