"""The commands `ingest` and `queue`: on a server, or on a store right here."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click

from penstock.cli.ingesting import Backend, Body, Remote, open_backend
from penstock.cli.output import emit, shown
from penstock.cli.store import here_or_on_server
from penstock.core.errors import ConfigurationError, PenstockError
from penstock.http.problems import Problem

_SNIPPET = 240


class IngestionFailed(PenstockError):
    """An item did not come to a good end."""


_where = here_or_on_server("Without a server: what is ingested lies here.")


def _whose(command: Any) -> Any:
    for option in (
        click.option(
            "--branch", metavar="NAME", default="main", show_default=True, help="The branch."
        ),
        click.option(
            "--collection",
            metavar="NAME",
            default="default",
            show_default=True,
            help="The collection.",
        ),
        click.option(
            "--tenant", metavar="NAME", default="default", show_default=True, help="The tenant."
        ),
    ):
        command = option(command)
    return command


def _adding(command: Any) -> Any:
    """Give a command the options of all that add an item."""
    for option in (
        click.option("--wait/--no-wait", default=True, help="With a server: wait for the end."),
        click.option(
            "--priority",
            metavar="0-10|NAME",
            default="cli",
            show_default=True,
            help="Its priority.",
        ),
    ):
        command = option(command)
    return _where(_whose(command))


@click.group("ingest")
def ingest() -> None:
    """Ingest files, folders, projects, texts and libraries; delete and rename.

    On the server that --url names. Without one, here: items and what is ingested are where
    `penstock serve` would keep them, in penstock-data.
    """


@ingest.command("file")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--update", is_flag=True, help="Say that it has changed.")
@_adding
def ingest_file(*, path: Path, update: bool, **options: Any) -> None:
    """Ingest the file PATH."""
    _add("file", "update" if update else "ingest", {"file_path": str(path.absolute())}, options)


@ingest.command("folder")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--pattern", "patterns", multiple=True, metavar="PATTERN", help="Only such files.")
@click.option("--ignore", "ignored", multiple=True, metavar="PATTERN", help="No such files.")
@click.option("--depth", type=click.IntRange(0, 1_000), help="How many folders down.")
@click.option("--scan", is_flag=True, help="Leave the files for later.")
@_adding
def ingest_folder(
    *,
    path: Path,
    patterns: tuple[str, ...],
    ignored: tuple[str, ...],
    depth: int | None,
    scan: bool,
    **options: Any,
) -> None:
    """Ingest the files of the folder PATH, and remove those that are gone."""
    payload: Body = {
        "folder_path": str(path.absolute()),
        "patterns": list(patterns),
        "ignore_patterns": list(ignored),
        **({} if depth is None else {"recursive_depth": depth}),
    }
    _add("folder", "scan" if scan else "ingest", payload, options)


@ingest.command("project")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--scan", is_flag=True, help="Leave the files for later.")
@_adding
def ingest_project(*, path: Path, scan: bool, **options: Any) -> None:
    """Ingest the project in PATH; tells its type and its git remote."""
    _add("project", "scan" if scan else "ingest", {"project_root": str(path.absolute())}, options)


@ingest.command("content")
@click.argument("text")
@click.option("--id", "document_id", metavar="ID", help="The name it is found under.")
@click.option("--tag", metavar="TAG", help="Its tag.")
@click.option("--update", is_flag=True, help="Say that it has changed.")
@_adding
def ingest_content(
    *, text: str, document_id: str | None, tag: str | None, update: bool, **options: Any
) -> None:
    """Ingest TEXT; - reads it from standard input."""
    content = sys.stdin.read() if text == "-" else text
    given = {"content": content, "document_id": document_id, "main_tag": tag, "source_type": "cli"}
    payload = {name: value for name, value in given.items() if value is not None}
    _add("content", "update" if update else "ingest", payload, options)


@ingest.command("library")
@click.argument("name")
@click.argument("source")
@click.option("--version", metavar="VERSION", help="Its version.")
@click.option("--update", is_flag=True, help="Say that it has changed.")
@_adding
def ingest_library(
    *, name: str, source: str, version: str | None, update: bool, **options: Any
) -> None:
    """Ingest the documentation of the library NAME: SOURCE is a folder, an archive or a URL."""
    place = source if "://" in source else str(Path(source).absolute())
    payload = {"library_name": name, "source_url": place}
    if version is not None:
        payload["library_version"] = version
    _add("library", "update" if update else "ingest", payload, options)


@ingest.command("delete")
@click.argument(
    "kind", type=click.Choice(["file", "folder", "project", "library", "document", "tenant"])
)
@click.argument("name")
@click.option("--version", metavar="VERSION", help="Of a library: its version.")
@_adding
def ingest_delete(*, kind: str, name: str, version: str | None, **options: Any) -> None:
    """Remove what was ingested under NAME: a path, or the name of a library or tenant."""
    if kind in ("file", "folder", "project"):
        field = {"file": "file_path", "folder": "folder_path", "project": "project_root"}[kind]
        _add(kind, "delete", {field: str(Path(name).absolute())}, options)
    elif kind == "library":
        given = {"library_name": name, "library_version": version}
        _add(kind, "delete", {key: one for key, one in given.items() if one}, options)
    elif kind == "document":
        _add("delete_document", "delete", {"document_id": name}, options)
    else:
        payload = {"tenant_id_to_delete": name, "reason": "user_request"}
        _add("delete_tenant", "delete", payload, options)


@ingest.command("rename")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--folder", is_flag=True, help="They are folders.")
@_adding
def ingest_rename(*, old: Path, new: Path, folder: bool, **options: Any) -> None:
    """Say that what was ingested as OLD is NEW now; nothing is embedded again."""
    payload = {"old_path": str(old.absolute()), "new_path": str(new.absolute())}
    _add("rename", "update", {**payload, "is_folder": folder}, options)


@ingest.command("search")
@click.argument("query")
@click.option(
    "-k",
    "--top",
    type=click.IntRange(1, 1_000),
    default=5,
    show_default=True,
    help="At most this many.",
)
@_where
@_whose
def search_ingested(
    *, query: str, top: int, tenant: str, collection: str, branch: str, as_json: bool, **where: Any
) -> None:
    """Search what was ingested for QUERY, by meaning and by words."""
    whose = {"tenant_id": tenant, "collection": collection, "branch": branch}

    async def run(backend: Backend) -> None:
        found = await backend.search({"query": query, "top_k": top, **whose})
        if as_json:
            emit(found)
            return
        for n, one in enumerate(found["results"], 1):
            click.echo(click.style(shown(f"{n}. {one['path']}  {one['score']:.2f}"), bold=True))
            text = " ".join(one["text"].split())
            click.echo(f"   {shown(text if len(text) <= _SNIPPET else text[:_SNIPPET] + '…')}")
        if not found["results"]:
            click.echo("Nothing was found.")

    _run(run, where)


@click.group("queue")
def queue() -> None:
    """Look at the queue of items to ingest."""


@queue.command("stats")
@click.option("--tenant", metavar="NAME", help="Only items of this tenant.")
@click.option("--collection", metavar="NAME", help="Only items of this collection.")
@_where
def show_stats(*, tenant: str | None, collection: str | None, as_json: bool, **where: Any) -> None:
    """Count the items by status: in all, by type, tenant and collection."""

    async def run(backend: Backend) -> None:
        found = await backend.stats(tenant, collection)
        if as_json:
            emit(found)
            return
        if not found["total"]:
            click.echo("There are no items.")
            return
        click.echo(f"all: {_counts(found['total'])}")
        for title in ("by_type", "by_tenant", "by_collection"):
            click.echo(f"{title.replace('_', ' ')}:")
            for name, counts in sorted(found[title].items()):
                click.echo(shown(f"  {name}: {_counts(counts)}"))

    _run(run, where)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {status}" for status, n in sorted(counts.items()))


def _add(item_type: str, op: str, payload: Body, options: Body) -> None:
    """Add an item, and tell what came of it."""
    as_json, wait = options.pop("as_json"), options.pop("wait")
    priority = options.pop("priority")
    item: Body = {
        "item_type": item_type,
        "op": op,
        "tenant_id": options.pop("tenant"),
        "collection": options.pop("collection"),
        "branch": options.pop("branch"),
        "priority": int(priority) if priority.isdigit() else priority,
        "payload": payload,
    }

    async def run(backend: Backend) -> None:
        accepted = await backend.add(item)
        if not wait and isinstance(backend, Remote):
            _tell(
                accepted,
                f"item {accepted['queue_id']} is queued as job {accepted['job_id']}",
                as_json=as_json,
            )
            return
        found = await backend.finished(accepted)
        if found["status"] == "failed":
            raise IngestionFailed(f"item {found['queue_id']} failed: {_why(found)}")
        _tell(found, _came_to(found), as_json=as_json)

    _run(run, options)


def _why(item: Body) -> str:
    """The error of an item; what an error of ours is called says nothing to people."""
    line = str(item["error_message"]).split("\n", 1)[0]
    name, _, reason = line.partition(": ")
    return reason if reason and name.startswith("penstock.") else line


def _came_to(item: Body) -> str:
    if item["status"] != "done":
        name = f"item {item['queue_id']} (job {item['job_id']})"
        return f"{name} is {item['status']}: {item['explanation']}"
    result = dict(item["result"] or {})
    passed_by = result.pop("passed_by", {})
    examples = result.pop("examples", [])
    told = ", ".join(f"{name} {value}" for name, value in result.items() if value)
    children = item["children"]
    lines = [f"item {item['queue_id']} is done" + (f": {told}" if told else "")]
    if passed_by:
        lines.append(f"  passed by: {_counts(passed_by)}")
    lines += [f"    {path}: {why}" for path, why in examples]
    if children["total"]:
        lines.append(f"  {children['done']:,} of {children['total']:,} files are done")
    lines += [f"  failed: {one['payload']}: {one['error']}" for one in children["failures"]]
    return "\n".join(lines)


def _tell(document: Body, text: str, *, as_json: bool) -> None:
    if as_json:
        emit(document)
    else:
        for line in text.splitlines():
            click.echo(shown(line))


def _run(run: Callable[[Backend], Awaitable[None]], where: Body) -> None:
    async def main() -> None:
        async with open_backend(where) as backend:
            try:
                await run(backend)
            except Problem as problem:  # what a server would have answered
                raise ConfigurationError(str(problem)) from problem

    asyncio.run(main())


COMMANDS = (ingest, queue)
