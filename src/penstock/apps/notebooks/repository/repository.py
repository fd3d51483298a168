"""The repository of a notebook: created or joined, opened, and checked before a commit.

A notebook has its own repository in its folder, or joins one of the user's, in its folder or in one
above. This is decided when the notebook is added, and stored: what the folder contains later makes
no difference.
"""

import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from penstock.apps.notebooks.errors import (
    Exists,
    Missing,
    NotebookError,
    PathRefused,
    Permanent,
    Transient,
    os_errors,
)
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.repository.configuration import Protection, derive, signature
from penstock.apps.notebooks.repository.git import Git, Place
from penstock.apps.notebooks.repository.location import GIT, Location, read_small

_BUSY = {
    "MERGE_HEAD": "a merge",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisection",
}
_COMMIT = re.compile(r"[0-9a-f]{4,64}")
_ATTRIBUTES = ".gitattributes"
_FILTER = re.compile(rb"(?:^|\s)filter=(\S+)", re.MULTILINE)
_NO_FILTER = frozenset({b"unspecified", b"unset", b"set"})
_LARGEST_ATTRIBUTES = 100 * 1024 * 1024
"""In bytes; git ignores a larger file of attributes."""
MANY_OBJECTS = 6_700
"""How many loose objects are packed, as `git gc --auto` does."""
_MANY_PACKS = 50
_PACKING_TIME = 600.0


