"""Pruning, archives, exports and imports."""

import gzip
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock import (
    ConfigurationError,
    InvalidJob,
    Job,
    JobQuery,
    NewJob,
    Penstock,
    Retention,
    State,
    run_sync,
)
from penstock.core.job import JobId
from penstock.engine import bulk
from penstock.engine.archive_file import ArchiveFile, Header
from penstock.engine.bulk import Bulk, Portion, Trail
from penstock.jobs import Event, Waiting
from penstock.leases import Done, Failed, Snoozed
from penstock.queues import Queue
from tests.contract.support import HOUR, SECOND, STEADY, ManualClock, ids, new
from tests.engine.support import (
    FAILED,
    NOTHING,
    PENDING,
    Rival,
    add_one,
    enqueue,
    fail,
    finish,
    states,
)

pytestmark = pytest.mark.usefixtures("small_portions")


# Retention, with an archive


def lines(path: Path) -> list[Any]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in text.splitlines()]


def archived(path: Path) -> list[int]:
    return [line["job"]["id"] for line in lines(path) if line["line"] == "job"]


@pytest.mark.parametrize("name", ["old.jsonl", "old.jsonl.gz"])
async def test_what_prune_removes_is_in_the_archive(
    app: Penstock, clock: ManualClock, tmp_path: Path, name: str
) -> None:
    await enqueue(app, 6)
    await finish(app, 3)
    await fail(app)
    clock.advance(25 * HOUR)
    path = tmp_path / name
    assert await app.archive.prune(dry_run=True, archive=path) == Bulk(matched=3)
    assert not path.exists()
    assert await app.archive.prune(archive=path) == Bulk(matched=3, changed=3)
    assert archived(path) == [1, 2, 3]
    events = [entry["event"] for entry in lines(path)[1]["log"]]
    assert events == ["enqueued", "claimed", "done"]
    assert await states(app) == [State.FAILED, State.PENDING, State.PENDING]
    clock.advance(200 * HOUR)
    await app.archive.prune(archive=path)
    assert archived(path) == [1, 2, 3, 4]


async def test_prune_of_some_states(app: Penstock, clock: ManualClock) -> None:
    await enqueue(app, 3)
    await fail(app)
    await finish(app)
    clock.advance(SECOND)
    assert await app.archive.prune(NOTHING, states=FAILED) == Bulk(matched=1, changed=1)
    with pytest.raises(ConfigurationError, match="finished"):
        await app.archive.prune(NOTHING, states=PENDING)
    assert (await app.archive.prune(Retention(finished=timedelta.max))).matched == 0
    assert await states(app) == [State.DONE, State.PENDING]


@pytest.mark.parametrize(
    ("name", "cut"), [(name, cut) for name in ("old.jsonl", "old.jsonl.gz") for cut in (1, 20)]
)
async def test_torn_end_of_an_archive_is_cut_off_before_it_is_continued(
    app: Penstock, clock: ManualClock, tmp_path: Path, name: str, cut: int
) -> None:
    path, other = tmp_path / name, Penstock("memory://", clock=clock)
    await enqueue(app, 4)
    await finish(app, 2)
    clock.advance(SECOND)
    await app.archive.prune(NOTHING, archive=path)
    whole = path.read_bytes()
    await finish(app, 2)
    clock.advance(SECOND)
    records = await app.store.records([JobId(3), JobId(4)])
    await app.archive.prune(NOTHING, archive=path)
    path.write_bytes(path.read_bytes()[:-cut])  # killed while it wrote: nothing was removed
    assert len(path.read_bytes()) > len(whole)
    origin = await app.store.origin()
    assert (await other.archive.import_(path)).changed in (2, 3, 4)
    header = Header(kind="archive", source=origin.source, at=clock.now)
    continued = ArchiveFile(path, header)
    continued.write(records)
    continued.close()
    assert sorted(set(archived(path))) == [1, 2, 3, 4]
    assert (await other.archive.import_(path)).matched == 4
    assert await other.bulk(JobQuery()).count() == 4


