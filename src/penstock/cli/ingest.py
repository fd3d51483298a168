"""The commands `ingest` and `queue`: on a server, or in this process."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click

from penstock.cli.application import Body, Routes, application
from penstock.cli.options import on_server_or_here
from penstock.cli.output import emit, shown
from penstock.client.remote import RemotePenstock
from penstock.core.errors import PenstockError

_ITEMS = "/api/v1/queue/items"
_POLL = 0.2
_FINAL = ("done", "failed")
_STUCK = ("scheduled", "blocked", "held")
"""Reasons for which a job does not run soon, see `explain`."""
_SNIPPET = 240


class IngestionFailed(PenstockError):
    """An item could not be ingested."""


_where = on_server_or_here("Without a server: the folder with the collections.")


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
    """Add the options that all commands have that add an item."""
    for option in (
        click.option("--wait/--no-wait", default=True, help="With a server: wait for the result."),
        click.option(
            "--priority",
            metavar="0-10|NAME",
            default="cli",
            show_default=True,
            help="The priority, higher first.",
        ),
    ):
        command = option(command)
    return _where(_whose(command))


@click.group("ingest")
def ingest() -> None:
    """Ingest files, folders, texts and libraries; search them.

    On the server that --url names, or in this process, with the store and the data folder that
    penstock serve uses: penstock-data.
    """


@ingest.command("file")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--update", is_flag=True, help="Report that it has changed.")
@_adding
def ingest_file(*, path: Path, update: bool, **options: Any) -> None:
    """Ingest the file PATH."""
    _add("file", "update" if update else "ingest", {"file_path": str(path.absolute())}, options)


@ingest.command("folder")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only files that match. Can be repeated.",
)
@click.option(
    "--ignore",
    "ignored",
    multiple=True,
    metavar="PATTERN",
    help="Leave out files that match. Can be repeated.",
)
@click.option("--depth", type=click.IntRange(0, 1_000), help="The depth of subfolders.")
@click.option("--scan", is_flag=True, help="Only list the files, and ingest them later.")
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
    """Ingest the files in the folder PATH, and remove those that no longer exist."""
    payload: Body = {
        "folder_path": str(path.absolute()),
        "patterns": list(patterns),
        "ignore_patterns": list(ignored),
        **({} if depth is None else {"recursive_depth": depth}),
    }
    _add("folder", "scan" if scan else "ingest", payload, options)


@ingest.command("project")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--scan", is_flag=True, help="Only list the files, and ingest them later.")
@_adding
def ingest_project(*, path: Path, scan: bool, **options: Any) -> None:
    """Ingest the project in PATH, and report its type and git remote."""
    _add("project", "scan" if scan else "ingest", {"project_root": str(path.absolute())}, options)


@ingest.command("content")
@click.argument("text")
@click.option("--id", "document_id", metavar="ID", help="The ID under which the text can be found.")
@click.option("--tag", metavar="TAG", help="The tag.")
@click.option("--update", is_flag=True, help="Report that it has changed.")
@_adding
def ingest_content(
    *, text: str, document_id: str | None, tag: str | None, update: bool, **options: Any
) -> None:
    """Ingest TEXT; - reads it from stdin."""
    content = sys.stdin.read() if text == "-" else text
    given = {"content": content, "document_id": document_id, "main_tag": tag, "source_type": "cli"}
    payload = {name: value for name, value in given.items() if value is not None}
    _add("content", "update" if update else "ingest", payload, options)


@ingest.command("library")
@click.argument("name")
@click.argument("source")
@click.option("--version", metavar="VERSION", help="The version.")
@click.option("--update", is_flag=True, help="Report that it has changed.")
@_adding
def ingest_library(
    *, name: str, source: str, version: str | None, update: bool, **options: Any
) -> None:
    """Ingest the documentation of the library NAME from SOURCE: a folder, archive or URL."""
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
@click.option("--version", metavar="VERSION", help="The version of a library.")
@_adding
def ingest_delete(*, kind: str, name: str, version: str | None, **options: Any) -> None:
    """Remove what was ingested as NAME: a path, or the name of a library or tenant."""
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
@click.option("--folder", is_flag=True, help="OLD and NEW are folders.")
@_adding
def ingest_rename(*, old: Path, new: Path, folder: bool, **options: Any) -> None:
    """Record that OLD was renamed to NEW; nothing is embedded again."""
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
    help="The largest number of results.",
)
@_where
@_whose
def search_ingested(
    *, query: str, top: int, tenant: str, collection: str, branch: str, as_json: bool, **where: Any
) -> None:
    """Search everything ingested for QUERY, by meaning and words."""
    whose = {"tenant_id": tenant, "collection": collection, "branch": branch}

    async def main(ingest: Routes) -> None:
        question = {"query": query, "top_k": top, **whose}
        found = await ingest.post("/api/v1/ingest/search", question)
        if as_json:
            emit(found)
            return
        for n, one in enumerate(found["results"], 1):
            click.echo(click.style(shown(f"{n}. {one['path']}  {one['score']:.2f}"), bold=True))
            text = " ".join(one["text"].split())
            click.echo(f"   {shown(text if len(text) <= _SNIPPET else text[:_SNIPPET] + '…')}")
        if not found["results"]:
            click.echo("Nothing found.")

    _run(main, where)


@click.group("queue")
def queue() -> None:
    """Show the queue of items to ingest."""


@queue.command("stats")
@click.option("--tenant", metavar="NAME", help="Only items of this tenant.")
@click.option("--collection", metavar="NAME", help="Only items of this collection.")
@_where
def show_stats(*, tenant: str | None, collection: str | None, as_json: bool, **where: Any) -> None:
    """Count the items by status, in total and by type, tenant and collection."""

    async def main(ingest: Routes) -> None:
        given = {"tenant_id": tenant, "collection": collection}
        params = {name: value for name, value in given.items() if value}
        found = await ingest.get(f"{_ITEMS}/stats", params)
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

    _run(main, where)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {status}" for status, n in sorted(counts.items()))


def _add(item_type: str, op: str, payload: Body, options: Body) -> None:
    """Add an item, and print its result."""
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

    async def main(ingest: Routes) -> None:
        (accepted,) = (await ingest.post(_ITEMS, item))["items"]
        if not (wait or ingest.is_here):
            text = f"item {accepted['queue_id']} is queued as job {accepted['job_id']}"
            _print_result(accepted, text, as_json=as_json)
            return
        found = await _finished(ingest, accepted)
        if found["status"] == "failed":
            raise IngestionFailed(f"item {found['queue_id']} failed: {_why(found)}")
        _print_result(found, _summary(found), as_json=as_json)

    _run(main, options, works=True)


async def _finished(ingest: Routes, accepted: Body) -> Body:
    """Wait for an item and its children; in this process, only while something can run."""
    while True:
        item = await ingest.get(f"{_ITEMS}/{accepted['queue_id']}")
        children = item["children"]
        if item["status"] in _FINAL and not children["pending"] + children["in_progress"]:
            return item
        if ingest.is_here and not children["in_progress"] and await _is_stuck(ingest, item):
            return item
        await asyncio.sleep(_POLL)


async def _is_stuck(ingest: Routes, item: Body) -> bool:
    """Whether an item waits for something that does not happen soon, such as a retry."""
    if item["status"] in _FINAL:
        return False
    explanation = await RemotePenstock.on(ingest.connection).explain(item["job_id"])
    return explanation.reason in _STUCK


def _why(item: Body) -> str:
    """Return the error of an item, without the name of our exception."""
    line = str(item["error_message"]).split("\n", 1)[0]
    name, _, reason = line.partition(": ")
    return reason if reason and name.startswith("penstock.") else line


def _summary(item: Body) -> str:
    if item["status"] != "done":
        name = f"item {item['queue_id']} (job {item['job_id']})"
        return f"{name} is {item['status']}: {item['explanation']}"
    result = dict(item["result"] or {})
    passed_by = result.pop("passed_by", {})
    examples = result.pop("examples", [])
    text = ", ".join(f"{name} {value}" for name, value in result.items() if value)
    children = item["children"]
    lines = [f"item {item['queue_id']} is done" + (f": {text}" if text else "")]
    if passed_by:
        lines.append(f"  skipped: {_counts(passed_by)}")
    lines += [f"    {path}: {why}" for path, why in examples]
    if children["total"]:
        lines.append(f"  {children['done']:,} of {children['total']:,} files are done")
    lines += [f"  failed: {one['payload']}: {one['error']}" for one in children["failures"]]
    return "\n".join(lines)


def _print_result(document: Body, text: str, *, as_json: bool) -> None:
    if as_json:
        emit(document)
    else:
        for line in text.splitlines():
            click.echo(shown(line))


def _run(main: Callable[[Routes], Awaitable[None]], where: Body, *, works: bool = False) -> None:
    async def run() -> None:
        # Whoever has a shell on this machine may read its files anyway.
        changed = {"roots": ("/",), "workers": 1}
        async with application("ingest", where, settings=changed, works=works) as ingest:
            await main(ingest)

    asyncio.run(run())


COMMANDS = (ingest, queue)
