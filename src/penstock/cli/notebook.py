"""The command `notebook`: notebooks of a server, their files and their history."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

import click
import msgspec

from penstock.cli.options import on_server
from penstock.cli.output import Column, emit, show_table, shown, when
from penstock.client.connection import Connection, connect
from penstock.client.stream import endless_frames
from penstock.client.wire import Request
from penstock.core.errors import JobNotFound, PenstockError, StoreError
from penstock.core.lifecycle import State
from penstock.engine.penstock import run_sync

F = TypeVar("F", bound=Callable[..., Any])
Body = dict[str, Any]

_PATIENCE = 60.0
_NOTEBOOKS = "/api/v1/notebooks"
_EVENTS = "/api/v1/events"
_PAGE = 1_000
_SHORT = 10
_SOME = 3
_ALL = 20
_FINAL = frozenset({State.DONE, State.FAILED, State.CANCELLED})
_LATE = frozenset({408})
"""The status of an operation that has not ended in time; the body has its state."""


_on_server = on_server("http://127.0.0.1:8000")


class NotebookRefused(PenstockError):
    """An operation on a notebook failed or was refused."""


notebook_argument = click.argument("notebook")
path_argument = click.argument("path")
version_option = click.option(
    "--version",
    type=click.IntRange(0),
    metavar="N",
    help="Only if the file still has this version.",
)


@click.group("notebook")
def notebook() -> None:
    """Manage notebooks on a server: files and their history."""


@notebook.command("add")
@click.argument("name")
@click.option("--path", metavar="DIR", help="An existing folder.  [default: a new one]")
@click.option("--git/--no-git", default=True, help="Whether to keep its history in git.")
@click.option(
    "--join",
    is_flag=True,
    help="Commit to the repository that contains the folder.  [default: its own repository]",
)
@_on_server
def add(*, name: str, path: str | None, git: bool, join: bool, url: str, as_json: bool) -> None:
    """Register a folder of the server as the notebook NAME."""
    body = {"name": name, "git": git, **({"path": path} if path else {})}
    if join:
        body["repository"] = "join"
    with _asking(url) as ask:
        made = ask("POST", _NOTEBOOKS, body=body)
    text = f"Added notebook {made['name']}: {made['path']}"
    if _is_joined(made):
        text += f"\nIts history is kept in the repository {made['repository']['path']}."
    _print_result(made, text, as_json=as_json)


@notebook.command("list")
@click.argument("notebook", required=False)
@click.option("--prefix", metavar="TEXT", default="", help="Only paths that start with this text.")
@_on_server
def list_all(*, notebook: str | None, prefix: str, url: str, as_json: bool) -> None:
    """List notebooks, or the files of NOTEBOOK."""
    with _asking(url) as ask:
        if notebook is None:
            found = ask("GET", _NOTEBOOKS)["notebooks"]
        else:
            found = list(_files(ask, notebook, prefix))
    if as_json:
        emit({"notebooks" if notebook is None else "files": found})
    elif not found:
        click.echo("There are no notebooks." if notebook is None else "There are no files.")
    elif notebook is None:
        _print_notebooks(found)
    else:
        _print_files(found)


@notebook.command("show")
@notebook_argument
@_on_server
def show(*, notebook: str, url: str, as_json: bool) -> None:
    """Show NOTEBOOK: its folder, its repository, and uncommitted paths with the reasons."""
    with _asking(url) as ask:
        found = ask("GET", _at(notebook))
    if as_json:
        emit(found)
        return
    lines = {"notebook": f"{found['name']} ({found['id']})", "path": found["path"]}
    lines["git"] = _history(found)
    if repository := found.get("repository"):
        lines["repository"] = repository["path"]
    lines["watched"] = found["watch_problem"] or ("yes" if found["watched"] else "no")
    for label, value in lines.items():
        click.echo(shown(f"{label:<12}{value}"))
    _print_problems([found], _ALL)


@notebook.command("write")
@notebook_argument
@path_argument
@click.argument("file", type=click.File("rb"), default="-")
@version_option
@_on_server
def write(
    *, notebook: str, path: str, file: BinaryIO, version: int | None, url: str, as_json: bool
) -> None:
    """Write FILE, or stdin, to PATH in NOTEBOOK.

    Creates the file at PATH if it does not exist.
    """
    params = {"path": path, **_given(version=version)}
    with _asking(url) as ask:
        made = ask("PUT", f"{_at(notebook)}/content", params, file.read(), sync=True)
    _print_result(made, f"Wrote {path}, version {made.get('version', '?')}.", as_json=as_json)


@notebook.command("mv")
@notebook_argument
@click.argument("source")
@click.argument("target")
@_on_server
def move(*, notebook: str, source: str, target: str, url: str, as_json: bool) -> None:
    """Move the file or folder SOURCE in NOTEBOOK to TARGET."""
    with _asking(url) as ask:
        file = _file(ask, notebook, source)
        place = f"/files/{file['id']}/move" if file else f"/folders/{quote(source.strip('/'))}"
        body = {"path": target}
        made = ask("PATCH", f"{_at(notebook)}{place}", body=body, sync=True, repeats=False)
    _print_result(made, f"Moved {source} to {target}.", as_json=as_json)


@notebook.command("rm")
@notebook_argument
@path_argument
@click.option(
    "-r", "--recursive", is_flag=True, help="Also delete folders with everything in them."
)
@version_option
@_on_server
def remove(
    *, notebook: str, path: str, recursive: bool, version: int | None, url: str, as_json: bool
) -> None:
    """Delete the file PATH in NOTEBOOK. It stays in the history."""
    with _asking(url) as ask:
        file = _file(ask, notebook, path)
        if file is None and not recursive:
            raise _missing(notebook, path, "--recursive, if it is a folder")
        place = f"/files/{file['id']}" if file else f"/folders/{quote(path.strip('/'))}"
        params = _given(version=version) if file else {}
        made = ask("DELETE", f"{_at(notebook)}{place}", params, sync=True, repeats=False)
    _print_result(made, f"Deleted {path}.", as_json=as_json)


@notebook.command("log")
@notebook_argument
@click.argument("path", required=False)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    help="The largest number of commits.",
)
@_on_server
def show_history(*, notebook: str, path: str | None, limit: int, url: str, as_json: bool) -> None:
    """Show the commits of NOTEBOOK, or of its file PATH, including its former paths."""
    with _asking(url) as ask:
        place = ""
        if path is not None:
            file = _file(ask, notebook, path)
            if file is None:
                raise _missing(notebook, path, f"penstock notebook list {notebook}")
            place = f"/files/{file['id']}"
        found = ask("GET", f"{_at(notebook)}{place}/history", {"limit": limit})
    if as_json:
        emit(found)
    elif not found["commits"]:
        click.echo(shown(f"{path or notebook} has no commits yet."))
    else:
        _print_commits(found["commits"])


@notebook.command("commit")
@click.argument("notebook", required=False)
@_on_server
def commit(*, notebook: str | None, url: str, as_json: bool) -> None:
    """Commit changes in NOTEBOOK, or in all notebooks, now."""
    body = _given(notebook=notebook)
    with _asking(url) as ask:
        made = ask("POST", f"{_EVENTS}/commit", body=body, sync=True)
        found = [ask("GET", _at(notebook))] if notebook else ask("GET", _NOTEBOOKS)["notebooks"]
    _print_result(made, f"Committed {notebook or 'all notebooks'}.", as_json=as_json)
    if not as_json:
        _print_problems(found, _SOME)


@notebook.command("watch")
@notebook_argument
@_on_server
def watch(*, notebook: str, url: str, as_json: bool) -> None:
    """Show changes in NOTEBOOK as they happen, until Ctrl-C."""
    with _asking(url) as ask:
        wanted = ask("GET", _at(notebook))["id"]
        run_sync(_watch(ask, notebook, wanted, as_json=as_json))


async def _watch(ask: "Asker", notebook: str, wanted: int, *, as_json: bool) -> None:
    async for _, entry in endless_frames(ask.connection):
        if entry is None:  # the end of the log: everything after this is shown
            click.echo(shown(f"Watching {notebook}; Ctrl-C quits."), err=True)
        elif entry.state in _FINAL:
            event = _event(ask, entry.job_id)
            if event is not None and event["notebook_id"] == wanted:
                _print_event(event, as_json=as_json)


# Requests


class Asker:
    """Makes requests to a server, and waits for operations to end."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __call__(
        self,
        method: str,
        path: str,
        params: Body | None = None,
        body: Any = None,
        *,
        sync: bool = False,
        repeats: bool = True,
    ) -> Any:
        """Return the answer, or raise the error in it."""
        waiting = {"sync": "true", "timeout": _PATIENCE} if sync else {}
        request = Request(
            method,
            path,
            {**(params or {}), **waiting},
            body,
            repeats=repeats,
            patience=_PATIENCE if sync else 0.0,
            conflict=NotebookRefused,
            accepts=_LATE,
        )
        answer = run_sync(self.connection.ask(request, Body))
        if "detail" in answer:
            raise NotebookRefused(answer["detail"])
        return answer


