"""Contents and history of files, for those who read: in threads, without a queue."""

from pathlib import Path
from typing import BinaryIO

from penstock.apps.notebooks import shapes
from penstock.apps.notebooks.configuration import Protection
from penstock.apps.notebooks.errors import Missing
from penstock.apps.notebooks.files import Tree
from penstock.apps.notebooks.history import Entry, History
from penstock.apps.notebooks.repository import Repository
from penstock.apps.notebooks.tables import File, Notebook

_FAR_BACK = 1_000


def content(notebook: Notebook, file: File) -> BinaryIO:
    """A file as it is now, open for reading."""
    return Tree(Path(notebook.path)).open(file.path)


def content_at(
    notebook: Notebook, protection: Protection, file: File, commit: str, limit: int
) -> bytes:
    """A file as it was in a commit, wherever it stood then."""
    history = _history(notebook, protection)
    path = history.path_at(commit, file.path)
    data, is_whole = history.content(commit, path, limit=limit)
    if not is_whole:
        raise Missing(f"{path!r} has more than {limit:,} bytes in commit {commit}")
    return data


def commits(
    notebook: Notebook,
    protection: Protection,
    file: File | None,
    limit: int,
    after: str | None = None,
) -> list[shapes.HistoryEntry]:
    """The commits of a file or of the whole notebook, newest first; `after` goes on behind one."""
    history = _history(notebook, protection)
    if file is None:
        return [_shape(one) for one in history.log(limit=limit, after=after)]
    path = file.path if after is None else history.path_at(after, file.path)
    return [_shape(one) for one in history.of(path, limit=limit, after=after)]


def diff(
    notebook: Notebook, protection: Protection, file: File, since: str | None, until: str | None
) -> shapes.FileDiff:
    """What changed in a file between two commits: by default in its last one.

    Its first commit has none before it to be compared with: all of it is new.
    """
    history = _history(notebook, protection)
    if since is None or until is None:
        known = history.of(file.path, limit=_FAR_BACK)
        until = until or (known[0].id if known else None)
        older = [n for n, one in enumerate(known) if until and one.id.startswith(until)]
        if until is None or (since is None and not older):
            raise Missing(f"{file.path!r} has no such commit")
        if since is None and older[0] + 1 < len(known):
            since = known[older[0] + 1].id
    new = history.path_at(until, file.path)
    if since is None:
        found = history.diff(None, until, new)
    else:
        found = history.diff_of((since, history.path_at(since, file.path)), (until, new))
    return shapes.FileDiff(since=since, until=until, diff=found.text, whole=found.is_whole)


def _history(notebook: Notebook, protection: Protection) -> History:
    problem = git_problem(notebook)
    if notebook.location is None or problem:
        raise Missing(f"notebook {notebook.name!r} has no history: {problem or 'it is not in git'}")
    return History(Repository.open(Path(notebook.path), notebook.location, protection))


def git_problem(notebook: Notebook) -> str | None:
    """Why a notebook that is to have a history has none; None if it has one, or is to have none."""
    if not notebook.git:
        return None
    if notebook.location is None:
        return "it is not known yet which repository its history is in"
    return notebook.location.problem


def _shape(entry: Entry) -> shapes.HistoryEntry:
    return shapes.HistoryEntry(
        commit=entry.id,
        at=entry.at,
        author=entry.author,
        email=entry.email,
        message=entry.subject,
        path=entry.path,
    )
