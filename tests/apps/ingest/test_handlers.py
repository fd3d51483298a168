import asyncio
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from penstock import Cancelled, Done, JobQuery, State, Worker
from penstock.apps.ingest import Item, ItemType, Operation, checked, relation
from penstock.apps.ingest.shelves import Place
from penstock.vectors.embedding import Vectors
from tests.apps.ingest.support import Bench


async def test_a_file_is_ingested_updated_and_deleted(either: Bench) -> None:
    path = either.write("a.md", "the first text")
    assert (await either.run("file", "ingest", {"file_path": path})).returned["changed"] is True
    assert either.chunks() == {path: "the first text"}
    either.embedder.texts.clear()
    assert (await either.run("file", "update", {"file_path": path})).returned["changed"] is False
    assert either.embedder.texts == []
    either.write("a.md", "the second text")
    await either.run("file", "update", {"file_path": path})
    assert either.chunks() == {path: "the second text"}
    await either.run("file", "delete", {"file_path": path})
    assert either.chunks() == {}


async def test_content_is_found_under_its_name_or_its_digest(table: Bench) -> None:
    note = {"content": "a note", "document_id": "note-1", "main_tag": "notes"}
    await table.run("content", "ingest", note)
    await table.run("content", "ingest", {"content": "another"})
    await table.run("content", "update", {**note, "content": "a newer note"})
    assert sorted(table.chunks().values()) == ["a newer note", "another"]
    await table.run("content", "delete", {"content": "another"})
    await table.run("content", "delete", {"document_id": "note-1"})
    assert table.chunks() == {}


@pytest.mark.parametrize("content", [b"\0binary", b"x" * 20_000_000])
async def test_what_cannot_be_ingested_fails_at_once(table: Bench, content: bytes) -> None:
    path = table.write("a.txt", content)
    job = await table.run("file", "ingest", {"file_path": path})
    assert (job.state, job.attempt) == (State.FAILED, 1)


async def test_missing_and_foreign_files_fail_at_once(table: Bench, tmp_path: Path) -> None:
    job = await table.run("file", "ingest", {"file_path": str(table.folder / "missing")})
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert "there is no file" in str(job.error)
    link = table.folder / "link"
    link.symlink_to("/etc")
    job_id = await _foreign(table, {"file_path": str(link / "passwd")})
    await table.work()
    job = await table.app.get(job_id)
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert "lies in none of the folders" in str(job.error)