@contextmanager
def _asking(url: str) -> Iterator[Asker]:
    connection = connect(url, None, retries=3, timeout=60, blocking=True)
    try:
        yield Asker(connection)
    except StoreError as error:
        error.add_note("penstock serve, or another --url URL")
        raise
    finally:
        run_sync(connection.close())


def _at(notebook: str) -> str:
    return f"{_NOTEBOOKS}/{quote(notebook, safe='')}"


def _given(**values: Any) -> Body:
    return {name: value for name, value in values.items() if value is not None}


def _files(ask: Asker, notebook: str, prefix: str) -> Iterator[Body]:
    after = ""
    while True:
        params = {"prefix": prefix, "after": after, "limit": _PAGE}
        page = ask("GET", f"{_at(notebook)}/files", params)
        yield from page["files"]
        if page["next"] is None:
            return
        after = page["next"]


def _file(ask: Asker, notebook: str, path: str) -> Body | None:
    """Return the file at a path; None if there is none, or if it is a folder."""
    plain = path.strip("/")
    params = {"prefix": plain, "limit": 1}
    found = ask("GET", f"{_at(notebook)}/files", params)["files"]
    return next((file for file in found if file["path"] == plain), None)


def _missing(notebook: str, path: str, step: str) -> JobNotFound:
    error = JobNotFound(f"there is no file {path!r} in notebook {notebook!r}")
    error.add_note(step)
    return error