async def test_prune_does_not_write_into_a_file_that_is_no_archive(
    app: Penstock, clock: ManualClock, tmp_path: Path
) -> None:
    await enqueue(app)
    await finish(app)
    clock.advance(SECOND)
    for data in (b"precious", b'{"precious": 1}\n', gzip.compress(b"precious\n"), b""):
        (tmp_path / "mine").write_bytes(data)
        with pytest.raises(ConfigurationError, match="name another file"):
            await app.archive.prune(NOTHING, archive=tmp_path / "mine")
        assert (tmp_path / "mine").read_bytes() == data
    with pytest.raises(ConfigurationError, match="cannot be used"):
        await app.archive.prune(NOTHING, archive=tmp_path / "missing" / "a.jsonl")
    assert await states(app) == [State.DONE]


async def test_nothing_is_removed_that_could_not_be_written(
    app: Penstock, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue(app, 5)
    await finish(app, 5)
    clock.advance(SECOND)
    synced = os.fsync
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(28, "No space left on device")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigurationError, match="No space left"):
        await app.archive.prune(NOTHING, archive=tmp_path / "a.jsonl")
    monkeypatch.undo()
    monkeypatch.setattr(bulk, "PORTION", 2)
    left = ids(await app.find())
    assert set(left) | set(archived(tmp_path / "a.jsonl")) >= {1, 2, 3, 4, 5}
    await app.archive.prune(NOTHING, archive=tmp_path / "a.jsonl")
    assert set(archived(tmp_path / "a.jsonl")) == {1, 2, 3, 4, 5}


KILLED = """
import os, sys
from datetime import timedelta
from penstock import Penstock, Retention, run_sync
from penstock.engine import archive, bulk
archive.PORTION = bulk.PORTION = 2
url, file, when, verb, fatal = *sys.argv[1:5], int(sys.argv[5])
app = Penstock(url)
write, calls = getattr(app.store, verb), 0

async def dying(*args, **kwargs):
    global calls
    calls += 1
    if calls == fatal and when == "before":
        os.kill(os.getpid(), 9)
    answer = await write(*args, **kwargs)
    if calls == fatal:
        os.kill(os.getpid(), 9)
    return answer

setattr(app.store, verb, dying)
nothing = Retention(finished=timedelta(0), failed=timedelta(0))
run_sync(app.archive.prune(nothing, archive=file))
"""


@pytest.mark.parametrize(
    ("death", "remaining"),
    [
        (("before", "delete", 1), 5),
        (("after", "delete", 1), 3),
        (("before", "delete", 2), 3),
        (("after", "records", 2), 3),
    ],
)
def test_prune_that_is_killed_loses_nothing(
    tmp_path: Path, death: tuple[str, str, int], remaining: int
) -> None:
    url, archive = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "old.jsonl.gz"
    app = Penstock(url)
    run_sync(app.enqueue_many([new()] * 5))
    run_sync(
        app.leases.settle(
            [(job, Done()) for job in run_sync(app.leases.claim(worker="w", limit=5))]
        )
    )
    arguments = [url, str(archive), *map(str, death)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, timeout=60)
    assert killed.returncode == -9
    left = ids(run_sync(app.find()))
    assert set(left) | set(archived(archive)) == {1, 2, 3, 4, 5}
    assert len(left) == remaining
    run_sync(app.archive.prune(NOTHING, archive=archive))
    assert run_sync(app.find()) == []
    assert set(archived(archive)) == {1, 2, 3, 4, 5}
    run_sync(app.close())
    other = Penstock("memory://")
    assert run_sync(other.archive.import_(archive)) == Bulk(matched=5, changed=5)


# Export and import


