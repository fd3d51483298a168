"""The commands `index` and `search`: on a server, or here, with a worker in this process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from penstock.cli.backends import Backend, Body, Local, Remote, open_backend
from penstock.cli.exits import report
from penstock.cli.output import console, emit, shown, span
from penstock.cli.store import here_or_on_server
from penstock.core.errors import ConfigurationError, PenstockError
from penstock.http.problems import Problem

_LOOK_AGAIN = 0.2
_FINAL = ("done", "failed", "cancelled")
_SNIPPET = 240


class IndexingFailed(PenstockError):
    """An indexing job did not come to a good end."""


def _where(command: Any) -> Any:
    collection = click.option(
        "--collection",
        metavar="NAME",
        default="default",
        show_default=True,
        help="Where the chunks are.",
    )
    return here_or_on_server("Without a server: what is indexed lies here.")(collection(command))


@click.command("index")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--watch", is_flag=True, help="Keep it indexed; without a server, until Ctrl-C.")
@click.option("--code/--no-code", default=True, help="Whether to index source code.")
@click.option("--include", multiple=True, metavar="PATTERN", help="Files to take besides.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Files and folders to leave out.")
@click.option("--type", "types", multiple=True, metavar="NAME", help="Only files of this preset.")
@click.option("--chunk-size", type=int, default=512, show_default=True, help="Tokens.")
@click.option("--chunk-overlap", type=int, default=50, show_default=True, help="Tokens.")
@click.option("--force", is_flag=True, help="Embed also what has not changed.")
@click.option("--wait/--no-wait", default=True, help="With a server: wait until it is done.")
@_where
def index_folder(
    *,
    folder: Path,
    watch: bool,
    code: bool,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    types: tuple[str, ...],
    chunk_size: int,
    chunk_overlap: int,
    force: bool,
    wait: bool,
    as_json: bool,
    collection: str,
    **where: str | None,
) -> None:
    """Index FOLDER, so that it can be searched.

    On the server that --url names. Without one, here: jobs and what is indexed are where
    `penstock serve` would keep them, in penstock-data.
    """
    body: Body = {
        "folder_path": str(folder.resolve()),
        "collection": collection,
        "include_code": code,
        "include_patterns": list(include),
        "exclude_patterns": list(exclude),
        "include_types": list(types),
        "chunk_size": chunk_size,
        "chunk_overlap": chunk_overlap,
        "force": force,
        **({"watch_mode": "auto"} if watch else {}),
    }

    async def run(backend: Backend) -> None:
        accepted = await backend.index(body)
        if isinstance(backend, Remote) and not wait:
            _tell(accepted, accepted["message"], as_json=as_json)
            return
        job = await _followed(backend, accepted["job_id"], quiet=as_json)
        _tell(job, _came_to(job), as_json=as_json)
        if watch and isinstance(backend, Local):
            await _tell_what_follows(backend, accepted["job_id"], as_json=as_json)

    _run(run, where, working=True)


@click.command("search")
@click.argument("query")
@click.option(
    "-k",
    "--top",
    type=click.IntRange(1, 1_000),
    default=5,
    show_default=True,
    help="At most this many.",
)
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "vector", "bm25"]),
    default="hybrid",
    show_default=True,
    help="By meaning and words, by meaning, by words.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(["doc", "code", "test"]),
    help="Only files of this kind; may be repeated.",
)
@click.option(
    "--language", "languages", multiple=True, metavar="NAME", help="Only files of this language."
)
@click.option("--path", "paths", multiple=True, metavar="PATTERN", help="Only files like this.")
@_where
def search(
    *,
    query: str,
    top: int,
    mode: str,
    types: tuple[str, ...],
    languages: tuple[str, ...],
    paths: tuple[str, ...],
    as_json: bool,
    collection: str,
    **where: str | None,
) -> None:
    """Search what was indexed for QUERY, by meaning and by words."""
    body: Body = {
        "query": query,
        "top_k": top,
        "mode": mode,
        "collection": collection,
        "source_types": list(types) or None,
        "languages": list(languages) or None,
        "file_paths": list(paths) or None,
    }

    async def run(backend: Backend) -> None:
        found = await backend.search(body)
        if as_json:
            emit(found)
        else:
            _print_results(found["results"])

    _run(run, where, working=False)


def _run(
    run: Callable[[Backend], Awaitable[None]], where: dict[str, str | None], *, working: bool
) -> None:
    async def main() -> None:
        async with open_backend(where, working=working) as backend:
            try:
                await run(backend)
            except Problem as problem:  # what a server would have answered
                raise ConfigurationError(str(problem)) from problem

    asyncio.run(main())


async def _tell_what_follows(backend: Local, last: str, *, as_json: bool) -> None:
    """Tell what becomes of the jobs behind this one, until Ctrl-C."""
    while True:
        for job_id in await backend.behind(last):
            last = job_id
            try:
                job = await _followed(backend, job_id, quiet=as_json)
                _tell(job, _came_to(job), as_json=as_json)
            except IndexingFailed as error:
                report(error, as_json=as_json)
        await asyncio.sleep(_LOOK_AGAIN)


async def _followed(backend: Backend, job_id: str, *, quiet: bool) -> Body:
    """The job when it has ended; meanwhile its bar is drawn, on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}%  {task.fields[rate]}"),
        console=console(),
        disable=quiet or not console().is_terminal,
        transient=True,
    )
    with bars:
        line = bars.add_task(job_id, total=100, rate="")
        while (job := await backend.job(job_id))["status"] not in _FINAL:
            bars.update(line, completed=job["progress_percent"], rate=_rate(job["progress"]))
            await asyncio.sleep(_LOOK_AGAIN)
    if job["status"] != "done":
        raise IndexingFailed(f"job {job_id} is {job['status']}: {job['error']}")
    return job


def _rate(progress: Body | None) -> str:
    if progress is None or not progress["rate"]:
        return ""
    left = progress["seconds_left"]
    rest = "" if left is None else f", {span(timedelta(seconds=left))} left"
    return f"{progress['rate']:,.0f} files/s{rest}"


def _came_to(job: Body) -> str:
    result = job["result"]
    parts = [
        f"{result['files_indexed']:,} files indexed ({result['chunks_created']:,} chunks)",
        f"{result['files_unchanged']:,} unchanged",
        f"{result['files_deleted']:,} removed",
        f"{result['files_skipped']:,} skipped",
    ]
    reasons = [f"  {n:,} {reason}" for reason, n in sorted(result["skipped"].items())]
    return "\n".join([f"{job['folder_path']}: {', '.join(parts)}", *reasons])


def _tell(document: Body, text: str, *, as_json: bool) -> None:
    if as_json:
        emit(document)
    else:
        click.echo(shown(text) if "\n" not in text else text)


def _print_results(results: Sequence[Body]) -> None:
    if not results:
        click.echo("Nothing was found.")
    for n, one in enumerate(results, 1):
        lines = one["metadata"].get("start_line"), one["metadata"].get("end_line")
        place = f"{one['source']}:{lines[0]}-{lines[1]}" if None not in lines else one["source"]
        click.echo(click.style(shown(f"{n}. {place}  {one['score']:.2f}"), bold=True))
        text = " ".join(one["text"].split())
        cut = text if len(text) <= _SNIPPET else f"{text[:_SNIPPET]}…"
        click.echo(f"   {shown(cut)}")


COMMANDS = (index_folder, search)