def _event(ask: Asker, job_id: int) -> Body | None:
    """Return the operation of a job; None if it is not an operation on a notebook."""
    try:
        event: Body = ask("GET", f"{_EVENTS}/{job_id}")
    except JobNotFound:
        return None
    return event


# Output


def _print_result(document: Body, text: str, *, as_json: bool) -> None:
    if as_json:
        emit(document)
    else:
        click.echo(shown(text))


def _print_notebooks(found: list[Body]) -> None:
    columns = [Column("id", right=True), Column("name"), Column("git"), Column("path", bends=True)]
    rows = [[str(one["id"]), one["name"], _history(one), one["path"]] for one in found]
    show_table(columns, rows)
    for one in found:
        if one.get("git_problem") or one.get("held_count"):
            left_out = one["held_count"]
            problem = one.get("git_problem") or (
                f"{left_out:,} path{'' if left_out == 1 else 's'} left out of commits"
            )
            click.echo(shown(f"{one['name']}: {problem} (penstock notebook show {one['name']})"))


def _is_joined(notebook: Body) -> bool:
    repository = notebook.get("repository")
    return repository is not None and repository["kind"] == "joined"


def _history(notebook: Body) -> str:
    """Describe the history of a notebook; without a repository, it has none."""
    if not notebook["git"]:
        return "missing" if notebook.get("git_problem") else "no"
    return "joined" if _is_joined(notebook) else "yes"


def _print_problems(found: list[Body], limit: int) -> None:
    """Print which notebooks and paths are not committed, and why."""
    for one in found:
        if problem := one.get("git_problem"):
            click.echo(shown(f"{one['name']} is not committed: {problem}"))
        listed = one.get("held", [])[:limit]
        for held in listed:
            click.echo(shown(f"{one['name']}: {held['path']} is not committed: {held['reason']}"))
        if (more := one.get("held_count", 0) - len(listed)) > 0:
            click.echo(shown(f"{one['name']}: {more:,} more not committed"))


def _print_files(found: list[Body]) -> None:
    columns = [
        *(Column("id", right=True), Column("path", bends=True), Column("bytes", right=True)),
        *(Column("version", right=True), Column("updated")),
    ]
    now = datetime.now(UTC)
    rows = [
        [
            *(str(one["id"]), one["path"], f"{one['size']:,}", str(one["version"])),
            when(datetime.fromisoformat(one["updated_at"]), now),
        ]
        for one in found
    ]
    show_table(columns, rows)


def _print_commits(found: list[Body]) -> None:
    columns = [Column("commit"), Column("when"), Column("author"), Column("subject", bends=True)]
    now = datetime.now(UTC)
    rows = [
        [
            one["commit"][:_SHORT],
            when(datetime.fromisoformat(one["at"]), now),
            one["author"],
            one["message"],
        ]
        for one in found
    ]
    show_table(columns, rows)


def _print_event(event: Body, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(event))
        return
    at = datetime.fromisoformat(event["processed_at"])
    words = [f"{at:%H:%M:%S}", event["type"], event["path"]]
    if event["type"] == "sync" and event["result"]:
        words.append(f"{event['result']['changed']:,} changed by other programs")
    if event["dest_path"]:
        words += ["->", event["dest_path"]]
    if event["status"] != "completed":
        words += [f"({event['status']}: {event['error_message']})"]
    click.echo(shown(" ".join(word for word in words if word)))


COMMANDS = (notebook,)