async def fill(app: Penstock) -> None:
    """A job in every state, and what they wait for."""
    await enqueue(app, 2, queue="mail", tags=("x",), dedupe=None)
    await app.leases.claim(worker="w", limit=1, queues=["mail"])
    await enqueue(app, 3, queue="work", retry=STEADY)
    done, failed, snoozed = await app.leases.claim(worker="w", limit=3, queues=["work"])
    await app.leases.settle([(done, Done("[1]"))])
    await app.leases.settle([(failed, Failed("no"))])
    await app.leases.settle([(snoozed, Snoozed(HOUR))])
    await enqueue(app, 2, key="k", priority=7)
    await enqueue(app, 1, dedupe="d", delay=HOUR)
    (last,) = await enqueue(app)
    await app.cancel(last.id)
    await app.queues.pause("mail")
    await app.limits.queue("work", 5)


def alike(job: Job) -> Job:
    return replace(job, version=0, token=0)


@pytest.mark.every_store
@pytest.mark.parametrize("name", ["jobs.jsonl", "jobs.jsonl.gz"])
async def test_jobs_travel_from_store_to_store(
    app: Penstock, other: Penstock, tmp_path: Path, name: str
) -> None:
    await fill(app)
    seen: list[Bulk] = []
    assert await app.archive.export(tmp_path / name, progress=seen.append) == Bulk(
        matched=9, changed=9
    )
    assert [bulk.changed for bulk in seen] == [2, 4, 6, 8, 9]
    assert await other.archive.import_(tmp_path / name, dry_run=True) == Bulk(matched=9)
    assert await other.find() == []
    assert await other.archive.import_(tmp_path / name) == Bulk(matched=9, changed=9)
    running, *exported = await app.find(JobQuery(newest_first=False))
    revived, *imported = await other.find(JobQuery(newest_first=False))
    assert [alike(job) for job in imported] == [alike(job) for job in exported]
    assert running.state is State.RUNNING
    assert (revived.state, revived.waiting, revived.attempt) == (
        State.PENDING,
        Waiting.READY,
        0,
    )
    assert await other.queues.list() == await app.queues.list()
    assert Queue(name="mail", paused=True) in await other.queues.list()
    assert [entry.event for entry in await other.log(1)] == [
        Event.ENQUEUED,
        Event.CLAIMED,
        Event.RESTORED,
    ]


@pytest.mark.parametrize("name", ["jobs.jsonl", "jobs.jsonl.gz"])
async def test_chains_and_fans_travel_from_store_to_store(
    app: Penstock, other: Penstock, tmp_path: Path, name: str
) -> None:
    """In several portions; the first job runs when they are written."""
    jobs = [new(), new(follows=(0,)), new(follows=(1,)), new(follows=(0,)), new(follows=(2, 3))]
    await app.enqueue_many(jobs)
    await app.leases.claim(worker="w")
    await app.archive.export(tmp_path / name)
    await enqueue(other, 3, delay=HOUR)
    assert (await other.archive.import_(tmp_path / name)).changed == 5
    order = []
    while taken := await other.leases.claim(worker="w", limit=9):
        order.append([place - 3 for place in ids(taken)])
        await other.leases.settle([(job, Done()) for job in taken])
    assert order == [[1], [2, 4], [3], [5]]


async def test_job_that_waits_for_a_later_one_waits_for_it_in_another_store(
    app: Penstock, other: Penstock, tmp_path: Path
) -> None:
    """However far apart they stand in the file."""
    app.task("save", lambda: None, key="k", supersede=True)
    first = await app.enqueue("save")
    waiting, second = await app.enqueue_many([new(after=(first.id,)), new()])
    await enqueue(app, 5)
    newer = await app.enqueue("save", after=(second.id,))
    await app.archive.export(tmp_path / "jobs")
    assert (await other.archive.import_(tmp_path / "jobs")).changed == 9
    assert (await other.explain(waiting.id)).blocked_by == newer.id
    order = []
    while taken := await other.leases.claim(worker="w", limit=9):
        order.append(ids(taken))
        await other.leases.settle([(job, Done()) for job in taken])
    assert order == [[3, 4, 5, 6, 7, 8], [newer.id], [waiting.id]]


