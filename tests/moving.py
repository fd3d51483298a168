"""A store with something of everything in it, and a comparison of all that with where it went."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from penstock.core.dependencies import Edge
from penstock.core.job import Job, JobId, LogEntry, NewJob, OnFailure, Scope
from penstock.core.lifecycle import Done, Event, Failed, State, Waiting, cancel, reprioritise
from penstock.core.limits import Limit
from penstock.core.progress import Line, Progress, Report
from penstock.core.queue import QueueSettings
from penstock.core.schedule import Firing, Rhythm, Schedule
from penstock.core.store import Store
from penstock.core.superseding import Tail
from penstock.core.tokens import Access, Token, digest_of
from tests.contract.support import (
    HOUR,
    SECOND,
    add,
    add_one,
    everything,
    move,
    new,
    settle,
    take_one,
)

# Its end is past as soon as anyone looks.
SHORT = timedelta(microseconds=1)


async def fill(store: Store, now: datetime) -> None:
    """Jobs in every state, and whatever else a store can have."""
    await _add_finished(store)
    await _add_related(store)
    await _add_keyed(store)
    await _add_dead(store, now)
    await add(
        store,
        new(run_at=now + 5 * HOUR, trace="00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
        new(tags=("a", "b"), tenant="x", priority=8, timeout=SECOND, correlation="batch"),
        new(tags=("b",), tenant="y", throttle="host", queue="other", dedupe="d"),
        new(dedupe="e", scope=Scope.PENDING, payload='{"text": "Straße"}'),
    )
    await move(store, job := await add_one(store), reprioritise(job, 9), actor="admin")
    await _set_up(store, now)


async def _add_finished(store: Store) -> None:
    await add(store, *[new(queue="early", priority=10)] * 4)
    done = await settle(store, await take_one(store), Done(result='{"n": 1}', detail='"d"'))
    await add_one(store, parent=done.id, queue="other")
    await settle(store, await take_one(store, queues=("early",)), Failed("boom", permanent=True))
    waiting = await take_one(store, queues=("early",))
    await settle(store, waiting, Failed("once"))
    [last] = [one for one in await everything(store) if one.waiting and one.queue == "early"][:1]
    await move(store, last, cancel(last, "not needed"), actor="admin")


async def _add_related(store: Store) -> None:
    first = await add_one(store, queue="other")
    await add(
        store,
        new(after=(first.id,), on_failure=OnFailure.RUN),
        new(after=(first.id,), key="related"),
        new(follows=(0, 1)),
    )
    # One that waits for a job which came after it: the one before was superseded.
    old = await add_one(store, key="save")
    await add(store, new(after=(old.id,)), new(), new(), new())
    await store.add([new(key="save", supersede=True)], actor="p", tail=Tail(job=old, replaces=True))


async def _add_keyed(store: Store) -> None:
    await add(
        store, *[new(key=f"k{n % 2}", queue="keyed", payload=f'{{"n": {n}}}') for n in range(6)]
    )
    first = await take_one(store, queues=("keyed",))
    await settle(store, first, Failed("later"))


async def _add_dead(store: Store, now: datetime) -> None:
    """A job whose worker died in the middle of it."""
    await add_one(store, queue="dead", lease=SHORT)
    job = await take_one(store, queues=("dead",), worker="dead")
    said = Progress(3, 10, "third", now, now, 1)
    lines = tuple(Line(0, now, "INFO", f"line {n}", 1) for n in range(3))
    note = Report(lease=job.lease, progress=said, state='{"at": 3}', lines=lines)
    assert await store.report([note]) == [True]


async def _set_up(store: Store, now: datetime) -> None:
    await store.configure(
        QueueSettings(
            name="other",
            paused=True,
            max_pending=100,
            concurrency=3,
            rate=(5, HOUR),
            promote_after=(SECOND, 3 * SECOND),
        )
    )
    await store.configure(QueueSettings(name="empty", paused=True))
    await store.limit(Limit(kind="task", name="t", concurrency=50))
    await store.limit(Limit(kind="throttle", name="ho", concurrency=2))
    job = NewJob(task="cron", payload="{}", queue="cron")
    schedule = Schedule(name="hourly", job=job, rhythm=Rhythm(every=HOUR), next=now, overlap=False)
    stored = await store.put_schedule(schedule)
    assert stored is not None
    assert await store.fire(Firing(schedule=stored, jobs=(job,), next=now + HOUR), actor="cron")
    resting = replace(schedule, name="resting", paused=True, next=None, declared=True)
    assert await store.put_schedule(resting)
    secret = Token(
        name="ci",
        digest=digest_of("secret"),
        scopes=frozenset({Access.PUBLISH}),
        created_at=datetime(2029, 1, 1, tzinfo=UTC),
        expires_at=now + HOUR,
    )
    assert await store.add_token(secret)


async def assert_moved(source: Store, target: Store, *, but: int = 0) -> None:
    """That all of one store is in the other, once, and nothing else but so many other jobs."""
    ids = [job.id for job in await everything(source)]
    places = await target.restored_ids((await source.origin()).source, ids)
    assert places.keys() == set(ids)
    assert len(set(places.values())) == len(ids) == len(await everything(target)) - but
    assert [places[one] for one in ids] == sorted(places.values())
    await _assert_same_jobs(source, target, places)
    await _assert_same_settings(source, target, places)


async def _assert_same_jobs(source: Store, target: Store, places: Mapping[JobId, JobId]) -> None:
    ids = list(places)
    before = await source.records(ids)
    after = await target.records([places[one] for one in ids])
    notes, kept = await source.reported(ids), await target.reported(list(places.values()))
    assert {places[one]: said for one, said in notes.items()} == kept
    for old, there in zip(before, after, strict=True):
        *log, last = there.log
        assert (last.event, last.state) == (Event.RESTORED, there.job.state)
        assert there.job.version == last.id
        entries = {one.id: other.id for one, other in zip(old.log, log, strict=True)}
        assert [_mapped_entry(one, entries, places) for one in old.log] == log
        assert _mapped(old.job, entries, places, last) == _dozing(there.job)
        assert [_mapped_edge(one, places) for one in old.edges] == list(there.edges)


def _mapped(
    job: Job, entries: Mapping[Any, Any], places: Mapping[JobId, JobId], last: LogEntry
) -> Job:
    parent = None if job.parent is None else places[job.parent]
    token = entries.get(job.token, 0)
    moved = replace(job, id=places[job.id], version=last.id, token=token, parent=parent)
    return _dozing(moved)


def _dozing(job: Job) -> Job:
    """The same for jobs that have fallen due: when a store lets them in is its own affair."""
    return replace(job, waiting=Waiting.SCHEDULED) if job.waiting is Waiting.READY else job


def _mapped_entry(
    entry: LogEntry, entries: Mapping[Any, Any], places: Mapping[JobId, JobId]
) -> LogEntry:
    token = None if entry.token is None else entries[entry.token]
    return replace(entry, id=entries[entry.id], job_id=places[entry.job_id], token=token)


def _mapped_edge(edge: Edge, places: Mapping[JobId, JobId]) -> Edge:
    return replace(edge, needed=places[edge.needed], job_id=places[edge.job_id])


async def _assert_same_settings(
    source: Store, target: Store, places: Mapping[JobId, JobId]
) -> None:
    assert await target.queues() == await source.queues()
    assert await target.limits() == await source.limits()
    assert await target.tokens() == await source.tokens()
    assert [
        replace(one, version=0, last_job=places.get(one.last_job) if one.last_job else None)
        for one in await source.schedules()
    ] == [replace(one, version=0) for one in await target.schedules()]


def states(jobs: list[Job]) -> set[State]:
    return {job.state for job in jobs}
