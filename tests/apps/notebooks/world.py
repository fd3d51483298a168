"""What clients may ask of a notebook, and files and folders where everything happens at once."""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from penstock.apps.notebooks.paths import is_within, parents

PATHS = ["a", "b", "d/a", "d/b", "d/e/a"]
FOLDERS = ["d", "d/e", "f"]
SINGLE = ("create", "update", "write", "write", "delete")
"""What is done to one path."""
KINDS = (*SINGLE, "move", "move folder", "delete folder")


class Step(NamedTuple):
    """One change, by path."""

    kind: str
    path: str
    to: str = ""
    content: str = ""

    def below(self, folder: str) -> Self:
        """The same in a folder."""
        to = f"{folder}/{self.to}" if self.to else ""
        return self._replace(path=f"{folder}/{self.path}", to=to)

    @property
    def member(self) -> dict[str, Any]:
        """The change as a member of a batch."""
        op, _, folder = self.kind.partition(" ")
        asked: dict[str, Any] = {"op": op, "path": self.path}
        if self.to:
            asked["to"] = self.to
        if folder:
            asked["folder"] = True
        return asked | ({"content": self.content} if self.content else {})


def some_step(chance: random.Random, kinds: Sequence[str] = KINDS) -> Step:
    """Something that a client may ask for, whether it can succeed or not."""
    kind = chance.choice(kinds)
    path = chance.choice(FOLDERS if "folder" in kind else PATHS)
    match kind:
        case "move" | "move folder":
            return Step(kind, path, chance.choice(FOLDERS if "folder" in kind else PATHS))
        case "delete" | "delete folder":
            return Step(kind, path)
        case _:
            return Step(kind, path, content=str(chance.randrange(1_000)))


def some_batch(chance: random.Random) -> list[Step]:
    """A few of them that are to stop at the first that fails."""
    kinds = [one for one in KINDS if one != "write"]
    return [some_step(chance, kinds) for _ in range(chance.randrange(1, 4))]


def request_for(
    steps: Sequence[Step], number: int | None = None, correlation: str | None = None
) -> dict[str, Any]:
    """How a client asks for it: as one operation, by id where one is given, or as a batch."""
    place, step = "/api/v1/notebooks/garden", steps[0]
    content: dict[str, Any] = {"content": step.content}
    batch: dict[str, Any] = {"operations": [one.member for one in steps]}
    if correlation:
        batch["correlation_id"] = correlation
    single = {
        "create": ("POST", "/files", {"json": {"path": step.path, **content}}),
        "write": ("PUT", f"/content?path={step.path}", content),
        "update": ("PUT", f"/files/{number}", {"json": content}),
        "delete": ("DELETE", f"/files/{number}", {}),
        "move folder": ("PATCH", f"/folders/{step.path}", {"json": {"path": step.to}}),
        "delete folder": ("DELETE", f"/folders/{step.path}", {}),
    }
    needs_id = step.kind in ("update", "delete")
    if len(steps) > 1 or step.kind == "move" or (needs_id and number is None):
        return {"method": "POST", "url": f"{place}/batch", "json": batch}
    method, path, body = single[step.kind]
    return {"method": method, "url": place + path, **body}


def is_refused(steps: Sequence[Step]) -> bool:
    """Whether nobody would accept it: a move to where it is, or into itself."""
    return any(one.to and is_within(one.to, one.path) for one in steps)


class World:
    """Files and folders; a change that cannot be made changes nothing."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.folders: set[str] = set()

    def copy(self) -> "World":
        made = World()
        made.files, made.folders = dict(self.files), set(self.folders)
        return made

    def follow_all(self, steps: Sequence[Step]) -> None:
        """Make changes until one cannot be made."""
        if not is_refused(steps):
            all(self.follow(one) for one in steps)

    def follow(self, step: Step) -> bool:
        """Make a change; whether it could be made."""
        is_there, is_free = step.path in self.files, self._is_free(step.to or step.path)
        match step.kind:
            case "create" | "update" | "write":
                can = {"create": is_free, "update": is_there}.get(step.kind, is_there or is_free)
                if can:
                    self._put(step.path, step.content)
            case "delete":
                if can := is_there:
                    del self.files[step.path]
            case "move":
                if can := is_there and is_free:
                    self._put(step.to, self.files.pop(step.path))
            case _:
                can = step.path in self.folders and (not step.to or is_free)
                if can := can and not (step.to and is_within(step.to, step.path)):
                    self._move_folder(step.path, step.to)
        return can

    def _is_free(self, path: str) -> bool:
        is_taken = path in self.files or path in self.folders
        return not is_taken and not set(parents(path)) & self.files.keys()

    def _put(self, path: str, content: str) -> None:
        self.files[path] = content
        self.folders.update(parents(path))

    def _move_folder(self, path: str, to: str) -> None:
        """Let all below a folder be below another, or nowhere."""
        folders = {one for one in self.folders if is_within(one, path)}
        files = {one: self.files.pop(one) for one in list(self.files) if is_within(one, path)}
        self.folders -= folders
        if to:
            self.folders |= {to + one[len(path) :] for one in folders} | set(parents(to))
            self.files |= {to + one[len(path) :]: text for one, text in files.items()}
