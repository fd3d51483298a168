import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from penstock import State, Worker
from penstock.apps.ingest import Item, ItemType, Operation
from penstock.apps.ingest.items import CollectionName
from penstock.leases import Cancelled, Done
from penstock.vectors import Vectors
from tests.apps.ingest.support import Bench
from tests.environment import SOON


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
    assert "is outside the folders that may be read" in str(job.error)


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
    """Add an item that no request has checked."""
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


async def test_a_changed_file_that_arrives_while_it_runs_runs_again(either: Bench) -> None:
    path = either.write("a.md", "one")
    first = await either.add("file", "ingest", {"file_path": path})
    [running] = await either.app.leases.claim(worker="w", queues=["ingest"])
    assert await either.add("file", "ingest", {"file_path": path}) == first  # the same content
    either.write("a.md", "two")
    second = await either.add("file", "ingest", {"file_path": path})
    assert second != first
    assert (
        await either.app.leases.claim(worker="w", queues=["ingest"]) == []
    )  # it waits for the first
    await either.app.leases.settle([(running, Done())])
    await either.work()
    assert either.chunks() == {path: "two"}


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
    with table.parts.collections.using(CollectionName("shop", "docs", "main")) as collection:
        hits = collection.search("beside", k=1, mode="vector")
    assert hits[0].path == f"{new}/a.md"
    assert not set(old) & set(table.chunks())


async def test_deleting_a_tenant_removes_everything_older(either: Bench) -> None:
    others = await either.run("content", "ingest", {"content": "other"}, tenant_id="other")
    await either.run("content", "ingest", {"content": "old"}, branch="dev")
    waiting = [
        await either.add("content", "ingest", {"content": f"text {n}"}, priority=0)
        for n in range(20)
    ]
    running = await either.add("content", "ingest", {"content": "running"}, priority=10)
    [job] = await either.app.leases.claim(worker="elsewhere", queues=["ingest"])
    assert job.id == running
    delete = await either.add(
        "delete_tenant", "delete", {"tenant_id_to_delete": "shop"}, tenant_id="admin", priority=9
    )
    later = await either.add("content", "ingest", {"content": "later"}, priority=10)
    work = asyncio.create_task(either.work(concurrency=1))
    async with asyncio.timeout(SOON):
        while not await _has_waited(either, delete):
            assert (await either.app.get(delete)).state is not State.DONE
            await either.app.wait(0, 0.05)
        assert (await either.app.get(running)).cancel_requested
        await either.app.leases.settle([(job, Cancelled("asked to stop"))])
        await work
    states = [(await either.app.get(one)).state for one in waiting]
    assert states.count(State.CANCELLED) >= 18  # tenants alternate: one or two finished earlier
    done = await either.app.get(delete)
    assert done.returned["collections_removed"] >= 1
    assert done.returned["items_cancelled"] == states.count(State.CANCELLED) + 1
    assert (await either.app.get(later)).state is State.DONE
    assert list(either.chunks().values()) == ["later"]
    assert either.chunks(CollectionName("shop", "docs", "dev")) == {}
    assert list(either.chunks(CollectionName("other", "docs", "main")).values()) == ["other"]
    assert others.state is State.DONE


async def _has_waited(table: Bench, job_id: int) -> bool:
    [record] = await table.app.archive.records([job_id])
    return any("affects the same place" in str(entry.reason) for entry in record.log)


async def test_deleting_a_document_cancels_its_waiting_items(table: Bench) -> None:
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
        [record] = await table.app.archive.records([one])
        assert f"held: {missing} is not installed" in str(record.log[-1].reason)


async def test_rows_of_other_programs_are_run(table: Bench) -> None:
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
    assert "must be an absolute path" in str(found["relative"].error_message)
    assert found["broken"].retry_count == 1
    assert table.chunks() == {"/moved": "text"}
