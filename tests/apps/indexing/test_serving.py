"""A real server with its processes, killed in the middle of jobs and restarted."""

import os
import random
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock, State, run_sync
from tests.apps.indexing.support import Embeddings, Indexed, Server, serving, write
from tests.environment import SOON


@pytest.fixture
def project(folder: Path) -> Path:
    return write(
        folder,
        {
            "docs/retry.md": "# Retry\n\nA failed job is tried again with a growing pause.",
            "docs/lease.md": "# Lease\n\nA worker holds a job for a while.",
            "code/pump.py": "def pump(water):\n    return water + 1\n",
            "many/0.md": "stone",
            **{f"many/{n}.md": f"pebble{n}" for n in range(1, 10)},
        },
    )


def documents(server: Server) -> int:
    return int(server.ask("GET", "/health/status")["total_documents"])


def eventually(server: Server, look: Any) -> Any:
    """Return the result of a call as soon as there is one."""
    deadline = time.monotonic() + SOON
    while not (found := look()):
        assert time.monotonic() < deadline, server.output.read_text()
        time.sleep(0.02)
    return found


def test_folder_is_indexed_searched_shown_and_removed(
    project: Path, embeddings: Embeddings
) -> None:
    with serving(project, embeddings) as server:
        docs = server.index("docs")
        code = server.index("code", include_code=True)
        assert server.finished(docs)["result"]["total_chunks"] == 2
        job = server.finished(code)
        assert (job["status"], job["progress"]["files_processed"]) == ("done", 1)
        assert job["progress"]["percent_complete"] == 100
        assert job["progress"]["chunks_created"] == job["result"]["chunks_created"] == 1

        for mode in ("vector", "semantic", "bm25", "hybrid"):
            (best, *_) = server.ask(
                "POST", "/query/", {"query": "pause of a failed job", "mode": mode}
            )["results"]
            assert Path(best["source"]).name == "retry.md"
            assert 0 < best["score"] <= 1
        assert (best["vector_score"] > 0, best["bm25_score"] > 0) == (True, True)
        assert best["text"].startswith("# Retry")
        assert (best["metadata"]["start_line"], best["language"]) == (1, "markdown")
        assert server.found("water job", source_types=["code"]) == ["pump.py"]
        assert server.found("water job", languages=["markdown"]) == ["lease.md", "retry.md"]
        assert server.found("water job", file_paths=["docs/l*.md", "*.py"]) == [
            "lease.md", "pump.py",
        ]  # fmt: skip
        assert server.found("water", mode="vector", similarity_threshold=0.99) == []
        (why,) = server.ask("POST", "/query/", {"query": "water", "mode": "bm25", "explain": True})[
            "results"
        ]
        assert why["explanation"]["matched_terms"] == ["water"]
        assert len(server.ask("POST", "/query/", {"query": "job", "top_k": 1})["results"]) == 1

        eventually(server, lambda: documents(server) == 3)
        folders = server.ask("GET", "/index/folders/")["folders"]
        assert [(Path(one["folder_path"]).name, one["chunk_count"]) for one in folders] == [
            ("code", 1), ("docs", 2),
        ]  # fmt: skip
        removed = server.ask("DELETE", "/index/folders/", {"folder_path": str(project / "docs")})
        assert removed["chunks_deleted"] == 2
        assert server.found("water job") == ["pump.py"]
        assert server.ask("DELETE", "/index/")["status"] == "completed"
        assert server.found("water job") == []
        assert server.ask("GET", "/index/folders/")["folders"] == []
        again = server.finished(server.index("docs"))
        assert again["result"]["files_indexed"] == 2
        assert server.stop() == 0


def test_jobs_survive_a_kill_in_mid_run_and_go_on_where_they_were(
    project: Path, embeddings: Embeddings
) -> None:
    """Of three jobs, the first is killed at its ninth file: all are done, in order and once."""
    embeddings.hold("pebble8")
    with serving(project, embeddings, AGENT_BRAIN_CHECKPOINT_INTERVAL="1") as server:
        jobs = [server.index("many"), server.index("docs"), server.index("code", include_code=True)]
        embeddings.wait_until_held()
        done = {text for text in embeddings.texts if "pebble" in text or "stone" in text}
        assert "pebble7" in done
        running = server.job(jobs[0])
        assert running["status"] == "running"
        assert running["progress"]["chunks_created"] >= len(done)
        assert [server.job(job)["status"] for job in jobs[1:]] == ["pending", "pending"]
        # It answers from memory, which follows the store.
        eventually(server, lambda: server.ask("GET", "/health/status")["indexing_in_progress"])
        server.kill()
        embeddings.release()
        server.start()
        ended = [server.finished(job) for job in jobs]
        assert [job["status"] for job in ended] == ["done"] * 3
        assert ended[0]["retry_count"] == 1
        assert ended[0]["result"]["files_indexed"] == 10
        assert ended[0]["finished_at"] <= ended[1]["started_at"]
        assert ended[1]["finished_at"] <= ended[2]["started_at"]
        assert {text: embeddings.texts.count(text) for text in done} == dict.fromkeys(done, 1)
        assert server.found("pebble3 stone", mode="bm25") == ["0.md", "3.md"]


