"""The commands `entries import`, `export` and `rebuild`: on a server, or in this process."""

import asyncio
import math
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from penstock.cli.application import Body, Routes, application
from penstock.cli.options import on_server_or_here
from penstock.cli.output import console, emit, shown
from penstock.client.remote import RemotePenstock
from penstock.client.wire import Request
from penstock.core.errors import ConfigurationError, PenstockError, ServerUnreachable

T = TypeVar("T")
Progress = Callable[[float, float | None, str], None]

_FORMATS = ("csv", "jsonl", "xlsx")
_SUFFIXES = {".tsv": "csv", ".txt": "csv", ".ndjson": "jsonl"} | {
    f".{one}": one for one in _FORMATS
}
_FINAL = ("succeeded", "failed", "cancelled")
_WRONG_INPUT = ("UnreadableFile", "InvalidEntry", "ConfigurationError")
"""The names of errors of an operation that are about the file or the options."""
_POLL = 0.2
_SOON = 5.0
"""Seconds within which a worker starts an operation, if there is a worker."""
_PATIENCE = 3600.0


class OperationFailed(PenstockError):
    """An operation on entries failed or was cancelled."""


@click.group("entries")
def entries_group() -> None:
    """Import and export entries, and rebuild their index."""


_where = on_server_or_here("Without a server: the folder with the vectors.")
_TYPE = click.option("--type", "entity_type", metavar="NAME", help="The type of the entries.")
_CATEGORY = click.option(
    "--category", "category_code", metavar="CODE", help="The category of the entries."
)
_FORMAT = click.option(
    "--format",
    "kind",
    type=click.Choice(_FORMATS),
    help="The format of the file.  [default: by its name]",
)


@entries_group.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_TYPE
@_CATEGORY
@click.option(
    "--mode",
    type=click.Choice(["merge", "replace"]),
    default="merge",
    show_default=True,
    help="Replace removes entries that are not in the file, of the type and category if given.",
)
@click.option("--dry-run", is_flag=True, help="Check the file and count, and change nothing.")
@click.option("--skip-bad", is_flag=True, help="Leave out invalid records.")
@_FORMAT
@_where
def import_file(
    *, file: Path, kind: str | None, as_json: bool, dry_run: bool, **given: Any
) -> None:
    """Import the entries in FILE: CSV, lines of JSON, or XLSX.

    All of them in one transaction, or none. Worker processes of a server embed them afterwards;
    they pause during the import.
    """
    where = {name: given.pop(name) for name in ("url", "store", "data")}
    options = {name: value for name, value in given.items() if value is not None}
    params = {**options, "dry_run": dry_run, "format": kind or _format_of(file)}

    async def main(entries: Routes) -> Body:
        with _bar(as_json=as_json) as progress, file.open("rb") as opened:
            started = await entries.send(
                Request(
                    "POST",
                    "/api/v1/entries/import",
                    params={name: _parameter(value) for name, value in params.items()},
                    file=opened,
                    repeats=False,
                )
            )
            return await _finished(entries, started, progress, file)

    report = _run(main, where, works=True)
    refused = not (report["stored"] or dry_run)
    if as_json:
        emit(report)
    else:
        _print_report(report, refused=refused)
    if refused:
        invalid = f"{report['bad']:,} of {report['read']:,} records are invalid"
        raise OperationFailed(f"nothing was stored: {invalid}")


@entries_group.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_TYPE
@_CATEGORY
@_FORMAT
@_where
def export_file(*, file: Path, kind: str | None, as_json: bool, **given: Any) -> None:
    """Export entries to FILE, as of one moment: CSV, lines of JSON, or XLSX."""
    selected = {name: given.pop(name) for name in ("entity_type", "category_code")}
    params = {name: value for name, value in selected.items() if value}
    params["format"] = kind or _format_of(file)

    async def main(entries: Routes) -> int:
        with _replaced(file) as opened, _bar(as_json=as_json):
            request = Request("GET", "/api/v1/entries/export", params=params, patience=_PATIENCE)
            await entries.connection.fetch(request, opened)
            return opened.seek(0, os.SEEK_END)

    size = _run(main, given)
    if as_json:
        emit({"file": str(file), "bytes": size})
    else:
        click.echo(shown(f"{file}: {size:,} bytes."))