class Repository(NamedTuple):
    """A repository from the point of view of one notebook."""

    git: Git
    """Runs in the work tree, so paths are relative to the repository."""
    top: Path
    """The work tree: the folder of the notebook or one above it."""
    prefix: str
    """The path of the notebook in the repository: empty, or folders with a final slash."""
    directory: Path
    """The git directory of this work tree: HEAD, the index, and operations in progress."""
    common: Path
    """The directory that all work trees of the repository share."""
    filters: frozenset[str]
    """The filters that may run."""
    protection: Protection
    signature: tuple[object, ...]
    """Changes when the repository has to be opened again."""

    @classmethod
    def open(cls, folder: Path, location: Location, protection: Protection) -> Self:
        """Open the repository at a location for the notebook in a folder; raises `Transient`."""
        if problem := location.problem:
            raise Transient(problem)
        top, directory, common = location.top, location.directory, location.common
        before = signature(common, directory)
        derived = derive(protection, top, directory, common)
        prefix = "" if folder == top else f"{folder.relative_to(top)}/"
        git = Git(Place(top, directory, derived.common))
        return cls(git, top, prefix, directory, common, derived.filters, protection, before)

    @classmethod
    def make(cls, folder: Path, protection: Protection) -> Self:
        """Create a repository in a folder, without hooks or other parts of a template.

        It is created elsewhere and then moved, so that a crash never leaves an incomplete one.
        """
        location = Location.own(folder)
        new = folder / STATE / "trash" / uuid.uuid4().hex / GIT
        with os_errors(str(new)):
            new.parent.mkdir(parents=True)
            words = ("init", "--quiet", "--initial-branch=main", "--template=")
            Git(None)(*words, env={"GIT_DIR": str(new)})
            (new / "logs").mkdir(exist_ok=True)
            _record_made(folder, new, protection)
            if os.path.lexists(location.directory):
                raise Exists(f"{str(folder)!r} already has a repository")
            new.rename(location.directory)
            new.parent.rmdir()
        return cls.open(folder, location, protection)

    @classmethod
    def open_or_make(cls, folder: Path, location: Location, protection: Protection) -> Self:
        """Open the repository at a location; create the notebook's own if it does not exist."""
        if not location.is_joined and not os.path.lexists(location.directory):
            return cls.make(folder, protection)
        return cls.open(folder, location, protection)

    @property
    def is_current(self) -> bool:
        """Whether its configuration is unchanged since it was opened."""
        return signature(self.common, self.directory) == self.signature

    def head(self) -> str | None:
        """Return the commit of HEAD; None before the first."""
        answer = self.git.ask("rev-parse", "--quiet", "--verify", "HEAD^{commit}")
        return None if answer.code else answer.stdout.decode().strip()

    def head_and_tree(self) -> tuple[str | None, str | None]:
        """Return the commit of HEAD and its tree; None before the first."""
        answer = self.git.ask("rev-parse", "--quiet", "HEAD^{commit}", "HEAD^{tree}")
        if answer.code:
            return None, None
        head, tree = answer.stdout.decode().split()
        return head, tree

    def commit_named(self, text: str) -> str:
        """Return the full id of a commit for at least four of its digits; raises `Missing`."""
        if not _COMMIT.fullmatch(text):
            raise Missing(f"{text[:80]!r} is not the id of a commit")
        answer = self.git.ask("rev-parse", "--quiet", "--verify", f"{text}^{{commit}}")
        if answer.code:
            raise Missing(f"there is no commit {text}")
        return answer.stdout.decode().strip()

    def refuse_if_busy(self) -> None:
        """Raise `Transient` during a merge or the like, which a commit would damage."""
        for name, what in _BUSY.items():
            if (self.directory / name).exists():
                raise Transient(f"{what} is in progress in {str(self.top)!r}: commits wait for it")

    def index_lock(self) -> Path:
        """Return the file that exists while a program writes the index."""
        return self.directory / "index.lock"

    def pack(self) -> None:
        """Pack loose objects if there are many. Every object stays, reachable or not.

        Safe while others commit. Git's own automatic maintenance is switched off, because it
        leaves processes behind and runs a hook.
        """
        objects = self.common / "objects"
        if _count(objects, "??/*") < MANY_OBJECTS:
            return
        is_scattered = _count(objects, "pack/*.pack") >= _MANY_PACKS
        words = ("-a", "--keep-unreachable") if is_scattered else ()
        self.git("-c", "pack.threads=1", "repack", "-d", "-q", *words, timeout=_PACKING_TIME)

    # Filters
    #
    # A filter that may not run is not skipped either: a content that it encrypts, or stores
    # elsewhere because it is large, would be committed as it is.

    def refuse_filters(self, folder: Path) -> None:
        """Raise `Permanent` if attributes for a folder name a filter that may not run."""
        for where, content in self._attributes(folder):
            for name in _FILTER.findall(_without_comments(content)):
                if why := self._why_not(os.fsdecode(name)):
                    raise Permanent(f"{where}: {why}")

    def held_by_filters(self, paths: Iterable[bytes], index: Path) -> dict[bytes, str]:
        """Return those of the paths whose filter may not run, with the reason."""
        lines = b"".join(path + b"\0" for path in sorted(paths))
        if not lines:
            return {}
        answer = self.git("check-attr", "--stdin", "-z", "filter", stdin=lines, index=index)
        fields = answer.split(b"\0")[:-1]
        held = {}
        for path, name in zip(fields[::3], fields[2::3], strict=True):
            if name not in _NO_FILTER and (why := self._why_not(os.fsdecode(name))):
                held[path] = why
        return held

    def _why_not(self, name: str) -> str | None:
        """Return why a filter may not run; None if it may."""
        if name in self.filters:
            return None
        if name in self.protection.trusted:
            return (
                f"attributes name the filter {name!r}, which is trusted, but the git configuration "
                f"of the server's user has no command for it (filter.{name}.clean)"
            )
        return (
            f"attributes name the filter {name!r}, which the server does not trust; "
            "the setting `trusted_filters` of notebooks lists the filters that may run"
        )

    def _attributes(self, folder: Path) -> Iterator[tuple[str, bytes]]:
        """Yield all attributes that apply in or below a folder, with their source."""
        above = [folder, *(one for one in folder.parents if one.is_relative_to(self.top))]
        files = [one / _ATTRIBUTES for one in above]
        files += [one for one in _attributes_below(folder) if one not in files]
        files += [self.common / "info/attributes", *self._attributes_of_machine()]
        for file in files:
            if file.is_file() and not (file.name == _ATTRIBUTES and file.is_symlink()):
                with file.open("rb") as opened:
                    yield str(file), opened.read(_LARGEST_ATTRIBUTES)
        # Where the work tree has no file of attributes, git reads the committed one.
        if (head := self.head()) is not None:
            listed = self.git("ls-tree", "-r", "-z", "--full-tree", "--name-only", head)
            for path in map(os.fsdecode, listed.split(b"\0")):
                parent = Path(self.top, path).parent
                applies = parent in above or parent.is_relative_to(folder)
                if path.rpartition("/")[2] == _ATTRIBUTES and applies:
                    content = self.git("cat-file", "blob", f"{head}:{path}")
                    yield f"{path} in commit {head[:10]}", content

    def _attributes_of_machine(self) -> Iterator[Path]:
        """Yield the attributes of the machine, and those that the configuration names."""
        listed = self.git.ask("config", "--type=path", "--get", "core.attributesFile")
        if listed.code == 0:
            yield self.top / os.fsdecode(listed.stdout).rstrip("\n")
        elif home := os.environ.get("XDG_CONFIG_HOME") or os.environ.get("HOME"):
            is_xdg = bool(os.environ.get("XDG_CONFIG_HOME"))
            yield Path(home, "git/attributes" if is_xdg else ".config/git/attributes")
        system = self.git.ask("var", "GIT_ATTR_SYSTEM")  # git 2.41 and later
        if system.code == 0:
            yield Path(os.fsdecode(system.stdout).rstrip("\n"))
        yield Path("/etc/gitattributes")