async def test_error_of_an_item_is_one_sentence_and_the_traceback_stays_with_the_job(
    either: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(texts: Sequence[str]) -> Vectors:
        raise OSError(28, "No space left on device", "/srv/penstock/vectors.bin")

    monkeypatch.setattr(either.embedder, "embed", broken)
    shown = {}
    for name, path in (("full", either.write("a.md", "text")), ("gone", str(either.folder / "b"))):
        item = await either.add("file", "ingest", {"file_path": path}, max_retries=0)
        await either.work()
        job = await either.app.get(item)
        row = await either.service.get(job.args["queue_id"])
        shown[name] = row.error_message
        assert row.last_error_at is not None
        assert "Traceback (most recent call last)" in str(job.error)
    assert shown["full"] == "No space left on device: 'vectors.bin'"
    for text in shown.values():
        assert not any(word in str(text) for word in ("Traceback", "Error", "penstock", "/", "\n"))


async def _foreign(table: Bench, payload: dict[str, str]) -> int:
    """An item that no request has checked."""
    [added] = await table.service.add(
        [
            Item(
                item_type=ItemType.FILE,
                op=Operation.INGEST,
                tenant_id="shop",
                collection="docs",
                payload=payload,
            )
        ]
    )
    return added.job_id


async def test_a_file_that_changes_while_it_is_ingested_is_ingested_again(table: Bench) -> None:
    path = table.write("a.md", "before")
    embed = table.embedder.embed

    def changing(texts: Sequence[str]) -> Vectors:
        if texts == ["before"]:
            table.write("a.md", "after")
        return embed(texts)

    table.embedder.embed = changing  # type: ignore[method-assign] # replaced for the test
    job = await table.run("file", "ingest", {"file_path": path})
    assert job.state is State.DONE
    assert table.chunks() == {path: "after"}


async def test_a_changed_file_that_arrives_while_it_runs_runs_again(either: Bench) -> None:
    path = either.write("a.md", "one")
    first = await either.add("file", "ingest", {"file_path": path})
    [running] = await either.app.claim(worker="w", queues=["ingest"])
    assert await either.add("file", "ingest", {"file_path": path}) == first  # the same content
    either.write("a.md", "two")
    second = await either.add("file", "ingest", {"file_path": path})
    assert second != first
    assert await either.app.claim(worker="w", queues=["ingest"]) == []  # it waits for its turn
    await either.app.settle([(running, Done())])
    await either.work()
    assert either.chunks() == {path: "two"}


async def test_a_poison_file_fails_alone(table: Bench) -> None:
    embed = table.embedder.embed

    def picky(texts: Sequence[str]) -> Vectors:
        if any("poison" in text for text in texts):
            raise RuntimeError("not this one")
        return embed(texts)

    table.embedder.embed = picky  # type: ignore[method-assign] # replaced for the test
    paths = [table.write(f"{n}.md", "poison" if n == 3 else f"text {n}") for n in range(6)]
    jobs = [await table.add("file", "ingest", {"file_path": path}) for path in paths]
    await table.work()
    states = [(await table.app.get(job)).state for job in jobs]
    assert states == [State.FAILED if n == 3 else State.DONE for n in range(6)]
    assert (await table.app.get(jobs[3])).attempt == 4
    assert set(table.chunks()) == {path for n, path in enumerate(paths) if n != 3}


async def test_a_folder_becomes_items_with_patterns_depth_and_ignore_rules(table: Bench) -> None:
    for name in ("a.py", "b.rs", "c.txt", "sub/d.py", "sub/deep/e.py", "sub/skip/f.py", "out.py"):
        table.write(f"p/{name}", f"text of {name}")
    table.write("p/.gitignore", "out.py\n")
    table.write("p/g.py", b"\0\1")
    table.write(os.fsdecode(b"p/caf\xe9.py"), "x")
    job = await table.run(
        "folder",
        "ingest",
        {
            "folder_path": str(table.folder / "p"),
            "recursive_depth": 1,
            "patterns": ["*.py", "*.rs"],
            "ignore_patterns": ["skip/"],
        },
    )
    names = {str(Path(path).relative_to(table.folder / "p")) for path in table.chunks()}
    assert names == {"a.py", "b.rs", "sub/d.py"}
    assert job.returned["files"] == 3
    assert job.returned["passed_by"] == {"binary": 1, "name is not UTF-8": 1}
    assert await table.app.children(job.id) == {State.DONE: 3}


async def test_a_folder_takes_away_what_is_gone(either: Bench) -> None:
    kept, gone = either.write("p/a.md", "kept"), either.write("p/b.md", "gone")
    folder = {"folder_path": str(either.folder / "p")}
    await either.run("folder", "ingest", folder)
    assert set(either.chunks()) == {kept, gone}
    await asyncio.to_thread(Path(gone).unlink)
    assert (await either.run("folder", "scan", folder)).returned["files_removed"] == 1
    assert set(either.chunks()) == {kept}
    await either.run("folder", "delete", folder)
    assert either.chunks() == {}


async def test_a_scan_leaves_its_files_for_later(table: Bench) -> None:
    table.write("p/a.md", "text")
    job = await table.run("folder", "scan", {"folder_path": str(table.folder / "p")}, priority=7)
    [child] = await table.app.find(JobQuery(parent=job.id))
    assert child.priority == 0


async def test_a_project_tells_what_it_is(table: Bench) -> None:
    table.write("p/pyproject.toml", "[project]\n")
    table.write("p/.git/config", '[remote "origin"]\n\turl = https://me:secret@example.org/p.git\n')
    job = await table.run("project", "ingest", {"project_root": str(table.folder / "p")})
    assert job.returned["project_type"] == "python"
    assert job.returned["git_remote"] == "https://example.org/p.git"
    assert list(table.chunks()) == [str(table.folder / "p/pyproject.toml")]
    table.write("p/Cargo.toml", "[package]\n")
    job = await table.run("project", "scan", {"project_root": str(table.folder / "p")})
    assert job.returned["project_type"] == "mixed"


async def test_a_rename_keeps_vectors_and_changes_paths(table: Bench) -> None:
    old = [table.write(f"old/{name}.md", f"text of {name}") for name in ("a", "b")]
    beside = table.write("older.md", "beside")
    await table.run("folder", "ingest", {"folder_path": str(table.folder)})
    table.embedder.texts.clear()
    new = str(table.folder / "new")
    await table.run(
        "rename",
        "update",
        {"old_path": str(table.folder / "old"), "new_path": new, "is_folder": True},
    )
    assert set(table.chunks()) == {f"{new}/a.md", f"{new}/b.md", beside}
    await table.run("rename", "update", {"old_path": beside, "new_path": f"{new}/a.md"})
    assert table.chunks()[f"{new}/a.md"] == "beside"
    assert table.embedder.texts == []
    with table.parts.shelves.using(Place("shop", "docs", "main")) as collection:
        hits = collection.search("beside", k=1, mode="vector")
    assert hits[0].path == f"{new}/a.md"
    assert not set(old) & set(table.chunks())


async def test_chains_and_swaps_of_renames_happen_in_their_order(either: Bench) -> None:
    a, b, c = (str(either.folder / name) for name in ("a.md", "b.md", "c.md"))
    either.write("a.md", "A")
    either.write("b.md", "B")
    # All at once, most urgent last: the order is that of enqueueing all the same.
    for place, path in enumerate((a, b)):
        await either.add("file", "ingest", {"file_path": path}, priority=place)
    steps = ((a, c), (b, a), (c, b))  # a swap of a and b
    for priority, (old, new) in enumerate(steps, 2):
        await either.add("rename", "update", {"old_path": old, "new_path": new}, priority=priority)
    await either.add("rename", "update", {"old_path": b, "new_path": f"{c}/x"}, priority=9)
    await either.add("rename", "update", {"old_path": f"{c}/x", "new_path": "/z"}, priority=10)
    await either.work()
    assert either.chunks() == {a: "B", "/z": "A"}


async def test_what_was_not_ordered_at_its_insert_waits_when_it_runs(either: Bench) -> None:
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
    row = either.service._row(item, "from-elsewhere", ())  # without edges
    [added] = await either.app.transact(lambda tx: relation.add(tx, [row]))
    await either.work()
    assert either.chunks() == {"/b": "A"}
    assert (await either.app.get(first)).state is State.DONE
    [record] = await either.app.records([added.job_id])
    assert any("came first" in str(entry.reason) for entry in record.log)


async def test_deleting_a_tenant_leaves_nothing_of_what_came_before(either: Bench) -> None:
    others = await either.run("content", "ingest", {"content": "other"}, tenant_id="other")
    await either.run("content", "ingest", {"content": "old"}, branch="dev")
    waiting = [
        await either.add("content", "ingest", {"content": f"text {n}"}, priority=0)
        for n in range(20)
    ]
    running = await either.add("content", "ingest", {"content": "running"}, priority=10)
    [job] = await either.app.claim(worker="elsewhere", queues=["ingest"])
    assert job.id == running
    delete = await either.add(
        "delete_tenant", "delete", {"tenant_id_to_delete": "shop"}, tenant_id="admin", priority=9
    )
    later = await either.add("content", "ingest", {"content": "later"}, priority=10)
    work = asyncio.create_task(either.work(concurrency=1))
    async with asyncio.timeout(30):
        while not await _has_waited(either, delete):
            assert (await either.app.get(delete)).state is not State.DONE
            await either.app.wait(0, 0.05)
        assert (await either.app.get(running)).cancel_requested
        await either.app.settle([(job, Cancelled("asked to stop"))])
        await work
    states = [(await either.app.get(one)).state for one in waiting]
    assert states.count(State.CANCELLED) >= 18  # tenants take turns: one or two were quicker
    done = await either.app.get(delete)
    assert done.returned["collections_removed"] >= 1
    assert done.returned["items_cancelled"] == states.count(State.CANCELLED) + 1
    assert (await either.app.get(later)).state is State.DONE
    assert list(either.chunks().values()) == ["later"]
    assert either.chunks(Place("shop", "docs", "dev")) == {}
    assert list(either.chunks(Place("other", "docs", "main")).values()) == ["other"]
    assert others.state is State.DONE


async def _has_waited(table: Bench, job_id: int) -> bool:
    [record] = await table.app.records([job_id])
    return any("came first" in str(entry.reason) for entry in record.log)


async def test_deleting_a_document_takes_its_waiting_items_along(table: Bench) -> None:
    path = table.write("a.md", "text")
    await table.run("file", "ingest", {"file_path": path})
    await table.run("content", "ingest", {"content": "a", "document_id": "n"})
    table.write("a.md", "newer")
    waiting = await table.add("file", "ingest", {"file_path": path}, priority=0)
    delete = await table.add(
        "delete_document", "delete", {"document_id": path, "point_ids": ["n#0"]}, priority=9
    )
    await table.work(concurrency=1)
    job = await table.app.get(delete)
    assert job.returned["items_cancelled"] == 1
    assert (await table.app.get(waiting)).state is State.CANCELLED
    assert table.chunks() == {}


async def test_items_held_for_missing_tools_wait_for_them(table: Bench) -> None:
    path = table.write("a.md", "text")
    job = await table.add(
        "file", "ingest", {"file_path": path}, metadata={"missing_tools": ["no-such-tool"]}
    )
    tools = [
        {"TreeSitterParser": {"language": "zig"}},
        {"TreeSitterParser": {"language": "python"}},
    ]
    parser = await table.add(
        "file",
        "ingest",
        {"file_path": table.write("b.zig", "text")},
        metadata={"missing_tools": tools},
    )
    await Worker(table.app, queues=["ingest"]).run(until_empty=True)
    for one, missing in ((job, "no-such-tool"), (parser, "TreeSitterParser for zig")):
        assert (await table.app.get(one)).state is State.PENDING
        [record] = await table.app.records([one])
        assert f"held: {missing} is not installed" in str(record.log[-1].reason)


async def test_rows_of_other_programs_are_worked_on(table: Bench) -> None:
    await table.service.prepare()
    path = table.write("a.md", "text")
    rows = {
        "good": ("file", "ingest", json.dumps({"file_path": path, "their_own": 1})),
        "broken": ("file", "ingest", "{no json"),
        "relative": ("file", "ingest", json.dumps({"file_path": "a.md"})),
        "moved": ("rename", "update", json.dumps({"old_path": path, "new_path": "/moved"})),
    }
    with closing(sqlite3.connect(table.folder / "queue.db")) as db, db:
        db.executemany(
            "INSERT INTO unified_queue (queue_id, idempotency_key, item_type, op, payload_json, "
            "tenant_id, collection, priority, status, created_at, updated_at) "
            "VALUES (?, ?, ?, ?, ?, 'shop', 'docs', 5, 'pending', '2026-01-01 00:00:00', "
            "'2026-01-01 00:00:00')",
            [(name, name, *row) for name, row in rows.items()],
        )
    await table.work()
    found = {name: await table.service.get(name) for name in rows}
    assert {name: one.status for name, one in found.items()} == {
        "good": "done",
        "broken": "failed",
        "relative": "failed",
        "moved": "done",
    }
    assert "expected an absolute path" in str(found["relative"].error_message)
    assert found["broken"].retry_count == 1
    assert table.chunks() == {"/moved": "text"}
