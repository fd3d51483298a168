"""Any interleaving of operations ends in the state that their sequence gives."""

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock import JobQuery, State
from penstock.apps.notebooks.disk.tree import Staged
from penstock.apps.notebooks.operations.operation import Operation, merged
from tests.apps.notebooks.support import (
    SINGLE,
    Api,
    Step,
    World,
    request_for,
    served,
    some_batch,
    some_step,
    working,
)
from tests.environment import SOON

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
ANYHOW = st.builds(
    Operation,
    notebook=st.just(1),
    kind=st.just("update"),
    path=st.just("a"),
    content=st.sampled_from(CONTENTS),
)
ASKED = ANYHOW | (WRITES | METADATA | DELETES).map(
    lambda one: replace(one, exists=one.kind != "create", file=1)
)

UNFINISHED = frozenset({State.PENDING, State.RUNNING})


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


UPDATE = Operation(notebook=1, kind="update", path="a", exists=True, file=1, content=CONTENTS[0])


@example([UPDATE, replace(UPDATE, exists=None, file=None)], None)
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


class Client:
    """Asks for changes, without caring whether they can succeed; knows what they come to."""

    def __init__(self, api: Api, chance: random.Random) -> None:
        self._api = api
        self._chance = chance
        self.world = World()
        self._ids: dict[str, int] = {}
        """Files that will be at their paths, however the operations before end."""

    async def change_files(self) -> None:
        """Changes of single files, by id where it is known: many of them can be merged."""
        files = (await self._api.on("GET", "/files"))["files"]
        self._ids = {one["path"]: one["id"] for one in files}
        for _ in range(25):
            step = some_step(self._chance, SINGLE)
            is_there = step.path in self.world.files
            answer = await self._change([step])
            if step.kind == "create" and not is_there:
                self._ids[step.path] = answer.json()["file_id"]
            elif step.kind == "write" and not is_there:
                self._ids.pop(step.path, None)  # it has an id that is not known yet

    async def change_anything(self) -> None:
        """Changes of all kinds, by path, and batches of them."""
        self._ids = {}
        for _ in range(25):
            is_single = self._chance.random() < 0.7
            await self._change([some_step(self._chance)] if is_single else some_batch(self._chance))

    async def _change(self, steps: list[Step]) -> httpx.Response:
        asked = request_for(steps, self._ids.get(steps[0].path))
        answer = await self._api.client.request(**asked)
        assert answer.status_code in (202, 404, 409, 422), answer.text
        self.world.follow_all(steps)
        await asyncio.sleep(0)
        return answer


@pytest.mark.parametrize(
    ("store", "seed"), [*(("sqlite", seed) for seed in range(4)), ("postgres", 4)]
)
async def test_operations_side_by_side_end_as_one_after_the_other(
    seed: int, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")
    async with served(url, tmp_path / "data", git=bool(seed % 2)) as api:
        client = Client(api, random.Random(seed))
        for change in (client.change_files, client.change_anything):
            for _ in range(2):
                await change()
                await api.work()
            async with working(api):  # others run meanwhile
                await change()
                await _drained(api)
            assert api.disk() == client.world.files
            assert sorted(await api.paths()) == sorted(client.world.files)
            await api.check_agreement()


async def _drained(api: Api) -> None:
    async with asyncio.timeout(SOON):
        seen = 0
        while True:
            jobs = await api.app.find(JobQuery(states=UNFINISHED, limit=1000))
            if all(job.task == "notebooks.commit" for job in jobs):  # which waits for an hour
                return
            seen = await api.app.wait(seen, 1)
