"""A real server and its processes, killed in the middle of their work."""

import asyncio
import json
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.apps.entries import Entries, Settings, rows
from tests.apps.entries.support import Server, assert_index_equals_rows, experience, lives, serving
from tests.apps.indexing.support import Embeddings
from tests.contract.support import SHARED, STORES
from tests.environment import SOON
from tests.worker.support import eventually


async def nothing_to_forget(app: Penstock) -> bool:
    return not await app.tables.read(lambda tx: rows.failed(tx, 1))


def check(server: Server, embeddings: Embeddings) -> None:
    """What must be true when all is quiet."""

    async def compare() -> None:
        async with Penstock(server.store) as app:
            entries = Entries(
                app,
                server.folder / "data" / "entries",
                settings=Settings(embedder=embeddings.configuration),
            )
            try:
                await eventually(lambda: nothing_to_forget(app))
                await assert_index_equals_rows(entries)
            finally:
                entries.close()

    asyncio.run(compare())


@pytest.mark.parametrize("store", SHARED)
def test_process_that_is_killed_in_mid_batch_is_replaced_and_nothing_is_lost(
    store: str, tmp_path: Path, embeddings: Embeddings
) -> None:
    with serving(tmp_path, STORES[store](tmp_path), embeddings) as server:
        first = server.write("first")
        server.eventually(lambda: server.entry(first)["embedding_status"] == "embedded")
        embeddings.hold("slow")
        ids = [server.write(f"slow {n}") for n in range(25)]
        embeddings.wait_until_held()
        states = {server.entry(one)["embedding_status"] for one in ids}
        assert states <= {"pending", "processing"}
        assert "processing" in states
        before = server.eventually(lambda: len(found := server.pids()) == 2 and found)
        server.kill_processes(before)
        embeddings.release()
        edited = server.ask(
            "/api/v1/entries/update", {"entry_id": ids[0], "updates": {"title": "edited"}}
        )
        assert edited["embedding_status"] == "pending"
        server.ask("/api/v1/entries/delete", {"ids": ids[1:3]})
        server.eventually(lambda: server.is_embedded(24))
        server.eventually(lambda: len(server.pids() - before) == 2)
        drained = server.ask(f"/admin/queue/drain?timeout={SOON}")
        assert drained["status"] == "drained"
        check(server, embeddings)
        pids = server.pids()
        assert server.stop() == 0
        assert not any(lives(pid) for pid in pids)


@pytest.mark.parametrize("store", SHARED)
def test_killed_process_is_off_the_list_as_soon_as_another_takes_its_place(
    store: str, tmp_path: Path, embeddings: Embeddings
) -> None:
    with serving(tmp_path, STORES[store](tmp_path), embeddings, workers="1") as server:
        server.write("first")
        server.eventually(lambda: server.is_embedded(1))
        (killed,) = server.eventually(server.pids)
        embeddings.hold("slow")
        server.write("slow")  # it holds a lease when it is killed
        embeddings.wait_until_held()
        server.kill_processes([killed])
        embeddings.release()
        shown = server.eventually(lambda: (now := server.workers()) and killed not in now and now)
        assert all(one["running"] for one in shown.values())
        server.eventually(lambda: server.is_embedded(2))
        total = server.client.get("/admin/queue/status").json()["workers"]
        assert total["running"] == len(total["workers"]) == 1


def test_each_worker_says_how_many_jobs_it_has_ended(
    tmp_path: Path, embeddings: Embeddings
) -> None:
    embeddings.refusals["poison"] = "this text is poison"
    with serving(tmp_path, STORES["sqlite"](tmp_path), embeddings) as server:
        for title in ("a", "b", "c", "poison"):
            server.write(title)

        def counted() -> list[int]:
            shown = server.workers().values()
            names = ("jobs_processed", "jobs_succeeded", "jobs_failed")
            return [sum(one[name] for one in shown) for name in names]

        server.eventually(lambda: counted() == [4, 3, 1])
        health = server.client.get("/health").json()
        server.eventually(lambda: server.client.get("/health").json()["workers"]["running"] >= 2)
        assert health["status"] == "healthy"


@pytest.mark.parametrize("pending", [0, 2])
def test_server_says_at_the_start_how_many_embeddings_are_pending(
    pending: int, tmp_path: Path, embeddings: Embeddings
) -> None:
    store = STORES["sqlite"](tmp_path)

    async def write() -> None:
        async with Penstock(store) as app:
            settings = Settings(embedder=embeddings.configuration)
            entries = Entries(app, tmp_path / "data" / "entries", settings=settings)
            await entries.prepare()
            for n in range(pending):
                await entries.write("experience", "A", experience(f"n{n}"))

    asyncio.run(write())
    with serving(tmp_path, store, embeddings) as server:
        log = server.output.read_text()
    said = "Found 2 pending embeddings on startup (2 experiences, 0 manuals). Workers will process"
    assert said in log if pending else "pending embeddings" not in log


def test_every_line_of_a_log_in_json_is_an_object_also_of_the_pool(
    tmp_path: Path, embeddings: Embeddings
) -> None:
    embeddings.refusals["poison"] = "this text is poison"
    options = ("--log-format", "json")
    store = STORES["sqlite"](tmp_path)
    with serving(tmp_path, store, embeddings, *options, workers="1") as server:
        failed = server.write("poison")
        server.eventually(lambda: server.entry(failed)["embedding_status"] == "failed")
        server.eventually(lambda: "entries.embed" in server.output.read_text())  # by the pool
        (killed,) = server.eventually(server.pids)
        server.kill_processes([killed])
        server.eventually(lambda: server.pids() - {killed})
        assert server.stop() == 0
    lines = server.output.read_text().splitlines()
    said = [json.loads(line) for line in lines if not line.startswith("Penstock serves on")]
    assert any("entries.embed" in one["message"] for one in said)


