"""The commands `entries import`, `entries export` and `entries rebuild`: on a server, or here."""

import math
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from penstock.cli.output import console, emit, shown
from penstock.cli.store import here_or_on_server
from penstock.client.line import Line, line_to
from penstock.client.wire import Request
from penstock.config import Server, Sources
from penstock.core.errors import ConfigurationError, PenstockError, ServerUnreachable
from penstock.engine import Penstock, run_sync
from penstock.server.installed import store_url

if TYPE_CHECKING:
    from penstock.apps.entries import Entries

T = TypeVar("T")
Body = dict[str, Any]
Progress = Callable[[float, float | None, str], None]

_FORMATS = click.Choice(["csv", "jsonl", "xlsx"])
_FINAL = ("succeeded", "failed", "cancelled")
_LOOK_AGAIN = 0.2
_SOON = 5.0
"""Seconds within which a worker begins an operation, where there is one."""
_PATIENCE = 3600.0


class OperationFailed(PenstockError):
    """An operation on entries did not come to a good end."""


@click.group("entries")
def entries_group() -> None:
    """Import and export entries, and rebuild their index."""


_where = here_or_on_server("Without a server: the vectors lie here.")
_TYPE = click.option("--type", "entity_type", metavar="NAME", help="Of this type.")
_CATEGORY = click.option("--category", "category_code", metavar="CODE", help="Of this category.")
_FORMAT = click.option("--format", "kind", type=_FORMATS, help="As its name says, unless given.")


@entries_group.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_TYPE
@_CATEGORY
@click.option(
    "--mode",
    type=click.Choice(["merge", "replace"]),
    default="merge",
    show_default=True,
    help="Replace: what is not in the file is removed, of the type and category if given.",
)
@click.option("--dry-run", is_flag=True, help="Only check the file and count; change nothing.")
@click.option("--skip-bad", is_flag=True, help="Leave out records that are wrong.")
@_FORMAT
@_where
def import_file(
    *, file: Path, kind: str | None, as_json: bool, dry_run: bool, **given: Any
) -> None:
    """Store the entries in FILE: CSV, lines of JSON, or a workbook (XLSX).

    All of them in one transaction, or none. Every one is pending then, and is embedded by the
    processes of a server. The queue is held meanwhile, and goes on in every case.
    """
    from penstock.apps.entries.formats import UnreadableFile, format_of

    where = {name: given.pop(name) for name in ("url", "store", "data")}
    options = {**given, "dry_run": dry_run}
    try:
        kind = kind or format_of(file.name)
        with _bar(as_json=as_json) as progress, file.open("rb") as opened:
            if url := where["url"]:
                report = _import_there(url, opened, {**options, "format": kind}, progress)
            else:
                report = _import_here(where, opened, kind, options, progress)
    except UnreadableFile as error:
        raise ConfigurationError(f"{file}: {error}") from error
    refused = not (report["stored"] or dry_run)
    if as_json:
        emit(report)
    else:
        _tell(report, refused=refused)
    if refused:
        wrong = f"{report['bad']:,} of {report['read']:,} records are wrong"
        raise OperationFailed(f"nothing was stored: {wrong}")


@entries_group.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_TYPE
@_CATEGORY
@_FORMAT
@_where
def export_file(*, file: Path, kind: str | None, as_json: bool, **given: Any) -> None:
    """Write entries to FILE, all as they are at one moment: CSV, lines of JSON, or XLSX."""
    from penstock.apps.entries.formats import UnreadableFile, Unwritable, format_of

    try:
        kind = kind or format_of(file.name)
        with _replaced(file) as opened, _bar(as_json=as_json) as progress:
            _export(opened, kind, given, progress)
            size = opened.seek(0, os.SEEK_END)
    except (UnreadableFile, Unwritable) as error:
        raise ConfigurationError(str(error)) from error
    if as_json:
        emit({"file": str(file), "bytes": size})
    else:
        click.echo(shown(f"{file}: {size:,} bytes."))


@entries_group.command("rebuild")
@click.option("--embedder", metavar="NAME", required=True, help="What embeds from then on.")
@_where
def rebuild_index(*, embedder: str, as_json: bool, **where: str | None) -> None:
    """Embed all entries with another embedder; searches go on with the one in use until then."""
    with _bar(as_json=as_json) as progress:
        if url := where["url"]:
            with _line(url) as line:
                started = Request(
                    "POST", "/api/v1/operations/rebuild", body={"payload": {"embedder": embedder}}
                )
                rebuilt = _followed(line, run_sync(line.ask(started, Body)), progress)
        else:
            from penstock.apps.entries.rebuilding import rebuild

            rebuilt = _here(where, lambda app: rebuild(app, embedder, progress=progress))._asdict()
    if as_json:
        emit(rebuilt)
    else:
        text = f"{rebuilt['embedded']:,} entries embedded, {rebuilt['removed']:,} vectors removed"
        click.echo(shown(f"{embedder} is in use: {text}."))


# There