async def test_file_with_a_job_that_waits_for_itself_is_refused(
    app: Penstock, other: Penstock, tmp_path: Path
) -> None:
    await app.enqueue_many([new(), new(follows=(0,)), new(follows=(1,))])
    await app.archive.export(tmp_path / "jobs")
    text = (tmp_path / "jobs").read_text().replace('"needed":1', '"needed":3')
    (tmp_path / "jobs").write_text(text)
    with pytest.raises(InvalidJob, match=r"job [23] waits for itself"):
        await other.archive.import_(tmp_path / "jobs")
    assert await states(other) == []


async def test_file_of_the_first_format_is_read(
    app: Penstock, other: Penstock, tmp_path: Path
) -> None:
    """Its jobs say nothing about what they wait for."""
    await enqueue(app, 3)
    await app.archive.export(tmp_path / "jobs")
    text = (tmp_path / "jobs").read_text()
    assert text.count('"format":2') == 1
    first = text.replace('"format":2', '"format":1').replace(',"edges":[]', "")
    assert "edges" not in first
    (tmp_path / "jobs").write_text(first)
    assert (await other.archive.import_(tmp_path / "jobs")).changed == 3


async def test_second_import_changes_nothing(
    app: Penstock, other: Penstock, tmp_path: Path
) -> None:
    await fill(app)
    await enqueue(other, 3)
    await app.archive.export(tmp_path / "jobs.jsonl")
    assert (await other.archive.import_(tmp_path / "jobs.jsonl")).changed == 9
    before = await other.find(), await other.log(limit=10_000)
    assert await other.archive.import_(tmp_path / "jobs.jsonl") == Bulk(matched=9, skipped=9)
    assert (await other.find(), await other.log(limit=10_000)) == before


async def test_pending_jobs_are_claimed_in_the_order_they_had(
    app: Penstock, other: Penstock, clock: ManualClock, tmp_path: Path
) -> None:
    for priority in (5, 1, 9, 5):
        await enqueue(app, priority=priority)
        clock.advance(SECOND)
    await enqueue(other, 2)
    await app.archive.export(tmp_path / "jobs.jsonl")
    expected = [(await app.leases.claim(worker="w"))[0].payload for _ in range(4)]
    await other.archive.import_(tmp_path / "jobs.jsonl")
    await other.bulk(JobQuery(before=clock.now - timedelta(seconds=9))).cancel()
    claimed = await other.leases.claim(worker="w", limit=9)
    assert [job.priority for job in claimed] == [9, 5, 5, 5, 5, 1]
    assert len(expected) == 4


async def test_tokens_grow_from_store_to_store(
    app: Penstock, other: Penstock, tmp_path: Path
) -> None:
    await enqueue(app, 3)
    (held,) = await app.leases.claim(worker="w")
    await app.archive.export(tmp_path / "jobs.jsonl")
    await other.archive.import_(tmp_path / "jobs.jsonl")
    (taken,) = await other.leases.claim(worker="w")
    assert taken.id == held.id
    assert taken.token > held.token
    assert (await enqueue(other))[0].id == 4


async def test_running_job_that_should_stop_is_imported_as_cancelled(
    app: Penstock, other: Penstock, tmp_path: Path
) -> None:
    await enqueue(app)
    await app.leases.claim(worker="w")
    await app.cancel(1)
    await app.archive.export(tmp_path / "jobs.jsonl")
    await other.archive.import_(tmp_path / "jobs.jsonl")
    job = await other.get(1)
    assert (job.state, job.expires_at, job.cancel_requested) == (State.CANCELLED, None, False)
    assert job.finished_at is not None


async def test_export_of_what_fits_a_query(app: Penstock, other: Penstock, tmp_path: Path) -> None:
    await fill(app)
    assert (await app.archive.export(tmp_path / "a.jsonl", JobQuery(queue="mail"))).changed == 2
    await other.archive.import_(tmp_path / "a.jsonl")
    assert [queue.name for queue in await other.queues.list()] == ["mail"]