@entries_group.command("rebuild")
@click.option("--embedder", metavar="NAME", required=True, help="The embedder to switch to.")
@_where
def rebuild_index(*, embedder: str, as_json: bool, **where: str | None) -> None:
    """Embed all entries with another embedder, then switch to it.

    Until then, searches use the current one.
    """

    async def main(entries: Routes) -> Body:
        with _bar(as_json=as_json) as progress:
            body = {"payload": {"embedder": embedder}}
            started = await entries.post("/api/v1/operations/rebuild", body)
            return await _finished(entries, started, progress)

    # On this machine, the command line decides what an embedder may be.
    rebuilt = _run(main, where, works=True, embedders=(embedder,))
    if as_json:
        emit(rebuilt)
    else:
        text = f"{rebuilt['embedded']:,} entries embedded, {rebuilt['removed']:,} vectors removed"
        click.echo(shown(f"{embedder} is in use: {text}."))


def _run(
    main: Callable[[Routes], Coroutine[Any, Any, T]],
    where: Body,
    *,
    works: bool = False,
    **changed: Any,
) -> T:
    async def run() -> T:
        settings = {"workers": 1, **changed}
        async with application("entries", where, settings=settings, works=works) as entries:
            return await main(entries)

    return asyncio.run(run())


async def _finished(
    entries: Routes, started: Body, progress: Progress, file: Path | None = None
) -> Body:
    """Wait for an operation and return its result; report its progress meanwhile."""
    path = f"/api/v1/operations/jobs/{started['job_id']}"
    patience = time.monotonic() + (math.inf if entries.is_here else _SOON)
    try:
        while (job := await entries.get(path))["status"] not in _FINAL:
            progress(job["progress"] or 0, job["total"], job["note"] or "waiting for a worker")
            if job["status"] == "queued" and time.monotonic() > patience:
                patience = math.inf
                click.echo(f"Operation {job['job_id']} waits for a worker of the server.", err=True)
            await asyncio.sleep(_POLL)
    except ServerUnreachable:
        click.echo(f"Operation {started['job_id']} continues when the server is back.", err=True)
        raise
    result: Body | None = job["result"]
    if result is not None:
        return result
    if entries.is_here and await _is_wrong_input(entries, job["job_id"]):
        raise ConfigurationError(job["error"] if file is None else f"{file}: {job['error']}")
    raise OperationFailed(f"operation {job['job_id']} {job['status']}: {job['error']}")


async def _is_wrong_input(entries: Routes, job_id: str) -> bool:
    """Whether an operation failed because of the file or the options, by the name of its error."""
    failed = await RemotePenstock.on(entries.connection).get(int(job_id))
    name = (failed.error or "").partition(":")[0]
    return name.rpartition(".")[2] in _WRONG_INPUT


def _format_of(file: Path) -> str:
    kind = _SUFFIXES.get(file.suffix.lower())
    if kind is None:
        known = ", ".join(sorted(_SUFFIXES))
        raise ConfigurationError(f"{file}: the name ends with none of {known}; add --format")
    return kind


def _parameter(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


@contextmanager
def _bar(*, as_json: bool) -> Iterator[Progress]:
    """Show a progress bar on a terminal."""
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


def _print_report(report: Body, *, refused: bool) -> None:
    """Print the result of an import; on stderr if invalid records prevented it."""
    did = ("added", "replaced", "removed")
    would = "" if report["stored"] else "would be "
    parts = [f"{report[name]:,} {would}{name}" for name in did]
    if not refused:
        click.echo(
            f"{report['read']:,} records read: {', '.join(parts)}, {report['bad']:,} invalid."
        )
    for one in report["errors"]:
        click.echo(shown(f"line {one['line']}: {one['error']}"), err=refused)
    if more := report["bad"] - len(report["errors"]):
        click.echo(f"… and {more:,} more.", err=refused)


@contextmanager
def _replaced(file: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces another one when it is complete."""
    handle, name = tempfile.mkstemp(dir=file.absolute().parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(handle, "w+b") as opened:
            yield opened
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


COMMANDS = (entries_group,)