def test_index_that_was_killed_at_random_equals_one_made_in_one_go(
    project: Path, embeddings: Embeddings
) -> None:
    write(project, {f"many/{n:02}.md": f"# Stone {n}\n\npebble{n:02}" for n in range(40)})
    held = sorted(random.sample(range(40), 3))
    data = project.parent / f"{project.name}-data" / "indexing"
    settings = {
        "AGENT_BRAIN_CHECKPOINT_INTERVAL": "1",
        # After another expiry a job waits in proportion to its lease, so it is short here. On a
        # busy machine it may expire while its worker is alive, which takes further attempts.
        "PENSTOCK_INDEXING_LEASE": "1",
        "AGENT_BRAIN_MAX_RETRIES": "100",
    }
    with serving(project, embeddings, **settings) as server:
        embeddings.hold(f"pebble{held[0]:02}")
        job = server.index("many", collection="torn")
        for n in (*held[1:], None):
            embeddings.wait_until_held()
            server.kill()
            embeddings.release()
            if n is not None:
                embeddings.hold(f"pebble{n:02}")
            server.start()
        torn = server.finished(job)
        whole = server.finished(server.index("many", collection="whole"))
        assert (torn["status"], whole["status"]) == ("done", "done")
        assert torn["retry_count"] >= 3
        counted = ("files_total", "files_indexed", "chunks_created", "total_chunks")
        assert [torn["result"][name] for name in counted] == [
            whole["result"][name] for name in counted
        ]
    assert Indexed(data / "torn").content() == Indexed(data / "whole").content(), held


def test_job_that_kills_its_server_each_time_fails_at_its_limit(
    project: Path, embeddings: Embeddings
) -> None:
    embeddings.hold("stone")
    with serving(project, embeddings, AGENT_BRAIN_MAX_RETRIES="1") as server:
        job = server.index("many")
        embeddings.wait_until_held()
        server.kill()
        embeddings.held.clear()
        server.start()
        embeddings.wait_until_held()
        server.kill()
        server.start()
        failed = server.finished(job)
        assert (failed["status"], failed["retry_count"]) == ("failed", 2)
        assert failed["error"] == "Max retries (1) exceeded after restart"


def test_cancel_of_a_running_job_is_kept_through_a_kill(
    project: Path, embeddings: Embeddings
) -> None:
    embeddings.hold("stone")
    with serving(project, embeddings) as server:
        job = server.index("many")
        embeddings.wait_until_held()
        server.kill()  # before the worker hears of it
        store = Penstock(f"sqlite:///{project.parent}/{project.name}-data/penstock.db")
        assert run_sync(store.cancel(1)).state is State.RUNNING
        run_sync(store.close())
        server.start()
        assert server.finished(job)["status"] == "cancelled"


def test_running_job_stops_when_it_is_cancelled_and_the_next_one_runs(
    project: Path, embeddings: Embeddings
) -> None:
    embeddings.hold("stone")
    with serving(project, embeddings) as server:
        job, later = server.index("many"), server.index("docs")
        embeddings.wait_until_held()
        answer = server.ask("DELETE", f"/index/jobs/{job}")
        assert answer["status"] == "cancellation_requested"
        cancelled = server.finished(job)
        assert (cancelled["status"], cancelled["error"]) == ("cancelled", "Cancelled by user")
        assert server.finished(later)["status"] == "done"


def test_timeout_kills_the_process_and_the_next_job_runs_then(
    project: Path, embeddings: Embeddings
) -> None:
    embeddings.hold("stone")
    with serving(project, embeddings, AGENT_BRAIN_JOB_TIMEOUT="0.5") as server:
        failed = server.finished(server.index("many"))
        assert (failed["status"], failed["retry_count"]) == ("failed", 1)
        assert failed["error"] == "Timeout after 0.5s"
    with serving(project, embeddings) as server:  # with time enough
        assert server.finished(server.index("docs"))["status"] == "done"


