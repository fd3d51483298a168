"""Which repository has the history of a notebook: its own, or one of the user's that it joins."""

import os
from pathlib import Path

from penstock.apps.notebooks.attributes import refuse_filters
from penstock.apps.notebooks.configuration import Protection
from penstock.apps.notebooks.errors import Exists, NotebookError, PathRefused, Permanent
from penstock.apps.notebooks.git import Git
from penstock.apps.notebooks.repository import Location, Repository, was_made


def own(folder: Path, protection: Protection) -> Location:
    """The repository that a folder gets for itself; raises `Exists` if it is another's already.

    Where the folder lies makes no difference: a repository around it is left alone.
    """
    location = Location.own(folder)
    if os.path.lexists(location.directory) and not was_made(folder, protection):
        raise Exists(
            f"{folder} is a repository already: with `repository` set to `join` (--join) the "
            "notebook commits into it, with `git` set to false (--no-git) it has no history"
        )
    return location


def joined(folder: Path, protection: Protection) -> Location:
    """The repository that a folder is, or lies in; raises `Permanent` if it cannot be joined."""
    location = Location.enclosing(folder)
    if location is None:
        raise Permanent(f"neither {folder} nor a folder above it is a repository to join")
    try:
        f"{location.top} {location.directory}".encode()
    except UnicodeEncodeError:
        raise PathRefused(f"{str(location.directory)!r} is not UTF-8") from None
    location.refuse_if_foreign()
    refuse_filters(Repository.open(folder, location, protection), folder)
    return location


def former(folder: Path, protection: Protection) -> tuple[Location, str | None]:
    """The repository that earlier versions committed a notebook into, and what to say about it."""
    found = Location.enclosing(folder)
    itself = Location.own(folder)
    if found is None or found.directory == itself.directory or not _is_ours(found):
        return itself, None
    if _is_left_out(folder, found, protection):
        return itself, (
            f"lies in the repository {found.top}, which ignores it, so that it had no history: "
            "it has a repository of its own now"
        )
    return found, f"commits into the repository {found.top}, as before: it is recorded as joined"


def _is_left_out(folder: Path, location: Location, protection: Protection) -> bool:
    """Whether a repository ignores a folder, and has nothing of it."""
    try:
        repository = Repository.open(folder, location, protection)
        if not repository.prefix or repository.git("ls-files", "-z", "--", repository.prefix):
            return False
        words = ("check-ignore", "--no-index", "--quiet", f"./{repository.prefix}")
        return repository.git.ask(*words, env={"GIT_LITERAL_PATHSPECS": "0"}).code == 0
    except NotebookError:
        return False


def _is_ours(location: Location) -> bool:
    """Whether git would work on a repository by itself: not on those of other users."""
    users = {os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        users.add(int(os.environ["SUDO_UID"]))
    if {one.stat().st_uid for one in (location.top, location.directory)} <= users:
        return True
    asked = Git(None, reads_own_files=True).ask("config", "-z", "--get-all", "safe.directory")
    is_safe = False
    for one in os.fsdecode(asked.out).split("\0")[:-1]:
        is_within = one.endswith("/*") and Path(one[:-2]) in location.top.parents
        # An empty one takes back those before it.
        is_safe = one != "" and (is_safe or is_within or one in ("*", str(location.top)))
    return is_safe