async def test_settings_of_a_known_queue_stay(
    app: Penstock, other: Penstock, tmp_path: Path
) -> None:
    await fill(app)
    await other.limits.queue("mail", 3)
    await app.archive.export(tmp_path / "a.jsonl")
    await other.archive.import_(tmp_path / "a.jsonl")
    assert Queue(name="mail", max_pending=3) in await other.queues.list()


async def test_archive_brings_removed_jobs_back(
    app: Penstock, clock: ManualClock, tmp_path: Path
) -> None:
    await enqueue(app, 3)
    await fail(app)
    await app.bulk(JobQuery()).delete(archive=tmp_path / "a.jsonl")
    assert await app.archive.import_(tmp_path / "a.jsonl") == Bulk(matched=1, changed=1)
    assert await app.archive.import_(tmp_path / "a.jsonl") == Bulk(matched=1, skipped=1)
    (back,) = await app.find(JobQuery(states=FAILED))
    assert (back.id, back.error) == (4, "boom")
    assert (await app.bulk(JobQuery()).retry()).changed == 1


async def test_of_a_job_that_is_archived_twice_the_last_counts(
    app: Penstock, other: Penstock, clock: ManualClock, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl.gz"
    await enqueue(app, 2)
    await fail(app)
    records = await app.store.records([JobId(1)])
    origin = await app.store.origin()
    archive = ArchiveFile(path, Header(kind="archive", source=origin.source, at=clock.now))
    archive.write(records)
    archive.close()
    await app.retry(1)
    await finish(app, 2)
    await app.bulk(JobQuery()).delete(archive=path)
    assert archived(path) == [1, 1, 2]
    assert await other.archive.import_(path) == Bulk(matched=2, changed=2)
    assert await states(other) == [State.DONE, State.DONE]


async def test_export_never_writes_over_a_file_and_leaves_none_that_is_not_whole(
    app: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue(app, 5)
    (tmp_path / "out").mkdir()
    mine = tmp_path / "out" / "mine.jsonl"
    mine.write_text("precious")
    with pytest.raises(ConfigurationError, match="already exists"):
        await app.archive.export(mine)
    assert mine.read_text() == "precious"

    class Broken(Rival):
        async def act(self) -> None:
            raise ZeroDivisionError

    Broken(app, "records", monkeypatch)
    with pytest.raises(ZeroDivisionError):
        await app.archive.export(tmp_path / "out" / "new.jsonl")
    assert list((tmp_path / "out").iterdir()) == [mine]


def edited(path: Path, number: int, change: dict[str, Any]) -> None:
    found = lines(path)
    line = found[number]
    for name, value in change.items():
        *outer, last = name.split(".")
        inner = line
        for part in outer:
            inner = inner[int(part)] if part.lstrip("-").isdigit() else inner[part]
        inner[last] = value
    path.write_text("".join(json.dumps(one) + "\n" for one in found))


@pytest.mark.parametrize(
    ("number", "change", "expected"),
    [
        (0, {"format": 3, "kind": "else"}, (ConfigurationError, "newer Penstock")),
        (0, {"line": "else"}, (ConfigurationError, "not an export or archive")),
        (2, {"job.state": "odd"}, (InvalidJob, "line 3")),
        (2, {"job.task": ""}, (InvalidJob, "line 3: job 1: task")),
        (2, {"job.payload": "[]"}, (InvalidJob, "JSON object")),
        (2, {"job.retry": {"attempts": 0}}, (InvalidJob, "at least one attempt")),
        (2, {"job.enqueued_at": "2030-01-01T00:00:00"}, (InvalidJob, "time zone")),
        (2, {"job.finished_at": "2030-01-01T00:00:00Z"}, (InvalidJob, "finished_at")),
        (2, {"job.version": 99}, (InvalidJob, "log")),
        (2, {"log": []}, (InvalidJob, "log")),
        (2, {"job.id": 2**70}, (InvalidJob, "line 3")),
        (2, {"job.id": 0}, (InvalidJob, "range")),
        (2, {"job.attempt": -1}, (InvalidJob, "range")),
        (-1, {"last_log": 2**63 - 1}, (InvalidJob, "range")),
        (0, {"source": -1}, (InvalidJob, "range")),
        (2, {"log.-1.state": "done"}, (InvalidJob, "its state")),
    ],
)
async def test_file_that_cannot_be_trusted_changes_nothing(
    app: Penstock,
    tmp_path: Path,
    number: int,
    change: dict[str, Any],
    expected: tuple[type[Exception], str],
) -> None:
    error, text = expected
    path = tmp_path / "jobs.jsonl"
    source = Penstock("memory://")
    await enqueue(source, 3)
    await source.archive.export(path)
    edited(path, number, change)
    for dry_run in (True, False):
        with pytest.raises(error, match=text):
            await app.archive.import_(path, dry_run=dry_run)
    assert await app.find() == []


@pytest.mark.parametrize("name", ["jobs.jsonl", "jobs.jsonl.gz"])
async def test_export_that_was_cut_off_is_refused_wherever(
    app: Penstock, tmp_path: Path, name: str
) -> None:
    source = Penstock("memory://")
    await enqueue(source, 3)
    await source.archive.export(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for end in range(0, len(whole), 37):
        (tmp_path / name).write_bytes(whole[:end])
        with pytest.raises((InvalidJob, ConfigurationError)):
            await app.archive.import_(tmp_path / name)
    assert await app.find() == []


def test_import_that_is_killed_continues_where_it_was(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "jobs.jsonl.gz"
    source = Penstock("memory://")
    run_sync(source.enqueue_many([new(key="k")] * 5))
    run_sync(source.archive.export(file))
    program = KILLED.rpartition("nothing = ")[0] + "run_sync(app.archive.import_(file))\n"
    arguments = [url, str(file), "after", "restore", "2"]
    killed = subprocess.run([sys.executable, "-c", program, *arguments], check=False, timeout=60)
    assert killed.returncode == -9
    app = Penstock(url)
    assert run_sync(app.bulk(JobQuery()).count()) == 4
    assert run_sync(app.archive.import_(file)) == Bulk(matched=5, changed=1, skipped=4)
    assert ids(run_sync(app.find(JobQuery(newest_first=False)))) == [1, 2, 3, 4, 5]
    run_sync(app.close())


@pytest.mark.parametrize("wrong", [None, "failed", {}])
async def test_query_is_required(app: Penstock, wrong: Any) -> None:
    await enqueue(app)
    with pytest.raises(ConfigurationError, match="JobQuery"):
        app.bulk(wrong)
    assert await states(app) == [State.PENDING]


async def test_missing_file_is_a_clear_error(app: Penstock, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        await app.archive.import_(tmp_path / "none.jsonl")


async def test_damaged_packed_file_is_refused(app: Penstock, tmp_path: Path) -> None:
    source = Penstock("memory://")
    await enqueue(source, 50)
    path = tmp_path / "jobs.jsonl.gz"
    await source.archive.export(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(InvalidJob):
        await app.archive.import_(path)
    assert await app.find() == []


async def test_every_field_of_a_job_survives(
    app: Penstock, other: Penstock, clock: ManualClock, tmp_path: Path
) -> None:
    (parent,) = await enqueue(app)
    full = NewJob(
        task="t",
        payload='{"text":"Grüße\\n日本\\u0000"}',
        queue="q",
        priority=3,
        run_at=clock.now + HOUR,
        key="k",
        dedupe="d",
        tags=("a", "b"),
        retry=STEADY,
        timeout=SECOND,
        lease=2 * SECOND,
        correlation="c",
        tenant="t",
        parent=parent.id,
        throttle="x",
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        task_version=2,
    )
    (job,) = await app.enqueue_many([full])
    unset = {
        name
        for name, value in msgspec.structs.asdict(full).items()
        if value == msgspec.structs.asdict(NewJob(task="", payload=""))[name]
    }
    edges = {"after", "follows", "on_failure", "supersede"}  # not taken along, see the how-to
    assert unset <= {"delay", "scope", *edges}, "a new field: see that it survives"
    await app.archive.export(tmp_path / "a.jsonl.gz")
    await other.archive.import_(tmp_path / "a.jsonl.gz")
    assert alike(await other.get(job.id)) == alike(job)
    clock.advance(2 * HOUR)
    (taken,) = await other.leases.claim(worker="w", queues=["q"])
    assert taken.retry == STEADY


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
async def test_details_travel_with_the_log(
    app: Penstock, clock: ManualClock, tmp_path: Path, name: str
) -> None:
    other = Penstock("memory://", clock=clock)
    await enqueue(app, 1)
    [job] = await app.leases.claim(worker="w")
    await app.leases.settle([(job, Done(detail='{"a": "ü"}'))])
    clock.advance(SECOND)
    await app.archive.prune(NOTHING, archive=tmp_path / name)
    for home in (other, app):
        await home.archive.import_(tmp_path / name)
        [job] = await home.find()
        assert [one.detail for one in await home.log(job.id)] == [None, None, '{"a": "ü"}', None]


async def test_portions_are_followed_through_a_trail(app: Penstock) -> None:
    await app.enqueue_many([NewJob(task="t", payload="{}", queue="parts") for _ in range(25)])
    trail = Trail()
    first = await app.bulk(JobQuery(queue="parts")).cancel(portion=Portion(limit=10, trail=trail))
    assert (first.changed, len(trail.ids)) == (10, 2)  # of the last four that were found
    again = [job.id for job in await app.find(JobQuery(queue="parts", states=[State.CANCELLED]))]
    assert again == sorted(again, reverse=True)
    await app.cancel(trail.ids[0])  # found before, and changed by somebody else
    rest = Portion(limit=100, after=first.after, trail=trail)
    done = await app.bulk(JobQuery(queue="parts")).cancel(portion=rest)
    assert (done.matched, done.changed, done.skipped, done.after) == (15, 14, 1, None)


async def test_trail_of_another_place_is_not_followed(app: Penstock) -> None:
    jobs = await app.enqueue_many([NewJob(task="t", payload="{}", queue="parts")] * 9)
    trail = Trail(after=jobs[0].id, ids=[jobs[1].id])
    portion = Portion(limit=3, after=jobs[3].id, trail=trail)
    done = await app.bulk(JobQuery(queue="parts")).reprioritise(9, portion=portion)
    assert (done.changed, done.after) == (3, jobs[6].id)
    after = await app.find(JobQuery(queue="parts", newest_first=False))
    assert [job.priority for job in after] == [*[5] * 4, *[9] * 3, *[5] * 2]


# Records


async def test_records_are_jobs_with_their_whole_logs(app: Penstock, clock: ManualClock) -> None:
    first, second = await app.enqueue_many([new(), new(priority=0)])
    waiting = await add_one(app, after=(second.id,))
    [job] = await app.leases.claim(worker="w")
    await app.leases.start([job])
    await app.leases.settle([(job, Done("1", detail="[1]"))])
    found = await app.archive.records([waiting.id, 99, first.id])
    assert ids([record.job for record in found]) == [waiting.id, first.id]
    for record in found:
        assert record.job == await app.get(record.job.id)
        assert list(record.log) == await app.log(record.job.id)
    assert [edge.needed for edge in found[0].edges] == [second.id]
    assert [(entry.event, entry.detail) for entry in found[1].log] == [
        (Event.ENQUEUED, None),
        (Event.CLAIMED, None),
        (Event.STARTED, None),
        (Event.DONE, "[1]"),
    ]
    assert await app.archive.records([]) == []
