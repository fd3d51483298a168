"""Any interleaving of operations ends in the state that their sequence gives."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.apps.notebooks.files import Staged
from penstock.apps.notebooks.operations import Operation, merged
from penstock.apps.notebooks.paths import is_within, parents
from tests.apps.notebooks.serving import Api, served, working

CONTENTS = [Staged(str(n), 1, str(n)) for n in range(3)]
FIELDS = st.dictionaries(st.sampled_from(["title", "description"]), st.sampled_from("xyz"))
WRITES = st.builds(
    Operation,
    notebook=st.just(1),
    kind=st.sampled_from(["create", "update"]),
    path=st.just("a"),
    content=st.sampled_from(CONTENTS),
    fields=FIELDS,
)
METADATA = st.builds(
    Operation, notebook=st.just(1), kind=st.just("update"), path=st.just("a"), fields=FIELDS
)
DELETES = st.just(Operation(notebook=1, kind="delete", path="a", exists=True))
ASKED = (WRITES | METADATA | DELETES).map(
    lambda one: replace(one, exists=one.kind != "create", file=1)
)


def applied(one: Operation, before: dict[str, Any] | None) -> dict[str, Any] | None:
    """What an operation makes of a file, or leaves it at where it fails."""
    is_there = before is not None
    if one.exists is not None and one.exists != is_there:
        return before
    if one.kind == "delete":
        return None
    if before is None:
        if one.content is None:
            return None
        return {"content": one.content.hash, **one.initial, **one.fields}
    after = {"content": before["content"]} if one.reset else dict(before)
    if one.content is not None:
        after["content"] = one.content.hash
    return {**after, **one.fields}


@given(st.lists(ASKED, max_size=6), st.none() | st.just({"content": "old", "title": "old"}))
def test_merged_operations_do_what_those_do_one_after_the_other(
    asked: list[Operation], before: dict[str, Any] | None
) -> None:
    expected = before
    waiting: list[Operation] = []
    for one in asked:
        expected = applied(one, expected)
        together = merged(waiting[-1], one) if waiting else None
        if together is not None:
            waiting[-1] = together
        else:
            waiting.append(one)
    found = before
    for one in waiting:
        found = applied(one, found)
    assert found == expected


@pytest.mark.parametrize(
    ("kinds", "left"),
    [
        ("create update", ["create"]),
        ("update update", ["update"]),
        ("create delete", ["delete"]),
        ("delete create", ["update"]),
        ("update delete", ["update", "delete"]),
        ("create update delete", ["delete"]),
        ("delete create update", ["update"]),
    ],
)
def test_pair_rules(kinds: str, left: list[str]) -> None:
    waiting: list[Operation] = []
    for kind in kinds.split():
        new = Operation(
            notebook=1,
            kind=kind,  # type: ignore[arg-type] # one of them
            path="a",
            exists=kind != "create",
            content=None if kind == "delete" else CONTENTS[0],
        )
        together = merged(waiting[-1], new) if waiting else None
        waiting = [*waiting[:-1], together] if together else [*waiting, new]
    assert [one.kind for one in waiting] == left


@pytest.mark.parametrize("change", [{"version": 1}, {"member": 0}, {"folder": True}])
def test_those_that_depend_on_others_are_not_merged(change: dict[str, Any]) -> None:
    one = Operation(notebook=1, kind="update", path="a", content=CONTENTS[0])
    assert merged(one, one) is not None
    assert merged(replace(one, **change), one) is None
    assert merged(one, replace(one, **change)) is None


# Through the queue

PATHS = ["a", "b", "d/a", "d/b", "d/e/a"]
FOLDERS = ["d", "d/e", "f"]


def next_request(chance: random.Random) -> tuple[str, str, dict[str, Any]]:
    """Something that a client may ask for, by path."""
    kind = chance.choice(["create", "write", "write", "delete", "move", "move folder"])
    path = chance.choice(PATHS)
    if kind == "move":
        return kind, path, {"to": chance.choice(PATHS)}
    if kind == "move folder":
        return kind, chance.choice(FOLDERS), {"to": chance.choice(FOLDERS)}
    return kind, path, {"content": str(chance.randrange(1_000))}


class World:
    """Files and folders where everything happens at once."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.folders: set[str] = set()

    def follow(self, kind: str, path: str, asked: dict[str, Any]) -> None:
        """Do what a request asks for, if it can be done."""
        match kind:
            case "create" | "write":
                if (kind == "write" and path in self.files) or self._is_free(path):
                    self._put(path, asked["content"])
            case "delete":
                self.files.pop(path, None)
            case "move":
                if path in self.files and self._is_free(asked["to"]):
                    self._put(asked["to"], self.files.pop(path))
            case _:
                self._move_folder(path, asked["to"])

    def _is_free(self, path: str) -> bool:
        is_taken = path in self.files or path in self.folders
        return not is_taken and not set(parents(path)) & self.files.keys()

    def _put(self, path: str, content: str) -> None:
        self.files[path] = content
        self.folders.update(parents(path))

    def _move_folder(self, path: str, to: str) -> None:
        if path not in self.folders or not self._is_free(to) or is_within(to, path):
            return
        self.folders.update(parents(to))
        for one in [one for one in self.folders if is_within(one, path)]:
            self.folders.remove(one)
            self.folders.add(to + one[len(path) :])
        for one in [one for one in self.files if is_within(one, path)]:
            self.files[to + one[len(path) :]] = self.files.pop(one)


async def ask(api: Api, kind: str, path: str, asked: dict[str, Any]) -> None:
    """Send a request as one operation, without caring whether it can succeed."""
    place = "/api/v1/notebooks/garden"
    match kind:
        case "create":
            body = {"path": path, "content": asked["content"]}
            answer = await api.client.post(f"{place}/files", json=body)
        case "write":
            answer = await api.client.put(f"{place}/content?path={path}", content=asked["content"])
        case "move folder":
            answer = await api.client.patch(f"{place}/folders/{path}", json={"path": asked["to"]})
        case _:
            one = {"op": kind, "path": path, **({"to": asked["to"]} if kind == "move" else {})}
            answer = await api.client.post(f"{place}/batch", json={"operations": [one]})
    assert answer.status_code in (202, 409, 422), answer.text


@pytest.mark.parametrize(
    ("store", "seed"), [*(("sqlite", seed) for seed in range(6)), ("postgres", 6)]
)
async def test_operations_side_by_side_end_as_one_after_the_other(
    seed: int, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(seed)
    url = f"sqlite:///{tmp_path}/jobs.db"
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")
    world = World()
    async with served(url, tmp_path / "data", git=False) as api:
        for portion in range(4):
            if portion % 2:  # half of them while others run
                async with working(api):
                    await _ask_some(api, chance, world)
                    await _drained(api)
            else:
                await _ask_some(api, chance, world)
                await api.work()
        assert api.disk() == world.files
        assert sorted(await api.paths()) == sorted(world.files)
        await api.check_agreement()


async def _ask_some(api: Api, chance: random.Random, world: World) -> None:
    for _ in range(25):
        request = next_request(chance)
        await ask(api, *request)
        world.follow(*request)
        await asyncio.sleep(0)


async def _drained(api: Api) -> None:
    async with asyncio.timeout(30):
        seen = 0
        while True:
            metrics = await api("GET", "/events/metrics")
            if not metrics["pending"] + metrics["processing"]:
                return
            seen = await api.app.wait(seen, 1)