def test_jobs_that_come_to_nothing_fail_at_once(project: Path, embeddings: Embeddings) -> None:
    (project / "empty").mkdir()
    write(project, {"blank/a.md": " "})
    with serving(project, embeddings) as server:
        for folder, said in (("empty", "nothing to index"), ("blank", "contain no text")):
            job = server.finished(server.index(folder))
            assert (job["status"], job["retry_count"]) == ("failed", 1)
            assert said in job["error"]
            assert str(project) not in job["error"]


def test_folder_that_became_a_link_is_not_followed(
    project: Path, embeddings: Embeddings, tmp_path: Path
) -> None:
    write(tmp_path / "outside", {"secret.md": "secret"})
    embeddings.hold("stone")
    with serving(project, embeddings) as server:
        server.index("many")
        embeddings.wait_until_held()
        job = server.index("docs")  # waits behind the other
        (project / "docs").rename(project / "moved")
        (project / "docs").symlink_to(tmp_path / "outside")
        embeddings.release()
        failed = server.finished(job)
        assert (failed["status"], failed["retry_count"]) == ("failed", 1)
        assert "no longer exists" in failed["error"]


def test_collections_are_indexed_side_by_side(project: Path, embeddings: Embeddings) -> None:
    embeddings.hold("stone")
    with serving(project, embeddings) as server:
        held = server.index("many", collection="first")
        embeddings.wait_until_held()
        other = server.index("docs", collection="second")
        assert server.finished(other)["status"] == "done"
        assert server.job(held)["status"] == "running"
        server.ask("DELETE", "/index/?collection=first", status=409)
        server.ask("DELETE", "/index/?collection=second")
        embeddings.release()
        assert server.finished(held)["status"] == "done"
        assert server.found("stone", collection="first") != []
        assert server.found("stone") == []


def test_watched_folder_is_kept_indexed_also_after_a_kill(
    project: Path, embeddings: Embeddings
) -> None:
    with serving(project, embeddings, PENSTOCK_INDEXING_WATCH_DEBOUNCE="0.1") as server:
        server.finished(server.index("docs", watch_mode="auto"))

        def finds(word: str, *names: str) -> None:
            eventually(server, lambda: server.found(word, mode="bm25") == sorted(names))

        eventually(
            server, lambda: server.ask("GET", "/health/status")["file_watcher"]["watched_folders"]
        )
        # The job that looks for what changed before; then nothing is missed any more.
        eventually(server, lambda: server.ask("GET", "/index/jobs/")["completed"] == 2)
        write(project, {"docs/new.md": "a heron", "docs/deep/er.md": "a heron too"})
        finds("heron", "er.md", "new.md")
        (project / "docs" / "deep").rename(project / "docs" / "moved")
        finds("heron", "er.md", "new.md")
        (project / "docs" / "new.md").unlink()
        finds("heron", "er.md")
        auto = [job["source"] for job in server.ask("GET", "/index/jobs/")["jobs"]]
        assert set(auto) == {"auto", "manual"}
        server.kill()
        write(project, {"docs/later.md": "a bittern"})
        server.start()
        finds("bittern", "later.md")
        server.index("docs", watch_mode="off")
        eventually(
            server,
            lambda: server.ask("GET", "/index/folders/")["folders"][0]["watch_mode"] == "off",
        )


def test_clients_find_the_server_by_a_file(project: Path, embeddings: Embeddings) -> None:
    import json

    file = project / ".agent-brain" / "runtime.json"
    with serving(project, embeddings, PENSTOCK_INDEXING_RUNTIME_FILE="true") as server:
        found = json.loads(file.read_text())
        assert found["base_url"] == server.url
        assert "api_key" not in found
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert server.stop() == 0
        assert not file.exists()
        store = Penstock(f"sqlite:///{project.parent}/{project.name}-data/penstock.db")
        run_sync(store.tokens.create("mine", ["read"]))
        server.start()
        key = json.loads(file.read_text())["api_key"]
        assert server.client.get("/index/jobs/").status_code == 401
        known = {"Authorization": f"Bearer {key}"}
        assert server.client.get("/index/jobs/", headers=known).status_code == 200
        server.kill()
        server.start()  # what the killed one has left is replaced
        eventually(server, lambda: json.loads(file.read_text())["api_key"] != key)
        assert server.stop() == 0
        assert [token.name for token in run_sync(store.tokens.list())] == ["mine"]
        run_sync(store.close())
    assert not file.exists()
    assert os.listdir(file.parent) == []  # noqa: PTH208 - nothing half written either
