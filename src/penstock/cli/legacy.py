"""The command `migrate-legacy`: turns rows of legacy tables into items to ingest."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from penstock.cli.options import json_option
from penstock.cli.output import emit, shown
from penstock.engine.penstock import Penstock

if TYPE_CHECKING:
    from penstock.apps.ingest.legacy import Report


@click.command("migrate-legacy")
@click.argument("file", metavar="DB", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Report what would be done, and change nothing.")
@click.option("--drop", is_flag=True, help="Drop the tables whose rows were all migrated.")
@json_option
def migrate_legacy(*, file: Path, dry_run: bool, drop: bool, as_json: bool) -> None:
    """Turn legacy tables into items to ingest.

    The tables are in the SQLite file DB, which becomes the store of the items. Everything happens
    in one transaction, which may be interrupted and repeated. The tables stay, unless --drop is
    given.
    """
    report = asyncio.run(_migrated(file.absolute(), dry_run=dry_run, drop=drop))
    if as_json:
        emit({**msgspec.to_builtins(report), "dry_run": dry_run})
    else:
        _print_report(report, dry_run=dry_run)


async def _migrated(file: Path, *, dry_run: bool, drop: bool) -> "Report":
    from penstock.apps.ingest import Service, Settings, legacy

    if dry_run:
        return legacy.dry_run(file)
    legacy.check(file)  # before the file becomes a store
    async with Penstock(f"sqlite:///{file}") as app:
        return await legacy.migrate(Service(app, Settings()), file, drop=drop)


def _print_report(report: "Report", *, dry_run: bool) -> None:
    from penstock.apps.ingest.legacy import MAPPING

    migrated = "to migrate" if dry_run else "migrated"
    for name, one in report.tables.items():
        click.echo(
            f"{name}: {one.rows:,} rows, {one.migrated:,} {migrated}, {one.before:,} before, "
            f"{one.skipped:,} done, {one.conflicts:,} conflicts, {one.misfits:,} do not fit"
        )
        click.echo(f"  {MAPPING[name]}")
    for title, listed in (("conflict", report.conflicts), ("does not fit", report.misfits)):
        for row in listed:
            click.echo(shown(f"{title}: {row.table} {row.id}: {row.why}"))
    for name in report.dropped:
        click.echo(f"dropped: {name}")
    for name in report.kept:
        click.echo(f"kept, because rows of it do not fit: {name}")


COMMANDS = (migrate_legacy,)
