from datetime import timedelta

from penstock.core.lifecycle import Snoozed
from tests.apps.notebooks.support import Api


async def test_batch_with_a_hostile_path_stores_nothing(one: Api) -> None:
    operations = [{"op": "create", "path": "a.md"}, {"op": "create", "path": "../b.md"}]
    await one.on("POST", "/batch", {"operations": operations}, status=422)
    await one.work()
    assert one.disk() == {}
    assert (await one("GET", "/events/metrics"))["pending"] == 0


async def test_pending_operations_are_superseded_by_the_pair_rules(api: Api) -> None:
    created = await api.create("a.md", "one", title="A")
    place = f"/files/{created['file_id']}"
    first = await api.on("PUT", place, {"content": "two"})
    second = await api.on("PUT", place, {"content": "three", "description": "last"})
    assert [await api.status(one) for one in (created, first, second)] == [
        *("superseded", "superseded", "pending")
    ]
    await api.work()
    file = await api.on("GET", place)
    assert (file["version"], file["title"], file["description"]) == (1, "A", "last")
    assert api.disk() == {"a.md": "three"}
    assert not list((api.root / ".penstock/staged").iterdir())


async def test_operation_that_has_begun_is_not_superseded(api: Api) -> None:
    created = await api.create("a.md", "one")
    (begun,) = await api.app.leases.claim(worker="first", queues=["notebooks"])
    updated = await api.on("PUT", f"/files/{created['file_id']}", {"content": "two"})
    assert await api.status(created) == "processing"
    assert (await api.event(updated))["type"] == "update"
    await api.app.leases.settle([(begun, Snoozed(timedelta(0)))])
    await api.work()
    assert await api.status(created) == "completed"
    assert api.disk() == {"a.md": "two"}


async def test_create_and_delete_come_to_nothing_and_delete_and_create_to_an_update(
    api: Api,
) -> None:
    created = await api.create("a.md", "one")
    await api.on("DELETE", f"/files/{created['file_id']}")
    await api.work()
    assert api.disk() == {}
    created = await api.create("b.md", "one", title="B")
    await api.work()
    deleted = await api.on("DELETE", f"/files/{created['file_id']}")
    again = await api.create("b.md", "two")
    assert again["file_id"] == created["file_id"]
    await api.work()
    assert [await api.status(one) for one in (deleted, again)] == ["superseded", "completed"]
    assert (await api.event(again))["type"] == "update"
    file = await api.on("GET", f"/files/{again['file_id']}")
    assert (file["title"], file["version"]) == (None, 2)


async def test_move_is_a_barrier(api: Api) -> None:
    created = await api.create("a.md", "one")
    place = f"/files/{created['file_id']}"
    moved = await api.on("PATCH", f"{place}/move", {"path": "b.md"})
    updated = await api.on("PUT", place, {"content": "two"})
    again = await api.create("a.md", "other")
    assert updated["path"] == "b.md"
    await api.work()
    for one in (created, moved, updated, again):
        assert await api.status(one) == "completed"
    assert api.disk() == {"a.md": "other", "b.md": "two"}


async def test_move_of_a_folder_is_a_barrier(api: Api) -> None:
    created = await api.create("old/a.md", "one")
    await api.on("PATCH", "/folders/old", {"path": "new"})
    await api.on("PUT", "/content?path=old/a.md", content="two")
    assert await api.status(created) == "pending"
    await api.work()
    assert api.disk() == {"new/a.md": "one", "old/a.md": "two"}


async def test_file_is_followed_through_moves_of_folders_that_wait(api: Api) -> None:
    created = await api.create("x/y/a.md", "one")
    await api.work()
    await api.on("PATCH", "/folders/x", {"path": "z"})
    await api.on("PATCH", "/folders/z/y", {"path": "w"})
    updated = await api.on("PUT", f"/files/{created['file_id']}", {"content": "two"})
    assert updated["path"] == "w/a.md"
    await api.work()
    assert api.disk() == {"w/a.md": "two"}


async def test_operation_by_path_is_on_the_file_that_is_there_then(api: Api) -> None:
    await api.create("a.md", "one")
    await api.work()
    for batch in (
        [{"op": "delete", "path": "a.md"}],
        [{"op": "create", "path": "a.md", "content": "two"}],
        [{"op": "update", "path": "a.md", "content": "three"}],
        [{"op": "move", "path": "a.md", "to": "b.md"}, {"op": "delete", "path": "b.md"}],
    ):
        accepted = await api.on("POST", "/batch", {"operations": batch})
    await api.work()
    place = f"/events/correlation/{accepted['correlation_id']}"
    assert (await api("GET", place))["completed"] == 2
    assert api.disk() == {}


async def test_file_is_followed_through_moves_of_its_own_batch(api: Api) -> None:
    operations = [
        {"op": "create", "path": "a.md", "content": "one"},
        {"op": "move", "path": "a.md", "to": "b.md"},
    ]
    batch = await api.on("POST", "/batch", {"operations": operations})
    number = batch["events"][0]["file_id"]
    updated = await api.on("PUT", f"/files/{number}", {"content": "two"})
    assert updated["path"] == "b.md"
    await api.work()
    assert api.disk() == {"b.md": "two"}
    assert (await api.on("GET", f"/files/{number}"))["version"] == 3


async def test_delete_takes_away_what_kept_a_create_from_succeeding(api: Api) -> None:
    first = await api.create("a.md", "one")
    await api.create("a.md", "two")  # it would fail
    await api.on("DELETE", f"/files/{first['file_id']}")
    await api.work()
    assert api.disk() == {}
    assert await api.paths() == []
