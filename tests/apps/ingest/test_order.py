from penstock import State
from penstock.apps.ingest import checked, unified_queue
from penstock.apps.ingest.order import key_of
from tests.apps.ingest.support import Bench


def test_key_tells_apart_what_is_not_the_same_place() -> None:
    places = [
        ("a", "b", "c", "d"),
        ("a/b", "c", "d", ""),
        ("a", "b/c", "d", ""),
        ("a", "b", "c:d", ""),
    ]
    places += [("a%2Fb", "c", "d", ""), ("a", "b", "c", ":d")]
    assert len({key_of(*one) for one in places}) == len(places)


async def test_chains_and_swaps_of_renames_happen_in_their_order(either: Bench) -> None:
    a, b, c = (str(either.folder / name) for name in ("a.md", "b.md", "c.md"))
    either.write("a.md", "A")
    either.write("b.md", "B")
    # All at once, most urgent last: they still run in the order of enqueueing.
    for place, path in enumerate((a, b)):
        await either.add("file", "ingest", {"file_path": path}, priority=place)
    steps = ((a, c), (b, a), (c, b))  # a swap of a and b
    for priority, (old, new) in enumerate(steps, 2):
        await either.add("rename", "update", {"old_path": old, "new_path": new}, priority=priority)
    await either.add("rename", "update", {"old_path": b, "new_path": f"{c}/x"}, priority=9)
    await either.add("rename", "update", {"old_path": f"{c}/x", "new_path": "/z"}, priority=10)
    await either.work()
    assert either.chunks() == {a: "B", "/z": "A"}


async def test_item_without_dependencies_waits_when_it_runs(either: Bench) -> None:
    path = either.write("a.md", "A")
    first = await either.add("file", "ingest", {"file_path": path}, priority=0)
    given = {"old_path": path, "new_path": "/b"}
    item = checked(
        {
            "item_type": "rename",
            "op": "update",
            "tenant_id": "shop",
            "collection": "docs",
            "payload": given,
            "priority": 9,
        }
    )
    row = either.service._row(item, "from-elsewhere", ())  # without dependencies
    [added] = await either.app.transaction(lambda tx: unified_queue.add(tx, [row]))
    await either.work()
    assert either.chunks() == {"/b": "A"}
    assert (await either.app.get(first)).state is State.DONE
    [record] = await either.app.archive.records([added.job_id])
    assert any("affects the same place" in str(entry.reason) for entry in record.log)