@contextmanager
def _line(url: str) -> Iterator[Line]:
    line = line_to(url, None, retries=3, timeout=120, blocking=True)
    try:
        yield line
    finally:
        run_sync(line.close())


def _import_there(url: str, file: IO[bytes], options: Body, progress: Progress) -> Body:
    params = {name: _plain(value) for name, value in options.items() if value is not None}
    with _line(url) as line:
        sent = Request("POST", "/api/v1/entries/import", params=params, file=file, repeats=False)
        return _followed(line, run_sync(line.ask(sent, Body)), progress)


def _followed(line: Line, started: Body, progress: Progress) -> Body:
    """What an operation came to; meanwhile its bar is drawn."""
    asked = Request("GET", f"/api/v1/operations/jobs/{started['job_id']}")
    patience = time.monotonic() + _SOON
    try:
        while (job := run_sync(line.ask(asked, Body)))["status"] not in _FINAL:
            progress(job["progress"] or 0, job["total"], job["note"] or "waiting for a worker")
            if job["status"] == "queued" and time.monotonic() > patience:
                patience = math.inf
                click.echo(f"Operation {job['job_id']} waits for a worker of the server.", err=True)
            time.sleep(_LOOK_AGAIN)
    except ServerUnreachable:
        click.echo(f"Operation {started['job_id']} goes on when the server is back.", err=True)
        raise
    if job["result"] is None:
        raise OperationFailed(f"operation {job['job_id']} {job['status']}: {job['error']}")
    result: Body = job["result"]
    return result


def _export(file: IO[bytes], kind: str, given: Body, progress: Progress) -> None:
    chosen = {name: given[name] for name in ("entity_type", "category_code") if given[name]}
    if url := given["url"]:
        params = {**chosen, "format": kind}
        with _line(url) as line:
            asked = Request("GET", "/api/v1/entries/export", params=params, patience=_PATIENCE)
            line.fetch(asked, file)
        return
    from penstock.apps.entries.exporting import export_entries
    from penstock.apps.entries.rows import Chosen

    def work(app: "Entries") -> Coroutine[Any, Any, int]:
        name = chosen.get("entity_type")
        wanted = Chosen(
            None if name is None else app.types.get(name).name, chosen.get("category_code")
        )
        return export_entries(app, file, kind, wanted, progress=progress)

    _here(given, work)


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


# Here


def _here(where: Body, work: "Callable[[Entries], Coroutine[Any, Any, T]]") -> T:
    """Do it on the store itself, where `penstock serve` would keep the entries."""
    import asyncio

    from penstock.apps.entries import Entries, InvalidEntry, Settings

    sources = Sources()
    given = {name: where[name] for name in ("store", "data")}
    server = sources.section("", Server, given).settings
    settings = sources.section("entries", Settings).settings

    async def run() -> T:
        async with Penstock(store_url(server)) as penstock:
            app = Entries(penstock, Path(server.data) / "entries", settings=settings)
            try:
                await app.prepare()
                return await work(app)
            except InvalidEntry as error:
                raise ConfigurationError(str(error)) from error
            finally:
                app.close()

    return asyncio.run(run())


def _import_here(where: Body, file: IO[bytes], kind: str, given: Body, progress: Progress) -> Body:
    from penstock.apps.entries.formats import read
    from penstock.apps.entries.importing import ImportRefused, Options, import_records

    options = Options(**given)

    async def work(app: "Entries") -> Body:
        found = read(file, kind, app.types, entity_type=options.entity_type)
        try:
            report = await import_records(app, found, options, progress=progress)
        except ImportRefused as error:
            report = error.report
        return msgspec.to_builtins(report)  # type: ignore[no-any-return] # a Struct is a dict then

    return _here(where, work)


# Telling


@contextmanager
def _bar(*, as_json: bool) -> Iterator[Progress]:
    """Draws how far it is, on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console(),
        disable=as_json or not console().is_terminal,
        transient=True,
    )
    with bars:
        line = bars.add_task("", total=None)

        def progress(done: float, total: float | None, note: str) -> None:
            bars.update(line, completed=done, total=total, description=note)

        yield progress


def _tell(report: Body, *, refused: bool) -> None:
    """What an import came to; what is wrong goes to stderr if nothing was stored because of it."""
    did = ("added", "replaced", "removed")
    would = "" if report["stored"] else "would be "
    parts = [f"{report[name]:,} {would}{name}" for name in did]
    if not refused:
        click.echo(f"{report['read']:,} records read: {', '.join(parts)}, {report['bad']:,} wrong.")
    for one in report["errors"]:
        click.echo(shown(f"line {one['line']}: {one['error']}"), err=refused)
    if more := report["bad"] - len(report["errors"]):
        click.echo(f"… and {more:,} more.", err=refused)


@contextmanager
def _replaced(file: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of another when it is whole."""
    handle, name = tempfile.mkstemp(dir=file.absolute().parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(handle, "w+b") as opened:
            yield opened
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


COMMANDS = (entries_group,)
