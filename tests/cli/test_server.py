"""Commands by the address of a server do what they do on its store."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from penstock import NewJob, Penstock, run_sync
from penstock.client.remote import RemotePenstock
from penstock.leases import Done, Failed
from tests.cli.support import COMMAND, Shell, run_one, started
from tests.client.support import Server, answering, free_port, serving

needs_jobs = pytest.mark.skipif(
    not (Path(__file__).parents[2] / "src/penstock/server/jobs.py").exists(),
    reason="the server has no routes for jobs yet",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def shells(server: Server) -> tuple[Shell, Shell]:
    """On the store, and by the address."""
    return Shell(server.store), Shell(server.url)


@needs_jobs
def test_looking_shows_the_same(shells: tuple[Shell, Shell]) -> None:
    near, far = shells
    first = far.json("enqueue", "resize", "n=3", "name=Ada", "--queue", "look", "--tag", "a")["job"]
    far("enqueue", "resize", "--queue", "look", "--delay", "3600")
    app = Penstock(near.url)
    run_one(app, Failed("no luck", permanent=True))
    run_sync(app.close())
    job_id = str(first["id"])
    for command in (
        ("jobs", "--queue", "look"),
        ("jobs", "--queue", "look", "--limit", "1"),
        ("jobs", job_id),
        ("explain", job_id),
        ("log", job_id),
    ):
        assert far.json(*command) == near.json(*command)
    assert far.json("status")["queues"] == near.json("status")["queues"]
    assert far("jobs", job_id).stdout.splitlines()[0] == near("jobs", job_id).stdout.splitlines()[0]
    assert "look" in far("status").stdout


@needs_jobs
def test_stats_show_the_same(shells: tuple[Shell, Shell]) -> None:
    near, far = shells
    app = Penstock(near.url)
    run_sync(app.enqueue_many([NewJob(task="t", payload="{}", queue="stats")] * 2))
    good, bad = run_sync(app.leases.claim(worker="w", queues=["stats"], limit=2))
    run_sync(app.leases.settle([(good, Done()), (bad, Failed("no luck", permanent=True))]))
    run_sync(app.close())
    wanted = ("stats", "--queue", "stats", "--since")
    for time in ("1h", "8d"):  # in one call, and in several
        (there,), (here,) = (shell.json(*wanted, time)["queues"] for shell in (far, near))
        assert there["counts"] == {"enqueued": 2, "claimed": 2, "done": 1, "failed": 1}
        assert (there["wait"], there["run"]) == (here["wait"], here["run"])
        assert there["run"]["count"] == 2
        assert sum(there["done_per_minute"]) == 1
    assert "done per minute" in far(*wanted, "1h").stdout
    assert "there is no queue 'none'" in far.error("stats", "--queue", "none", code=3)


@needs_jobs
def test_history_in_several_calls_counts_nothing_twice(shells: tuple[Shell, Shell]) -> None:
    far = shells[1]
    job = far.json("enqueue", "t", "--queue", "twice")["job"]
    at = datetime.fromisoformat(job["enqueued_at"])
    remote = RemotePenstock(far.url, blocking=True)
    for seconds in (0, 1, 30, 59):  # calls meet in the minute of the job, or beside it
        begin = at.replace(second=seconds) - timedelta(days=1)
        found = run_sync(remote.statistics.intervals(begin, at + timedelta(minutes=1), "twice"))
        assert [one.counts for one in found] == [{"enqueued": 1}]
    run_sync(remote.close())


@needs_jobs
def test_steering_does_the_same(shells: tuple[Shell, Shell]) -> None:
    near, far = shells
    ids = [str(far.json("enqueue", "t", "--queue", "steer")["job"]["id"]) for _ in range(3)]
    assert "cancelled" in far("cancel", ids[0], "--reason", "enough").stdout
    assert "pending" in far("retry", ids[0]).stdout
    assert far.json("prioritise", "9", "--queue", "steer", "--yes")["changed"] == 3
    assert far.json("cancel", "--queue", "steer", "--dry-run")["matched"] == 3
    assert far.json("cancel", "--queue", "steer", "--yes")["changed"] == 3
    assert far.json("delete", "--queue", "steer", "--yes")["changed"] == 3
    assert near.json("jobs", "--queue", "steer")["jobs"] == []


@needs_jobs
def test_queues_are_steered(shells: tuple[Shell, Shell]) -> None:
    near, far = shells
    far("enqueue", "t", "--queue", "q")
    assert far.json("pause", "q")["paused"]
    assert far.json("drain", "q", "--timeout", "1", code=6)["status"] == "paused"
    assert far.json("limit", "q", "7", "--rate", "5/1") == {
        **near.json("limit", "q", "7"),
        "rate": [5, 1.0],
    }
    assert not far.json("resume", "q")["paused"]
    assert "name it" in far.error("drain", code=2)
    assert "archive" in far.error("delete", "--queue", "q", "--archive", "x.jsonl", code=2)


@needs_jobs
def test_the_log_is_shown_and_followed(shells: tuple[Shell, Shell], tmp_path: Path) -> None:
    near, far = shells
    ids = [str(far.json("enqueue", "t", "--queue", "log")["job"]["id"]) for _ in range(3)]
    for command in (("log",), ("log", "--limit", "2"), ("log", ids[0])):
        assert far.json(*command) == near.json(*command)
    following = (*COMMAND, "log", ids[1], "--follow", "--store", far.url)
    with started(following, tmp_path) as process:
        process.wait_for("enqueued")
        far("cancel", ids[0])
        far("cancel", ids[1])
        assert "cancelled" in process.wait_for(f"  {ids[1]}  ")


@needs_jobs
def test_unknown_jobs_and_queues_are_not_found(shells: tuple[Shell, Shell]) -> None:
    near, far = shells
    for command in (("jobs", "999999"), ("explain", "999999"), ("resume", "nowhere")):
        said = far.error(*command, code=3).replace(far.url, near.url)
        assert said == near.error(*command, code=3)


@pytest.mark.parametrize(
    "command",
    [
        ("token", "list"),
        ("token", "revoke", "ci"),
        ("export", "x.jsonl"),
        ("prune", "--dry-run"),
        ("cron", "remove", "nightly"),
        ("limit-queues", "9"),
    ],
)
def test_commands_that_need_the_store_say_so(
    shells: tuple[Shell, Shell], command: list[str]
) -> None:
    said = shells[1].error(*command, code=2)
    assert "penstock: a server does not offer " in said
    assert f"use the store itself: penstock {command[0]}" in said


def test_watching_needs_a_terminal_here_too(shells: tuple[Shell, Shell]) -> None:
    assert "--watch needs a terminal" in shells[1].error("jobs", "--watch", code=2)


def test_a_server_that_is_not_there_is_said_to_be() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    said = Shell(url).error("status", code=5)
    assert f"the server at {url} cannot be reached" in said
    assert "another URL with --store" in said


def test_what_is_no_penstock_server_is_said_to_be() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nIt works!"
    with answering(page) as url:
        assert "as a Penstock server of this version does" in Shell(url).error("status", code=5)


@needs_jobs
def test_the_token_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Penstock(f"sqlite:///{tmp_path / 'jobs.db'}")
    reader = run_sync(app.tokens.create("reader", ["read"]))
    run_sync(app.close())
    with serving(tmp_path, reader) as server:
        shell = Shell(server.url)
        said = shell.error("status", code=4)
        assert "a token is required" in said
        assert "PENSTOCK_TOKEN" in said
        monkeypatch.setenv("PENSTOCK_TOKEN", "pst_wrong")
        assert "the token is unknown" in shell.error("status", code=4)
        monkeypatch.setenv("PENSTOCK_TOKEN", reader)
        assert shell.json("status")["queues"] == []
        assert "scope admin" in shell.error("pause", "q", code=4)
