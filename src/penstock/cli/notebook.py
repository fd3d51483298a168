"""Commands on the notebooks of a server: `notebook add`, `list`, `write`, `mv`, `rm` and so on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

import click
import msgspec

from penstock.cli.output import Column, emit, show_table, shown, when
from penstock.cli.store import on_server
from penstock.client.line import Line, line_to
from penstock.client.stream import frames
from penstock.client.wire import Request
from penstock.core.errors import JobNotFound, PenstockError, StoreError
from penstock.core.lifecycle import State
from penstock.engine import run_sync

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
"""An operation that has not ended in time is answered so, with how it stands."""


_on_server = on_server("http://127.0.0.1:8000")


class NotebookRefused(PenstockError):
    """An operation on a notebook did not come to a good end."""


notebook_argument = click.argument("notebook")
path_argument = click.argument("path")
version_option = click.option(
    "--version", type=click.IntRange(0), metavar="N", help="Only if this is its version still."
)


@click.group("notebook")
def notebook() -> None:
    """Change the files of notebooks on a server, and look at their history."""


@notebook.command("add")
@click.argument("name")
@click.option("--path", metavar="DIR", help="A folder that is there.  [default: a new one]")
@click.option("--git/--no-git", default=True, help="Whether its history is kept in git.")
@click.option(
    "--join",
    is_flag=True,
    help="Commit into the repository that the folder is, or lies in.  [default: its own]",
)
@_on_server
def add(*, name: str, path: str | None, git: bool, join: bool, url: str, as_json: bool) -> None:
    """Register a folder of the server as the notebook NAME."""
    body = {"name": name, "git": git, **({"path": path} if path else {})}
    if join:
        body["repository"] = "join"
    with _asking(url) as ask:
        made = ask("POST", _NOTEBOOKS, body=body)
    told = f"Added notebook {made['name']}: {made['path']}"
    if _is_joined(made):
        told += f"\nIts history is in the repository {made['repository']['path']}, which it joins."
    _tell(made, told, as_json=as_json)


@notebook.command("list")
@click.argument("notebook", required=False)
@click.option("--prefix", metavar="TEXT", default="", help="Only paths that begin so.")
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
        click.echo("There is no notebook." if notebook is None else "There is no file.")
    elif notebook is None:
        _print_notebooks(found)
    else:
        _print_files(found)


@notebook.command("show")
@notebook_argument
@_on_server
def show(*, notebook: str, url: str, as_json: bool) -> None:
    """Show NOTEBOOK: where it is, its repository, and what is not committed and why."""
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
    """Write what is in FILE, or comes from stdin, to PATH of NOTEBOOK.

    The file is made if it is not there.
    """
    params = {"path": path, **_given(version=version)}
    with _asking(url) as ask:
        made = ask("PUT", f"{_at(notebook)}/content", params, file.read(), sync=True)
    _tell(made, f"Wrote {path}, version {made.get('version', '?')}.", as_json=as_json)


@notebook.command("mv")
@notebook_argument
@click.argument("source")
@click.argument("target")
@_on_server
def move(*, notebook: str, source: str, target: str, url: str, as_json: bool) -> None:
    """Move the file or folder SOURCE of NOTEBOOK to TARGET."""
    with _asking(url) as ask:
        file = _file(ask, notebook, source)
        place = f"/files/{file['id']}/move" if file else f"/folders/{quote(source.strip('/'))}"
        body = {"path": target}
        made = ask("PATCH", f"{_at(notebook)}{place}", body=body, sync=True, repeats=False)
    _tell(made, f"Moved {source} to {target}.", as_json=as_json)


@notebook.command("rm")
@notebook_argument
@path_argument
@click.option("-r", "--recursive", is_flag=True, help="Also a folder, with all that is in it.")
@version_option
@_on_server
def remove(
    *, notebook: str, path: str, recursive: bool, version: int | None, url: str, as_json: bool
) -> None:
    """Delete the file PATH of NOTEBOOK. It stays in the history."""
    with _asking(url) as ask:
        file = _file(ask, notebook, path)
        if file is None and not recursive:
            raise _missing(notebook, path, "--recursive, if it is a folder")
        place = f"/files/{file['id']}" if file else f"/folders/{quote(path.strip('/'))}"
        params = _given(version=version) if file else {}
        made = ask("DELETE", f"{_at(notebook)}{place}", params, sync=True, repeats=False)
    _tell(made, f"Deleted {path}.", as_json=as_json)


@notebook.command("log")
@notebook_argument
@click.argument("path", required=False)
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="At most."
)
@_on_server
def show_history(*, notebook: str, path: str | None, limit: int, url: str, as_json: bool) -> None:
    """Show the commits of NOTEBOOK, or of its file PATH, also from before it was moved."""
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
    """Commit what has changed in NOTEBOOK, or in all, without waiting for its time."""
    body = _given(notebook=notebook)
    with _asking(url) as ask:
        made = ask("POST", f"{_EVENTS}/commit", body=body, sync=True)
        found = [ask("GET", _at(notebook))] if notebook else ask("GET", _NOTEBOOKS)["notebooks"]
    _tell(made, f"Committed {notebook or 'all notebooks'}.", as_json=as_json)
    if not as_json:
        _print_problems(found, _SOME)


@notebook.command("watch")
@notebook_argument
@_on_server
def watch(*, notebook: str, url: str, as_json: bool) -> None:
    """Show what is done to NOTEBOOK, by whomever, until Ctrl-C."""
    with _asking(url) as ask:
        wanted = ask("GET", _at(notebook))["id"]
        for _, entry in frames(ask.line, None, None):
            if entry is None:  # where the log ends: all that comes now is shown
                click.echo(shown(f"Watching {notebook}; Ctrl-C ends it."), err=True)
            elif entry.state in _FINAL:
                event = _event(ask, entry.job_id)
                if event is not None and event["notebook_id"] == wanted:
                    _print_event(event, as_json=as_json)


# Asking


class Asker:
    """Asks a server, and waits for what it does."""

    def __init__(self, line: Line) -> None:
        self.line = line

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
        """The answer of the server; raises what it stands for."""
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
        said = run_sync(self.line.ask(request, Body))
        if "detail" in said:
            raise NotebookRefused(said["detail"])
        return said


@contextmanager
def _asking(url: str) -> Iterator[Asker]:
    line = line_to(url, None, retries=3, timeout=60, blocking=True)
    try:
        yield Asker(line)
    except StoreError as error:
        error.add_note("penstock serve, or another --url URL")
        raise
    finally:
        run_sync(line.close())


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
    """The file at a path; None if there is none, as for a folder."""
    plain = path.strip("/")
    params = {"prefix": plain, "limit": 1}
    found = ask("GET", f"{_at(notebook)}/files", params)["files"]
    return next((file for file in found if file["path"] == plain), None)


def _missing(notebook: str, path: str, step: str) -> JobNotFound:
    error = JobNotFound(f"there is no file {path!r} in notebook {notebook!r}")
    error.add_note(step)
    return error


def _event(ask: Asker, job_id: int) -> Body | None:
    """The operation that a job is; None if it is another's."""
    try:
        event: Body = ask("GET", f"{_EVENTS}/{job_id}")
    except JobNotFound:
        return None
    return event


# Showing


def _tell(document: Body, text: str, *, as_json: bool) -> None:
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
    """Whether a notebook has a history: not where there is no repository."""
    if not notebook["git"]:
        return "missing" if notebook.get("git_problem") else "no"
    return "joined" if _is_joined(notebook) else "yes"


def _print_problems(found: list[Body], limit: int) -> None:
    """Print why notebooks are not committed, and which paths are not."""
    for one in found:
        if problem := one.get("git_problem"):
            click.echo(shown(f"{one['name']} is not committed: {problem}"))
        told = one.get("held", [])[:limit]
        for held in told:
            click.echo(shown(f"{one['name']}: {held['path']} is not committed: {held['reason']}"))
        if (more := one.get("held_count", 0) - len(told)) > 0:
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
        words.append(f"{event['result']['changed']:,} changed by others")
    if event["dest_path"]:
        words += ["->", event["dest_path"]]
    if event["status"] != "completed":
        words += [f"({event['status']}: {event['error_message']})"]
    click.echo(shown(" ".join(word for word in words if word)))


COMMANDS = (notebook,)
