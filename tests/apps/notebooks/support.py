"""Notebooks for tests: on disk, behind their routes, watched, and as a model."""

import asyncio
import hashlib
import os
import random
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
import pytest

from penstock import Penstock, Worker
from penstock.apps.notebooks import Settings, install
from penstock.apps.notebooks.disk import files
from penstock.apps.notebooks.disk.placement import Placer
from penstock.apps.notebooks.disk.scan import ChangeKind, Difference, KnownFile, ScanResult, scan
from penstock.apps.notebooks.disk.tree import Facts, Staged, Tree
from penstock.apps.notebooks.disk.watcher import Watcher
from penstock.apps.notebooks.paths import is_within, parents
from penstock.apps.notebooks.repository.commits import Commit, Committer, commit_changes
from penstock.apps.notebooks.repository.configuration import Protection
from penstock.apps.notebooks.repository.location import Location
from penstock.apps.notebooks.repository.repository import Repository
from penstock.runtime import system_clock
from penstock.server.app import Service
from penstock.server.authentication import Authenticator
from tests.environment import SOON
from tests.server.support import Server

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_AUTHOR_NAME": "Person",
    "GIT_AUTHOR_EMAIL": "person@example.org",
    "GIT_COMMITTER_NAME": "Person",
    "GIT_COMMITTER_EMAIL": "person@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(folder: Path, *words: str) -> str:
    """What a person does with git."""
    done = subprocess.run(
        ["git", "-C", str(folder), *words],  # noqa: S607 - the one that is installed
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(root: Path, path: str, content: str) -> None:
    """What a person does with an editor that writes in place."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def save_in_place(file: Path, text: str) -> None:
    """What simple editors do, and shells."""
    file.write_text(text)


def save_as_another(file: Path, text: str) -> None:
    """What editors do that never want to have half a file."""
    draft = file.with_name(f"{file.name}.tmp")
    draft.write_text(text)
    draft.replace(file)


def save_with_a_copy(file: Path, text: str) -> None:
    """What vim does."""
    copy = file.with_name(f"{file.name}~")
    file.rename(copy)
    file.write_text(text)
    copy.unlink()


Save = Callable[[Path, str], None]
SAVES: Sequence[Save] = (save_in_place, save_as_another, save_with_a_copy)
"""The ways in which people save a file."""


def protection_for(root: Path, *trusted: str) -> Protection:
    """What a server decides about git, for a notebook that has none."""
    return Protection(root.parent / f"{root.name}-private", frozenset(trusted))


def opened(root: Path, *trusted: str) -> Repository:
    """The repository that a folder is, or lies in, with these filters trusted."""
    location = Location.enclosing(root)
    assert location is not None
    return Repository.open(root, location, protection_for(root, *trusted))


def commit(root: Path, *paths: str, text: str | None = None) -> Commit | None:
    return Committer(opened(root), root, patience=0).commit(paths, text=text)


def committed(root: Path, *paths: str) -> Commit:
    made = commit(root, *paths)
    assert made is not None
    assert git(root, "rev-parse", "HEAD").strip() == made.id
    return made


class Changes:
    """Changed paths of a notebook, which are to be committed."""

    def __init__(self, tree: Tree, *trusted: str) -> None:
        self.committer = Committer(opened(tree.root, *trusted), tree.root, patience=0)
        self._tree = tree
        self._paths: set[str] = set()

    def add(self, *paths: str) -> None:
        self._paths |= set(paths)

    def commit(self, unfinished: Collection[str] = ()) -> Commit | None:
        made = commit_changes(
            self._tree, self.committer, sorted(self._paths), unfinished=unfinished
        )
        self._paths.clear()
        return made


def place(
    tree: Tree, staged: Staged, path: str, *, known: str | None = None, keep: bool = True
) -> Facts:
    """Put one content in place, durably."""
    with Placer(tree, keep=keep) as placer:
        facts = placer.place(staged, path, committed=known)
        placer.flush()
    return facts


def flushes(monkeypatch: pytest.MonkeyPatch, *, has_call: bool) -> list[int]:
    """What is flushed from now on, on a system that has a call for all, or has not."""
    flushed: list[int] = []

    def flush(handle: int) -> int:
        flushed.append(handle)
        return 0

    monkeypatch.setattr(files, "_syncfs", flush if has_call else None)
    monkeypatch.setattr(os, "fsync", flush)
    return flushed


def files_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Every file with its path in the notebook, in order; what git does beside it is left out."""
    for folder, inside, names in os.walk(root):
        # Git makes and removes folders of its own while this looks.
        inside[:] = sorted(name for name in inside if name not in {".git", ".penstock"})
        for name in sorted(names):
            yield str(Path(folder, name).relative_to(root)), Path(folder, name)


@contextmanager
def deep_in(folder: Path, depth: int, *, is_filled: bool = True) -> Iterator[None]:
    """Inside the block, folders `d` in each other, the last with a file: deeper than a path can be.

    They go at the end: Python cannot remove them with its own means.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = below
    if is_filled:
        os.close(os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    os.close(handle)
    try:
        yield
    finally:
        subprocess.run(["/bin/rm", "-rf", str(folder / "d")], check=True)


class Api:
    """Short ways to say what a client says; nobody works unless it is asked for."""

    def __init__(self, client: httpx.AsyncClient, app: Penstock, data: Path) -> None:
        self.client = client
        self.app = app
        self.root = data / "notebooks" / "garden"

    async def __call__(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **options: Any
    ) -> Any:
        given = options if body is None else {"json": body, **options}
        answer = await self.client.request(method, f"/api/v1{path}", **given)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def on(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """On the notebook; changes are accepted."""
        options.setdefault("status", 200 if method == "GET" else 202)
        return await self(method, f"/notebooks/garden{path}", body, **options)

    async def create(self, path: str, content: str = "", **fields: Any) -> Any:
        return await self.on("POST", "/files", {"path": path, "content": content, **fields})

    async def work(self) -> None:
        """Run all that can run now."""
        await Worker(self.app, queues=["notebooks"]).run(until_empty=True)

    async def commit(self, notebook: str = "garden") -> None:
        """Run all that can run now, and commit it."""
        await self.work()
        await self("POST", "/events/commit", {"notebook": notebook}, status=202)
        await self.work()

    async def event(self, accepted: Any) -> Any:
        return await self("GET", f"/events/{accepted['event_id']}")

    async def status(self, accepted: Any) -> str:
        return str((await self.event(accepted))["status"])

    async def paths(self) -> list[str]:
        return [file["path"] for file in (await self.on("GET", "/files"))["files"]]

    def disk(self) -> dict[str, str]:
        """Every file of the notebook, by its path."""
        return {path: file.read_text() for path, file in files_of(self.root)}

    async def check_agreement(self) -> None:
        """The disk has what is known, and nothing else."""
        known = {file["path"]: file["size"] for file in (await self.on("GET", "/files"))["files"]}
        assert known == {path: len(text.encode()) for path, text in self.disk().items()}


@asynccontextmanager
async def served(
    url: str,
    data: Path,
    *,
    git: bool = True,
    clock: Callable[[], int] = system_clock,
    **settings: Any,
) -> AsyncIterator[Api]:
    """A server with one notebook; jobs wait for `work`."""
    settings = {"watch": False, "commit_interval": 3_600, "retry_delay": 0, **settings}
    app = Penstock(url, clock=clock)
    application = install(app, Settings(**settings), data)
    service = Service(app, [application])
    gate = Authenticator(app, open_without_tokens=True)
    service.guard(gate)
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        application.working(),
        gate.running(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        api = Api(client, app, data)
        if not (await client.get("/api/v1/notebooks")).json()["notebooks"]:
            await api("POST", "/notebooks", {"name": "garden", "git": git}, status=201)
            await api.work()
        yield api


@asynccontextmanager
async def working(api: Api) -> AsyncIterator[None]:
    """Have jobs run, inside the block."""
    worker = Worker(api.app, queues=["notebooks"], concurrency=4)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


DEADLINE = SOON


class FileTable:
    """The known files, as the tables of a store hold them."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.files: dict[str, KnownFile] = {}
        self._last = 0

    def below(self, paths: Collection[str]) -> Iterable[KnownFile]:
        return [
            one
            for one in self.files.values()
            if any(not path or is_within(one.path, path) for path in paths)
        ]

    def with_hashes(self, hashes: Collection[str]) -> Iterable[KnownFile]:
        return [one for one in self.files.values() if one.hash in hashes]

    def apply(self, found: Iterable[Difference]) -> None:
        """Know what was found: those that go first, as they may make room for others."""
        told = list(found)
        for one in told:
            if one.file is not None and one.kind in {ChangeKind.DELETED, ChangeKind.MOVED}:
                del self.files[one.file.path]
        for one in told:
            if one.facts is not None:
                self.put(one.path, one.facts, one.file)

    def put(self, path: str, facts: Facts, file: KnownFile | None = None) -> None:
        self._last += 1
        number = self._last if file is None else file.id
        self.files[path] = KnownFile(number, path, *facts, at=time.time())

    def look(self, *paths: str, patient: bool = False) -> ScanResult:
        """What others have done, which is known then."""
        result = scan(self.tree, self, paths or ("",), patient=patient)
        self.apply(result.found)
        return result

    def told(self, *paths: str) -> list[tuple[str, str]]:
        return sorted((one.kind.value, one.path) for one in self.look(*paths).found)

    def hashes(self) -> dict[str, str]:
        return {path: one.hash for path, one in self.files.items()}

    def ids(self) -> dict[str, int]:
        return {path: one.id for path, one in self.files.items()}


class Watching:
    """A watcher at work, and what it has told."""

    def __init__(self, table: FileTable, *, is_slow: bool = False) -> None:
        self.table = table
        self.told: list[Difference] = []
        self.changed = asyncio.Event()
        self.is_slow = is_slow
        self.watcher = Watcher(table.tree, table, self._handle)

    async def _handle(self, found: list[Difference]) -> None:
        self.told += found
        if not self.is_slow:
            self.table.apply(found)
        self.changed.set()

    async def until(self, is_so: object) -> None:
        """Wait until something is the case; it is looked at whenever something was told."""
        assert callable(is_so)
        async with asyncio.timeout(DEADLINE):
            while not is_so():
                await self.changed.wait()
                self.changed.clear()

    async def until_known(self, path: str, content: str) -> None:

        digest = hashlib.sha256(content.encode()).hexdigest()
        await self.until(lambda: self.table.hashes().get(path) == digest)


@asynccontextmanager
async def watching(table: FileTable, *, is_slow: bool = False) -> AsyncIterator[Watching]:
    made = Watching(table, is_slow=is_slow)
    task = asyncio.create_task(made.watcher.run())
    try:
        async with asyncio.timeout(DEADLINE):
            while made.watcher.scans < 2:  # the second is when the system tells of changes
                assert not task.done()
                await asyncio.wait([task], timeout=0.02)
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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


SERVER_ENVIRONMENT = {
    "PENSTOCK_APPS": "notebooks",
    "PENSTOCK_NOTEBOOKS_LEASE": "1",
    "PENSTOCK_NOTEBOOKS_RETRY_DELAY": "0.1",
    "PENSTOCK_NOTEBOOKS_COMMIT_INTERVAL": "0.2",
    "PENSTOCK_NOTEBOOKS_MAX_RETRIES": "20",
}


class WorkingServer(Server):
    """A server that runs jobs."""

    workers = 4


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A running server that is gone afterwards, whatever happens."""
    server = WorkingServer(folder, **SERVER_ENVIRONMENT)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def wait_until_quiet(server: Server) -> dict[str, Any]:
    """Wait until nothing is left to do."""
    deadline = time.monotonic() + SOON
    while True:
        metrics: dict[str, Any] = httpx.get(
            f"{server.url}/api/v1/events/metrics", timeout=SOON
        ).json()
        if not metrics["pending"] + metrics["processing"] and not metrics["uncommitted"]:
            return metrics
        assert time.monotonic() < deadline, metrics
        time.sleep(0.05)
