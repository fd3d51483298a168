"""The commands `index` and `search`: on a server, or in this process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from penstock.cli.application import Body, Routes, application
from penstock.cli.errors import report
from penstock.cli.options import on_server_or_here
from penstock.cli.output import console, emit, shown, span
from penstock.core.errors import PenstockError

_POLL = 0.2
_PAGE = 100
_FINAL = ("done", "failed", "cancelled")
_SNIPPET = 240


class IndexingFailed(PenstockError):
    """An indexing job failed or was cancelled."""


def _where(command: Any) -> Any:
    collection = click.option(
        "--collection",
        metavar="NAME",
        default="default",
        show_default=True,
        help="The collection of the chunks.",
    )
    return on_server_or_here("Without a server: the folder with the collections.")(
        collection(command)
    )


@click.command("index")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--watch", is_flag=True, help="Keep the index up to date; without a server, until Ctrl-C."
)
@click.option("--code/--no-code", default=True, help="Whether to index source code.")
@click.option(
    "--include", multiple=True, metavar="PATTERN", help="Also index these files. Can be repeated."
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave out these files and folders. Can be repeated.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="NAME",
    help="Only files of this preset, such as docs, code or a language. Can be repeated.",
)
@click.option(
    "--chunk-size", type=int, default=512, show_default=True, help="The size of a chunk, in tokens."
)
@click.option(
    "--chunk-overlap",
    type=int,
    default=50,
    show_default=True,
    help="The tokens that neighbouring chunks share.",
)
@click.option("--force", is_flag=True, help="Also embed files that have not changed.")
@click.option("--wait/--no-wait", default=True, help="With a server: wait for the result.")
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
    """Index the documents and source code in FOLDER.

    Runs on the server given by --url, or else in this process, with the store and the data folder
    of penstock serve: penstock-data.
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

    async def main(indexing: Routes) -> None:
        accepted = await indexing.post("/index", body)
        if not (wait or indexing.is_here):
            _print_result(accepted, accepted["message"], as_json=as_json)
            return
        job = await _finished(indexing, accepted["job_id"], quiet=as_json)
        _print_result(job, _summary(job), as_json=as_json)
        if watch and indexing.is_here:
            await _report_further_jobs(indexing, accepted["job_id"], as_json=as_json)

    _run(main, where, works=True)


@click.command("search")
@click.argument("query")
@click.option(
    "-k",
    "--top",
    type=click.IntRange(1, 1_000),
    default=5,
    show_default=True,
    help="The largest number of results.",
)
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "vector", "bm25"]),
    default="hybrid",
    show_default=True,
    help="By meaning and words, by meaning only, or by words only.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(["doc", "code", "test"]),
    help="Only files of this kind. Can be repeated.",
)
@click.option(
    "--language",
    "languages",
    multiple=True,
    metavar="NAME",
    help="Only files in this language. Can be repeated.",
)
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="PATTERN",
    help="Only files whose path matches. Can be repeated.",
)
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
    """Search indexed folders for QUERY, by meaning and words."""
    body: Body = {
        "query": query,
        "top_k": top,
        "mode": mode,
        "collection": collection,
        "source_types": list(types) or None,
        "languages": list(languages) or None,
        "file_paths": list(paths) or None,
    }

    async def main(indexing: Routes) -> None:
        found = await indexing.post("/query", body)
        if as_json:
            emit(found)
        else:
            _print_results(found["results"])

    _run(main, where, works=False)


def _run(
    main: Callable[[Routes], Awaitable[None]], where: dict[str, str | None], *, works: bool
) -> None:
    async def run() -> None:
        # Whoever has a shell on this machine may read its folders anyway.
        changed = {"allow_external_paths": True, "runtime_file": False}
        async with application(
            "indexing", where, settings=changed, starts=works, works=works
        ) as indexing:
            await main(indexing)

    asyncio.run(run())


async def _report_further_jobs(indexing: Routes, last: str, *, as_json: bool) -> None:
    """Report the results of the jobs after this one, until Ctrl-C."""
    while True:
        jobs = (await indexing.get("/index/jobs", {"limit": _PAGE}))["jobs"]
        newest_first = [job["id"] for job in jobs]
        newer = newest_first[: newest_first.index(last)] if last in newest_first else newest_first
        for job_id in reversed(newer):
            last = job_id
            try:
                job = await _finished(indexing, job_id, quiet=as_json)
                _print_result(job, _summary(job), as_json=as_json)
            except IndexingFailed as error:
                report(error, as_json=as_json)
        await asyncio.sleep(_POLL)


async def _finished(indexing: Routes, job_id: str, *, quiet: bool) -> Body:
    """Wait for the end of a job and return it; show a progress bar on a terminal."""
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
        while (job := await indexing.get(f"/index/jobs/{job_id}"))["status"] not in _FINAL:
            bars.update(line, completed=job["progress_percent"], rate=_rate(job["progress"]))
            await asyncio.sleep(_POLL)
    if job["status"] != "done":
        raise IndexingFailed(f"job {job_id} is {job['status']}: {job['error']}")
    return job


def _rate(progress: Body | None) -> str:
    if progress is None or not progress["rate"]:
        return ""
    left = progress["seconds_left"]
    rest = "" if left is None else f", {span(timedelta(seconds=left))} left"
    return f"{progress['rate']:,.0f} files/s{rest}"


def _summary(job: Body) -> str:
    result = job["result"]
    parts = [
        f"{result['files_indexed']:,} files indexed ({result['chunks_created']:,} chunks)",
        f"{result['files_unchanged']:,} unchanged",
        f"{result['files_deleted']:,} removed",
        f"{result['files_skipped']:,} skipped",
    ]
    reasons = [f"  {n:,} {reason}" for reason, n in sorted(result["skipped"].items())]
    return "\n".join([f"{job['folder_path']}: {', '.join(parts)}", *reasons])


def _print_result(document: Body, text: str, *, as_json: bool) -> None:
    if as_json:
        emit(document)
    else:
        click.echo(shown(text) if "\n" not in text else text)


def _print_results(results: Sequence[Body]) -> None:
    if not results:
        click.echo("Nothing found.")
    for n, one in enumerate(results, 1):
        lines = one["metadata"].get("start_line"), one["metadata"].get("end_line")
        place = f"{one['source']}:{lines[0]}-{lines[1]}" if None not in lines else one["source"]
        click.echo(click.style(shown(f"{n}. {place}  {one['score']:.2f}"), bold=True))
        text = " ".join(one["text"].split())
        cut = text if len(text) <= _SNIPPET else f"{text[:_SNIPPET]}…"
        click.echo(f"   {shown(cut)}")


COMMANDS = (index_folder, search)
