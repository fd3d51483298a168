"""The command `migrate-schema`: brings the tables of a store up to date."""

from collections.abc import Sequence

import click

from penstock.cli.connection import refuse_server
from penstock.cli.errors import Exit
from penstock.cli.options import on_store
from penstock.cli.output import emit, plain, shown
from penstock.core.redaction import redacted
from penstock.stores import schemas
from penstock.stores.sql.schema import Program, SchemaStatus


@click.command("migrate-schema")
@click.option("--check", is_flag=True, help="Say what there is to do, and change nothing.")
@click.option("--apply", "apply_", is_flag=True, help="Do it.")
@click.option(
    "--force",
    is_flag=True,
    help="Switch even if older programs have the store open; they are refused from then on.",
)
@on_store
def migrate_schema(*, check: bool, apply_: bool, force: bool, store: str, as_json: bool) -> int:
    """Bring the tables of the store up to date.

    Migrations only add, so programs of earlier versions go on. What they cannot work with is
    switched when none of them has the store open any more. Exits with 0 if nothing is left to do,
    and with 9 otherwise.
    """
    context = click.get_current_context()
    if check == apply_:
        raise click.UsageError("name either --check or --apply", context)
    if force and check:
        raise click.UsageError("--force needs --apply", context)
    refuse_server(store)
    if apply_:
        schemas.migrate(store, lambda step: click.echo(f"{step} …", err=True), force=force)
    status = schemas.status(store)
    if as_json:
        emit(None if status is None else {**plain(status), "is_current": status.is_current})
    else:
        _report(store, status)
    return Exit.OK if status is None or status.is_current else Exit.TO_MIGRATE


def _report(store: str, status: SchemaStatus | None) -> None:
    if status is None:
        click.echo(shown(f"{redacted(store)} has no schema to migrate."))
        return
    click.echo(
        shown(
            f"{redacted(store)} has schema {status.schema} (routines {status.routines}); this "
            f"Penstock knows schema {status.known_schema} (routines {status.known_routines})."
        )
    )
    click.echo(f"Programs must know schema {status.oldest_program} at least.")
    for step in status.migrations:
        click.echo(f"To apply: {step}")
    for switch in status.switches:
        click.echo(f"To switch: migration {switch.migration}: {switch.text}")
        for program in switch.held_up_by:
            click.echo(shown(f"  held up by {_named(program)}"))
    if status.is_current:
        click.echo("Nothing is left to do.")
    elif status.migrations:
        click.echo("Run: penstock migrate-schema --apply", err=True)


def _named(program: Program) -> str:
    parts = [f"worker {program.worker}"] if program.worker else []
    if program.process is not None:
        parts.append(f"process {program.process}")
    if program.host is not None:
        parts.append(f"on {program.host}")
    known = "an earlier schema" if program.schema is None else f"schema {program.schema}"
    return f"{' '.join(parts) or 'a program'}, which knows {known}"


COMMANDS: Sequence[click.Command] = (migrate_schema,)