def _count(folder: Path, pattern: str) -> int:
    return sum(1 for _ in folder.glob(pattern))


def _attributes_below(folder: Path) -> Iterator[Path]:
    folders = [str(folder)]
    while folders:
        where = folders.pop()
        try:
            with os.scandir(where) as found:
                entries = list(found)
        except OSError:
            continue  # it vanished, or is not readable
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != GIT:
                    folders.append(entry.path)
            elif entry.name == _ATTRIBUTES:
                yield Path(where, _ATTRIBUTES)


def _without_comments(content: bytes) -> bytes:
    lines = content.splitlines()
    return b"\n".join(line for line in lines if not line.lstrip().startswith(b"#"))


# Which repository a notebook uses


def own_location(folder: Path, protection: Protection) -> Location:
    """Return where a folder's own repository is; raises `Exists` if it is somebody else's.

    A repository in a folder above makes no difference.
    """
    location = Location.own(folder)
    if os.path.lexists(location.directory) and not _was_made(folder, protection):
        raise Exists(
            f"{folder} is already a repository: set `repository` to `join` (--join) to commit to "
            "it, or `git` to false (--no-git) to keep no history"
        )
    return location


def join_location(folder: Path, protection: Protection) -> Location:
    """Return the repository that contains a folder; raises `Permanent` if it cannot be joined."""
    location = Location.enclosing(folder)
    if location is None:
        raise Permanent(f"neither {folder} nor a folder above it is a repository to join")
    try:
        f"{location.top} {location.directory}".encode()
    except UnicodeEncodeError:
        raise PathRefused(f"{str(location.directory)!r} is not UTF-8") from None
    location.refuse_if_foreign()
    Repository.open(folder, location, protection).refuse_filters(folder)
    return location


def former_location(folder: Path, protection: Protection) -> tuple[Location, str | None]:
    """Return the repository that earlier versions committed to, and what to log about it."""
    found = Location.enclosing(folder)
    own = Location.own(folder)
    if found is None or found.directory == own.directory or not _is_ours(found):
        return own, None
    if _is_ignored(folder, found, protection):
        return own, (
            f"lies in the repository {found.top}, which ignores it, so it had no history: "
            "it now has its own repository"
        )
    return found, f"commits into the repository {found.top}, as before: it is recorded as joined"


def _was_made(folder: Path, protection: Protection) -> bool:
    """Whether the repository in a folder was created for a notebook, which may be added again.

    This is recorded in the data folder, where nothing that a folder contains can forge it.
    """
    try:
        found = (folder / GIT).lstat()
    except OSError:
        return False
    return read_small(_record_of(folder, protection)) == str(found.st_ino)


def _record_made(folder: Path, directory: Path, protection: Protection) -> None:
    record = _record_of(folder, protection)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(str(directory.lstat().st_ino))


def _record_of(folder: Path, protection: Protection) -> Path:
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]
    return protection.private / "made" / name


def _is_ignored(folder: Path, location: Location, protection: Protection) -> bool:
    """Whether a repository ignores a folder and contains nothing of it."""
    try:
        repository = Repository.open(folder, location, protection)
        if not repository.prefix or repository.git("ls-files", "-z", "--", repository.prefix):
            return False
        words = ("check-ignore", "--no-index", "--quiet", f"./{repository.prefix}")
        return repository.git.ask(*words, env={"GIT_LITERAL_PATHSPECS": "0"}).code == 0
    except NotebookError:
        return False


def _is_ours(location: Location) -> bool:
    """Whether git itself would trust a repository: it refuses those of other users."""
    users = {os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        users.add(int(os.environ["SUDO_UID"]))
    if {one.stat().st_uid for one in (location.top, location.directory)} <= users:
        return True
    asked = Git(None, reads_own_files=True).ask("config", "-z", "--get-all", "safe.directory")
    is_safe = False
    for one in os.fsdecode(asked.stdout).split("\0")[:-1]:
        is_within = one.endswith("/*") and Path(one[:-2]) in location.top.parents
        # An empty value cancels those before it.
        is_safe = one != "" and (is_safe or is_within or one in ("*", str(location.top)))
    return is_safe