@pytest.mark.parametrize("store", SHARED)
def test_server_that_is_killed_in_mid_batch_loses_nothing(
    store: str, tmp_path: Path, embeddings: Embeddings
) -> None:
    """Once its pool goes on without it for a while, once all die together."""
    with serving(tmp_path, STORES[store](tmp_path), embeddings) as server:
        written = 0
        for together in (False, True):
            embeddings.hold("slow")
            ids = [server.write(f"slow {together} {n}") for n in range(25)]
            written += len(ids)
            embeddings.wait_until_held()
            for one in (ids[0], ids[-1]):  # one in flight, one that may wait
                changes = {"entry_id": one, "updates": {"title": f"edited {one}"}}
                server.ask("/api/v1/entries/update", changes)
            pids = server.eventually(server.pids)
            server.kill()
            if together:
                server.kill_processes(pids)
            embeddings.release()
            server.start()
            server.eventually(lambda: server.is_embedded(written))  # noqa: B023 - asked at once
            assert server.ask(f"/admin/queue/drain?timeout={SOON}")["status"] == "drained"
            check(server, embeddings)
        server.eventually(lambda: not any(lives(pid) for pid in pids))


def test_row_that_kills_its_processes_fails_alone(tmp_path: Path, embeddings: Embeddings) -> None:
    """Whoever embeds its text is ended in the middle of it, whatever else is in the batch."""
    with serving(tmp_path, STORES["sqlite"](tmp_path), embeddings, workers="1") as server:
        ids = [server.write(f"before {n}") for n in range(3)]
        server.eventually(lambda: server.is_embedded(3))
        server.ask("/admin/queue/pause")
        embeddings.hold("killer")
        killer = ids[1]
        updates = {"entry_id": killer, "updates": {"title": "killer"}}
        server.ask("/api/v1/entries/update", updates)
        ids += [server.write(f"beside {n}") for n in range(9)]
        server.ask("/admin/queue/resume")
        for _ in range(4):  # once with the others, three times alone
            server.eventually(embeddings.held.is_set)
            embeddings.held.clear()
            server.kill_processes(server.eventually(server.pids))
        server.eventually(lambda: server.entry(killer)["embedding_status"] == "failed")
        server.eventually(lambda: server.is_embedded(len(ids) - 1))
        failed = server.entry(killer)
        assert failed["embedding_error"] == "3 processes died while embedding it alone"
        # A process may be killed once more after it has claimed the row and before it embeds it.
        assert failed["embedding_attempts"] >= 5
        after = server.write("after")  # the pool goes on
        server.eventually(lambda: server.entry(after)["embedding_status"] == "embedded")
        check(server, embeddings)


def test_writes_go_on_while_processes_are_killed_again_and_again(
    tmp_path: Path, embeddings: Embeddings
) -> None:
    """With several processes that serve: one of them has the pool."""
    store = STORES["sqlite"](tmp_path)
    with serving(tmp_path, store, embeddings, "--processes", "2") as server:
        ids = []
        for n in range(150):
            ids.append(server.write(f"n{n}"))
            if n in (40, 100):
                server.kill_processes(server.eventually(server.pids))
            if n % 10 == 5:
                changes = {"entry_id": ids[n // 2], "updates": {"title": f"changed {n}"}}
                server.ask("/api/v1/entries/update", changes)
        server.eventually(lambda: server.is_embedded(150))
        assert server.ask(f"/admin/queue/drain?timeout={SOON}")["status"] == "drained"
        check(server, embeddings)


def test_index_that_is_gone_is_made_again_when_the_server_starts(
    tmp_path: Path, embeddings: Embeddings
) -> None:
    import shutil

    with serving(tmp_path, STORES["sqlite"](tmp_path), embeddings) as server:
        for n in range(30):
            server.write(f"n{n}")
        server.eventually(lambda: server.is_embedded(30))
        assert server.stop() == 0
        shutil.rmtree(tmp_path / "data" / "entries")
        embeddings.texts.clear()
        server.start()
        server.eventually(lambda: len(embeddings.texts) >= 30 and server.is_embedded(30))
        assert server.ask(f"/admin/queue/drain?timeout={SOON}")["status"] == "drained"
        check(server, embeddings)


def test_rows_that_failed_are_tried_again_at_the_start_if_the_settings_say_so(
    tmp_path: Path, embeddings: Embeddings
) -> None:
    store = STORES["sqlite"](tmp_path)

    async def fail() -> None:
        async with Penstock(store) as app:
            settings = Settings(embedder=embeddings.configuration)
            entries = Entries(app, tmp_path / "data" / "entries", settings=settings)
            await entries.prepare()
            await entries.write("experience", "A", experience("x"))
            (job,) = await app.find()
            await app.cancel(job.id)
            assert (await entries.counts())["experience", "failed"] == 1

    asyncio.run(fail())
    with serving(tmp_path, store, embeddings, again="1") as server:
        server.eventually(lambda: server.is_embedded(1))
        check(server, embeddings)


def test_server_without_entries_starts_no_processes(tmp_path: Path, embeddings: Embeddings) -> None:
    with serving(tmp_path, STORES["sqlite"](tmp_path), embeddings) as server:
        status = server.client.get("/admin/queue/status").json()
        assert status["workers"]["workers"] == []
        assert not (tmp_path / "data" / "entries").exists()
        assert server.stop() == 0
