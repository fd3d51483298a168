"""Penstock, the object users hold: on every store, unless a test is about one of them."""

import asyncio
import os
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import (
    Cancelled,
    ConfigurationError,
    Done,
    Event,
    Failed,
    InvalidJob,
    Job,
    JobNotFound,
    JobQuery,
    Lease,
    LeaseLost,
    NewJob,
    Outcome,
    PayloadTooLarge,
    Penstock,
    Queue,
    QueueFull,
    QueueQuery,
    Scope,
    Snoozed,
    State,
    StoreError,
    Task,
    TransitionRefused,
    UnknownTask,
    Waiting,
    Worker,
    run_sync,
)
from penstock.core.job import Change, JobId
from penstock.testing import faulty
from tests.contract.support import HOUR, SECOND, SOON, STEADY, STORES, ManualClock, ids

LONG = timedelta(minutes=1)


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Penstock]:
    """A Penstock on every store in turn, whose time stands still."""
    penstock = Penstock(STORES[request.param](tmp_path), clock=clock, actor="tester")
    yield penstock
    run_sync(penstock.close())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def file_app(path: Path, clock: ManualClock) -> Iterator[Penstock]:
    """A Penstock on a SQLite file."""
    penstock = Penstock(f"sqlite:///{path}", clock=clock)
    yield penstock
    run_sync(penstock.close())


@pytest.fixture
def greet(app: Penstock) -> Task[[str], str]:
    def greet(name: str) -> str:
        return f"hello {name}"

    return app.task("greet", greet, retry=STEADY)


def new(**options: Any) -> NewJob:
    return NewJob(**{"task": "t", "payload": "{}", "retry": STEADY, **options})


async def add_one(app: Penstock, **options: Any) -> Job:
    [job] = await app.enqueue_many([new(**options)])
    return job


async def claim_one(app: Penstock, worker: str = "w") -> Job:
    [job] = await app.claim(worker=worker)
    return job


async def events_of(app: Penstock, job: Job) -> list[Event]:
    return [entry.event for entry in await app.log(job.id)]


# Opening and closing


def test_nothing_is_opened_before_it_is_needed(path: Path) -> None:
    app = Penstock(f"sqlite:///{path}")
    app.task("t", lambda: None)
    assert not path.exists()
    run_sync(app.count())
    assert path.exists()
    run_sync(app.close())


def test_wrong_url_is_told_by_the_first_call() -> None:
    app = Penstock("redis://localhost")
    with pytest.raises(ConfigurationError, match="redis://localhost"):
        run_sync(app.count())


async def test_closed_penstock_opens_again_with_what_was_acknowledged(file_app: Penstock) -> None:
    job = await add_one(file_app)
    await file_app.close()
    assert await file_app.get(job.id) == job


async def test_close_can_be_repeated_and_come_first(file_app: Penstock) -> None:
    await file_app.close()
    await add_one(file_app)
    await file_app.close()
    await file_app.close()


async def test_context_manager_opens_and_closes(path: Path) -> None:
    async with Penstock(f"sqlite:///{path}") as app:
        store = app.store
        job = await add_one(app)
    with pytest.raises(StoreError, match="closed"):
        await store.get([job.id])
    with pytest.raises(StoreError, match="closed"):
        await store.add([new()], actor="late")


async def test_memory_store_forgets_when_it_is_closed() -> None:
    app = Penstock("memory://")
    await add_one(app)
    await app.close()
    assert await app.find() == []


def test_two_threads_that_open_at_once_open_one_store(path: Path) -> None:
    app = Penstock(f"sqlite:///{path}")
    together = threading.Barrier(8, timeout=SOON)

    def open_it(_: int) -> int:
        together.wait()
        return id(app.store)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(open_it, range(8)))) == 1
    run_sync(app.close())


async def test_actor_is_who_the_log_names(app: Penstock) -> None:
    job = await add_one(app)
    await app.cancel(job.id)
    assert [entry.actor for entry in await app.log(job.id)] == ["tester", "tester"]


def test_actor_is_host_and_process_unless_given() -> None:
    assert str(os.getpid()) in Penstock("memory://").actor


# Synchronous callers


def test_synchronous_code_reaches_everything_through_the_bridge(
    app: Penstock, greet: Task[[str], str]
) -> None:
    job = run_sync(greet.enqueue("you"))
    [claimed] = run_sync(app.claim(worker="w"))
    run_sync(app.renew([claimed.lease]))
    [done] = run_sync(app.settle([(claimed, Done('"hi"'))]))
    assert (done.id, done.returned) == (job.id, "hi")
    assert run_sync(app.get(job.id)) == done
    assert len(run_sync(app.log(job.id))) == 3
    assert run_sync(app.explain(job.id)).reason == "finished"
    assert run_sync(app.drain(timeout=LONG)).status == "drained"


def test_threads_may_share_one_penstock(app: Penstock, greet: Task[[str], str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda n: run_sync(greet.enqueue(str(n))), range(200)))
    assert len(set(ids(jobs))) == 200
    assert {job.args["name"] for job in run_sync(app.find(JobQuery(limit=500)))} == {
        str(n) for n in range(200)
    }


async def test_thread_beside_an_event_loop_may_use_the_bridge(
    app: Penstock, greet: Task[[str], str]
) -> None:
    job = await asyncio.to_thread(lambda: run_sync(greet.enqueue("you")))
    assert await app.get(job.id) == job


async def test_bridge_inside_an_event_loop_is_refused_and_changes_nothing(
    app: Penstock, greet: Task[[str], str]
) -> None:
    with pytest.raises(ConfigurationError, match="await"):
        run_sync(greet.enqueue("you"))
    # The store answers in order: what was left behind would come first.
    job = await greet.enqueue("me")
    assert await app.find() == [job]


def test_bridge_passes_errors_on(app: Penstock) -> None:
    with pytest.raises(JobNotFound):
        run_sync(app.get(7))


# Enqueuing


async def test_job_is_enqueued_by_name_with_arguments_by_theirs(
    app: Penstock, greet: Task[[str], str]
) -> None:
    job = await app.enqueue("greet", {"name": "you"}, priority=7, tags=["x"])
    assert (job.task, job.args, job.priority, job.tags) == ("greet", {"name": "you"}, 7, ("x",))
    assert await app.get(job.id) == job


async def test_task_without_arguments_is_enqueued_by_its_name_alone(app: Penstock) -> None:
    app.task("t", lambda: None)
    assert (await app.enqueue("t")).args == {}


async def test_unknown_task_is_refused_with_the_known_ones(
    app: Penstock, greet: Task[[str], str]
) -> None:
    with pytest.raises(UnknownTask, match=r"'great'.*greet"):
        await app.enqueue("great", {"name": "you"})
    assert await app.find() == []


@pytest.mark.parametrize("args", [["you"], "you", 5, [], "", 0, {1: "you"}, {"self": "you"}])
async def test_arguments_by_name_have_to_be_a_mapping_of_names(args: Any) -> None:
    app = Penstock("memory://")
    app.task("t", lambda: None)
    with pytest.raises(InvalidJob):
        await app.enqueue("t", args)
    assert await app.find() == []


async def test_many_jobs_are_stored_in_their_order(app: Penstock) -> None:
    jobs = await app.enqueue_many([new(task=f"t{n}") for n in range(5)])
    assert ids(jobs) == sorted(ids(jobs))
    assert [job.task for job in await app.find(JobQuery(newest_first=False))] == [
        f"t{n}" for n in range(5)
    ]


async def test_one_invalid_job_keeps_the_whole_call_from_being_stored(app: Penstock) -> None:
    with pytest.raises(InvalidJob):
        await app.enqueue_many([new(), new(priority=11), new()])
    assert await app.find() == []
    assert await app.log() == []


async def test_full_queue_keeps_the_whole_call_from_being_stored(app: Penstock) -> None:
    await app.limit("small", 2)
    with pytest.raises(QueueFull):
        await app.enqueue_many([new(), *[new(queue="small")] * 3])
    assert await app.find() == []


async def test_no_jobs_are_no_trouble(app: Penstock) -> None:
    assert await app.enqueue_many([]) == []


async def test_job_for_a_task_of_another_program_can_be_stored(app: Penstock) -> None:
    job = await add_one(app, task="elsewhere", payload='{"n":1}')
    assert (job.task, job.args) == ("elsewhere", {"n": 1})


# What cannot be stored

TOO_LATE = timedelta(days=3_000_000)
"""Past the year 9999, where no datetime can follow."""

WRONG: dict[str, dict[str, Any]] = {
    "priority below": {"priority": -1},
    "priority above": {"priority": 11},
    "priority no number": {"priority": "5"},
    "priority fraction": {"priority": 5.0},
    "priority bool": {"priority": True},
    "task empty": {"task": ""},
    "task long": {"task": "x" * 201},
    "task unprintable": {"task": "a\nb"},
    "task surrogate": {"task": "\ud800"},
    "task no text": {"task": 5},
    "queue empty": {"queue": ""},
    "queue long": {"queue": "x" * 201},
    "queue unprintable": {"queue": "\0"},
    "queue no text": {"queue": None},
    "key empty": {"key": ""},
    "key long": {"key": "x" * 1001},
    "key surrogate": {"key": "\ud800"},
    "key nul": {"key": "a\0b"},  # SQLite would take it for "a"
    "key no text": {"key": 5},
    "dedupe empty": {"dedupe": ""},
    "dedupe long": {"dedupe": "x" * 1001},
    "dedupe surrogate": {"dedupe": "\ud800"},
    "dedupe nul": {"dedupe": "a\0b"},
    "dedupe no text": {"dedupe": 5},
    "scope unknown": {"dedupe": "d", "scope": "everything"},
    "tags too many": {"tags": tuple(f"t{n}" for n in range(51))},
    "tag empty": {"tags": ("",)},
    "tag long": {"tags": ("x" * 201,)},
    "tag unprintable": {"tags": ("a\tb",)},
    "tag no text": {"tags": (5,)},
    "delay and run_at": {"delay": SECOND, "run_at": datetime(2030, 1, 1, tzinfo=UTC)},
    "delay negative": {"delay": -SECOND},
    "delay no duration": {"delay": 5},
    "delay endless": {"delay": timedelta.max},
    "delay too late": {"delay": TOO_LATE},
    "run_at naive": {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is the point
    "run_at no moment": {"run_at": "tomorrow"},
    "lease zero": {"lease": timedelta(0)},
    "lease negative": {"lease": -SECOND},
    "lease no duration": {"lease": 30},
    "lease endless": {"lease": timedelta.max},
    "lease too late": {"lease": TOO_LATE},
    "timeout zero": {"timeout": timedelta(0)},
    "timeout negative": {"timeout": -SECOND},
    "timeout no duration": {"timeout": 30},
    "timeout endless": {"timeout": timedelta.max},
    "retry no policy": {"retry": 3},
    "payload no text": {"payload": b"{}"},
    "payload no JSON": {"payload": "{"},
    "payload no object": {"payload": "[1]"},
    "payload surrogate": {"payload": '{"a":"\ud800"}'},
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_job_that_cannot_be_stored_is_refused_and_nothing_is_stored(
    app: Penstock, wrong: str
) -> None:
    with pytest.raises(InvalidJob):
        await app.enqueue_many([new(), new(**WRONG[wrong])])
    assert await app.find() == []
    assert await app.log() == []


@pytest.mark.parametrize("wrong", [name for name in WRONG if "payload" not in name])
def test_wrong_option_of_a_task_is_refused_at_its_registration(wrong: str) -> None:
    app = Penstock("memory://")
    options = dict(WRONG[wrong])
    name = options.pop("task", "t")
    with pytest.raises(InvalidJob):
        app.task(name, lambda: None, **options)
    assert app.tasks == {}


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 0},
        {"priority": 10},
        {"task": "x" * 200, "queue": "ö" * 200},
        {"key": "x" * 1000, "dedupe": "line\nbreak"},
        {"tags": tuple(f"t{n}" for n in range(50))},
        {"tags": ("twice", "twice")},
        {"delay": timedelta(0)},
        {"run_at": datetime(1999, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(8999, 12, 31, tzinfo=UTC)},
        {"lease": timedelta(microseconds=1), "timeout": timedelta(microseconds=1)},
        {"lease": timedelta(days=365)},
        {"payload": '{"emoji":"\U0001f600","nul":"\\u0000","deep":[[[[]]]]}'},
    ],
    ids=" ".join,
)
async def test_job_at_the_edge_of_what_is_allowed_is_stored_whole(
    app: Penstock, options: dict[str, Any]
) -> None:
    job = await add_one(app, **options)
    assert await app.get(job.id) == job
    for name, value in options.items():
        if name not in ("delay", "lease"):
            assert getattr(job, name) == value


@pytest.mark.parametrize("letter", ["x", "ö", "€", "\U0001f600"])
async def test_payload_limit_counts_bytes(letter: str) -> None:
    app = Penstock("memory://", payload_limit=1000)
    task = app.task("t", lambda text: None)
    room = 1000 - len('{"text":""}')
    fits = letter * (room // len(letter.encode()))
    await task.enqueue(fits)
    with pytest.raises(PayloadTooLarge, match=r"task t: \d+ bytes of JSON, the limit is 1000"):
        await task.enqueue(fits + letter)
    assert len(await app.find()) == 1


async def test_payload_limit_is_a_megabyte_unless_chosen(app: Penstock) -> None:
    task = app.task("t", lambda text: None)
    job = await task.enqueue("x" * 999_980)
    assert (await app.get(job.id)).args == {"text": "x" * 999_980}
    with pytest.raises(PayloadTooLarge):
        await task.enqueue("x" * 1_000_000)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1,), {}),
        ((1, "x", "more"), {}),
        ((1, "x"), {"other": 1}),
        ((1,), {"n": 1, "text": "x"}),
        ((1,), {"text": 2}),
        (("1", "x"), {}),
        ((1.5, "x"), {}),
        ((None, "x"), {}),
        ((1, None), {}),
        ((1, "x"), {"flag": True, "self": 1}),
        ((1, "x", True), {}),
    ],
)
async def test_arguments_that_do_not_fit_the_handler_are_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    app = Penstock("memory://")

    def handler(n: int, text: str, *, flag: bool = False) -> None:
        raise NotImplementedError

    task: Task[..., None] = app.task("t", handler)
    with pytest.raises(InvalidJob, match="task t"):
        await task.enqueue(*args, **kwargs)
    assert await app.find() == []


@pytest.mark.parametrize(
    "value",
    [
        object(),
        1j,
        lambda: None,
        "\ud800",
        {"key": "\ud800"},
        {("a", "tuple"): 1},
        nested(100_000),
        itself(),
        float("nan"),
        [float("inf")],
        {1, 2},
        b"bytes",
    ],
    ids=[
        "object", "complex", "function", "surrogate", "surrogate inside", "tuple key", "deep",
        "cyclic", "nan", "infinity", "set", "bytes",
    ],
)  # fmt: skip
async def test_argument_that_is_not_json_is_refused(value: object) -> None:
    """Never changed silently into something that is."""
    app = Penstock("memory://")
    task = app.task("t", lambda value: None)
    with pytest.raises(InvalidJob, match="task t"):
        await task.enqueue(value)
    assert await app.find() == []


# Claiming


@pytest.mark.parametrize("tags", [(), ("x",), ("x", "y", "none")])
async def test_retried_job_stands_among_others_by_its_due_time(
    app: Penstock, clock: ManualClock, tags: tuple[str, ...]
) -> None:
    """By priority, then by due time, then by id: also when it fell due just now."""

    def job(**options: Any) -> NewJob:
        return new(tags=("x", "y"), retry=STEADY, queue="q", **options)

    start = clock.now
    [retried] = await app.enqueue_many([job()])
    [claimed] = await app.claim(worker="w", queues=["q"])
    await app.settle([(claimed, Failed("no"))])  # due again in ten seconds
    before, level, behind, first, last = await app.enqueue_many(
        [
            job(run_at=start + 9 * SECOND),
            job(run_at=start + 10 * SECOND),
            job(run_at=start + 11 * SECOND),
            job(run_at=start + 12 * SECOND, priority=6),
            job(run_at=start, priority=4),
        ]
    )
    await app.enqueue_many([job(delay=HOUR), replace(job(priority=9), queue="other")])
    clock.advance(15 * SECOND)
    [ready] = await app.enqueue_many([job()])
    clock.advance(SECOND)
    taken = await app.claim(worker="w", limit=1000, queues=["q"], tags=tags)
    assert ids(taken) == ids([first, before, retried, level, behind, ready, last])
    assert taken[2].attempt == 2


async def test_a_thousand_jobs_of_a_tag_are_claimed_at_once_in_order(
    app: Penstock, clock: ManualClock
) -> None:
    options = [{"priority": n % 3, "run_at": clock.now - n % 7 * SECOND} for n in range(1200)]
    jobs = await app.enqueue_many([new(queue="q", tags=("x",), **one) for one in options])
    await app.enqueue_many([new(queue="q", tags=("y",), priority=9)] * 10)
    order = sorted(jobs, key=lambda job: (-job.priority, job.run_at, job.id))
    taken = await app.claim(worker="w", limit=1000, queues=["q"], tags=["x"])
    assert ids(taken) == ids(order[:1000])
    assert ids(await app.claim(worker="w", limit=1000, queues=["q"], tags=["x"])) == ids(
        order[1000:]
    )


async def test_ready_tags_tell_whether_a_claim_is_worth_its_while(app: Penstock) -> None:
    await app.enqueue_many([new(queue="q", tags=("b", "a")), new(queue="q", tags=("c",))])
    assert await app.ready_tags("q") == ["a", "b", "c"]
    assert await app.ready_tags("q", 2) == ["a", "b"]
    with pytest.raises(ConfigurationError, match="limit"):
        await app.ready_tags("q", 0)
    await app.claim(worker="w", queues=["q"], tags=["a"])
    assert await app.ready_tags("q") == ["c"]


# Records


async def test_records_are_jobs_with_their_whole_logs(app: Penstock, clock: ManualClock) -> None:
    first, second = await app.enqueue_many([new(), new(priority=0)])
    waiting = await add_one(app, after=(second.id,))
    [job] = await app.claim(worker="w")
    await app.start([job])
    await app.settle([(job, Done("1", detail="[1]"))])
    found = await app.records([waiting.id, 99, first.id])
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
    assert await app.records([]) == []


# Settling


async def test_settled_jobs_are_answered_in_their_order(app: Penstock) -> None:
    await app.enqueue_many([new()] * 4)
    jobs = await app.claim(worker="w", limit=4)
    outcomes: list[Outcome] = [Done("1"), Failed("no"), Snoozed(HOUR), Cancelled("stop")]
    settled = await app.settle(list(zip(jobs, outcomes, strict=True)))
    assert ids(settled) == ids(jobs)
    assert [job.state for job in settled] == [
        State.DONE, State.PENDING, State.PENDING, State.CANCELLED,
    ]  # fmt: skip
    assert [await app.get(job.id) for job in jobs] == settled


async def test_lease_is_enough_to_settle(app: Penstock) -> None:
    """For workers in other languages, which keep no job."""
    await app.enqueue_many([new()] * 2)
    one, other = await app.claim(worker="w", limit=2)
    settled = await app.settle([(one.lease, Done("1")), (other, Done("2"))])
    assert [job.returned for job in settled] == [1, 2]


async def test_settling_nothing_is_no_trouble(app: Penstock) -> None:
    assert await app.settle([]) == []


async def test_stale_worker_is_refused_and_the_refusal_is_logged(
    app: Penstock, clock: ManualClock
) -> None:
    await add_one(app)
    stale = await claim_one(app, "slow")
    clock.advance(HOUR)
    assert await app.reclaim() == 1
    fresh = await claim_one(app, "quick")
    with pytest.raises(LeaseLost) as lost:
        await app.settle([(stale, Done('"stale"'))])
    assert (lost.value.job_id, lost.value.token) == (stale.id, stale.token)
    *_, entry = await app.log(stale.id)
    assert (entry.event, entry.state, entry.actor) == (Event.REFUSED, State.RUNNING, "slow")
    assert entry.reason == f"stale token {stale.token} from slow"
    [done] = await app.settle([(fresh, Done('"fresh"'))])
    assert done.returned == "fresh"


async def test_run_cannot_be_settled_twice(app: Penstock) -> None:
    await add_one(app)
    job = await claim_one(app)
    await app.settle([(job, Done("1"))])
    with pytest.raises(LeaseLost):
        await app.settle([(job, Failed("changed my mind"))])
    assert (await app.get(job.id)).returned == 1
    assert await events_of(app, job) == [
        Event.ENQUEUED, Event.CLAIMED, Event.DONE, Event.REFUSED,
    ]  # fmt: skip


async def test_run_settled_twice_in_one_call_is_settled_once(app: Penstock) -> None:
    await add_one(app)
    job = await claim_one(app)
    first, second = await app.settle_held([(job, Done("1")), (job.lease, Failed("no"))])
    assert first is not None
    assert (first.returned, second) == (1, None)


async def test_unknown_job_cannot_be_settled(app: Penstock) -> None:
    with pytest.raises(LeaseLost):
        await app.settle([(Lease(JobId(99), 1, "w"), Done())])
    assert await app.settle_held([(Lease(JobId(99), 1, "w"), Done())]) == [None]
    assert await app.log() == []


async def test_token_of_another_claim_cannot_settle(app: Penstock) -> None:
    await add_one(app)
    job = await claim_one(app)
    assert await app.settle_held([(Lease(job.id, job.token + 1, "w"), Done())]) == [None]
    assert (await app.get(job.id)).state is State.RUNNING


async def test_what_may_be_a_repetition_leaves_no_entry(app: Penstock) -> None:
    await app.enqueue_many([new(), new()])
    one, other = await app.claim(worker="w", limit=2)
    await app.settle([(one, Done())])
    before = await app.log()
    settled = await app.settle_held([(one, Done()), (other, Done())], refuse=False)
    assert [job and job.id for job in settled] == [None, other.id]
    assert len(await app.log()) == len(before) + 1


async def test_what_is_still_held_is_settled_beside_what_is_lost(
    app: Penstock, clock: ManualClock
) -> None:
    await app.enqueue_many([new(lease=SECOND), new(), new(lease=SECOND), new()])
    jobs = await app.claim(worker="w", limit=4)
    clock.advance(SECOND)
    assert await app.reclaim() == 2
    settled = await app.settle_held([(job, Done()) for job in jobs])
    assert [job and job.state for job in settled] == [None, State.DONE, None, State.DONE]
    assert (await events_of(app, jobs[0]))[-1] is Event.REFUSED


async def test_settle_raises_for_the_first_lost_after_settling_the_rest(
    app: Penstock, clock: ManualClock
) -> None:
    await app.enqueue_many([new(), new(lease=SECOND), new(lease=SECOND)])
    jobs = await app.claim(worker="w", limit=3)
    clock.advance(SECOND)
    await app.reclaim()
    with pytest.raises(LeaseLost, match=f"job {jobs[1].id}"):
        await app.settle([(job, Done()) for job in jobs])
    assert (await app.get(jobs[0].id)).state is State.DONE


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Done(), State.DONE),
        (Failed("no"), State.CANCELLED),
        (Failed("no", permanent=True), State.CANCELLED),
        (Snoozed(HOUR), State.CANCELLED),
        (Cancelled(), State.CANCELLED),
    ],
)
@pytest.mark.parametrize("by_lease", [False, True])
async def test_cancel_between_claim_and_settle_wins_over_all_but_success(
    app: Penstock, outcome: Any, state: State, by_lease: bool
) -> None:
    await add_one(app)
    job = await claim_one(app)
    await app.cancel(job.id)
    [settled] = await app.settle([(job.lease if by_lease else job, outcome)])
    assert settled.state is state
    assert Event.REFUSED not in await events_of(app, job)


async def test_lease_that_ran_out_but_was_not_taken_back_can_be_settled(
    app: Penstock, clock: ManualClock
) -> None:
    await add_one(app)
    job = await claim_one(app)
    clock.advance(HOUR)
    [done] = await app.settle([(job, Done())])
    assert done.state is State.DONE


@pytest.mark.parametrize("by_lease", [{0, 2}, {1}, {0, 1, 2, 3}])
async def test_jobs_and_leases_settle_side_by_side_in_their_order(
    app: Penstock, clock: ManualClock, by_lease: set[int]
) -> None:
    await app.enqueue_many([new(), new(lease=SECOND), new(), new()])
    jobs = await app.claim(worker="w", limit=4)
    clock.advance(SECOND)
    assert await app.reclaim() == 1
    settled = await app.settle_held(
        [
            (job.lease if n in by_lease else job, Done(str(n), detail=f"[{n}]"))
            for n, job in enumerate(jobs)
        ]
    )
    assert [job and job.returned for job in settled] == [0, None, 2, 3]
    assert [job and job.id for job in settled] == [jobs[0].id, None, jobs[2].id, jobs[3].id]
    assert (await events_of(app, jobs[1]))[-1] is Event.REFUSED
    ends = [(await app.log(job.id))[-1] for job in (jobs[0], jobs[2], jobs[3])]
    assert [entry.detail for entry in ends] == ["[0]", "[2]", "[3]"]
    assert [entry.id for entry in ends] == sorted(entry.id for entry in ends)


async def test_only_what_is_not_known_is_looked_up(app: Penstock) -> None:
    await app.enqueue_many([new()] * 4)
    jobs = await app.claim(worker="w", limit=4)
    with faulty(app) as faults:
        await app.settle([(job, Done()) for job in jobs[:2]])
        assert faults.calls == {"transition": 1}
        asked: list[list[int]] = []
        get = app.store.get

        async def noting(ids: Sequence[JobId]) -> list[Job]:
            asked.append(list(ids))
            return await get(ids)

        app.store.get = noting  # type: ignore[method-assign] # replaced for the test
        await app.settle([(jobs[2], Done()), (jobs[3].lease, Done())])
    assert asked == [[jobs[3].id]]


async def test_job_that_was_settled_on_an_old_view_is_looked_up(app: Penstock) -> None:
    await app.enqueue_many([new()] * 2)
    jobs = await app.claim(worker="w", limit=2)
    await app.start(jobs[:1])
    with faulty(app) as faults:
        settled = await app.settle([(job, Done()) for job in jobs])
        assert faults.calls == {"transition": 2, "get": 1}
    assert [job.state for job in settled] == [State.DONE] * 2
    assert await events_of(app, jobs[0]) == [
        Event.ENQUEUED, Event.CLAIMED, Event.STARTED, Event.DONE,
    ]  # fmt: skip


# Starts and renewals


@pytest.mark.parametrize("by_lease", [False, True])
async def test_worker_says_that_it_began_and_keeps_the_job_longer(
    app: Penstock, clock: ManualClock, by_lease: bool
) -> None:
    await app.enqueue_many([new(lease=10 * SECOND)] * 2)
    jobs = await app.claim(worker="w", limit=2)
    clock.advance(9 * SECOND)
    started = await app.start([job.lease if by_lease else job for job in jobs])
    assert started == [await app.get(job.id) for job in jobs]
    for job in started:
        assert job is not None
        assert job.expires_at == clock.now + 10 * SECOND
        entry = (await app.log(job.id))[-1]
        assert (entry.event, entry.actor, entry.token) == (Event.STARTED, "w", job.token)
    clock.advance(9 * SECOND)
    assert await app.reclaim() == 0
    done = await app.settle([(job, Done()) for job in started if job])
    assert [job.state for job in done] == [State.DONE] * 2


async def test_start_of_a_lost_job_is_refused_and_logged(app: Penstock, clock: ManualClock) -> None:
    await app.enqueue_many([new(lease=SECOND), new(), new(lease=SECOND)])
    lost, held, done = await app.claim(worker="slow", limit=3)
    await app.settle([(done, Done())])
    clock.advance(SECOND)
    assert await app.reclaim() == 1
    again = await claim_one(app, "quick")
    gone = Lease(JobId(99), 1, "slow")
    started = await app.start([lost, held.lease, gone, done])
    assert [job and job.id for job in started] == [None, held.id, None, None]
    for job in (lost, done):
        entry = (await app.log(job.id))[-1]
        assert (entry.event, entry.actor) == (Event.REFUSED, "slow")
        assert entry.reason == f"stale token {job.token} from slow"
    assert (await app.get(lost.id)).expires_at == again.expires_at
    assert await app.start([]) == []


async def test_renewal_that_comes_too_late_is_logged(app: Penstock, clock: ManualClock) -> None:
    await app.enqueue_many([new(lease=SECOND), new(), new(lease=SECOND)])
    jobs = await app.claim(worker="slow", limit=3)
    clock.advance(SECOND)
    assert await app.reclaim() == 2
    gone = Lease(JobId(99), 1, "slow")
    assert ids(await app.renew([gone, *(job.lease for job in jobs)])) == [jobs[1].id]
    for job in (jobs[0], jobs[2]):
        entry = (await app.log(job.id))[-1]
        assert (entry.event, entry.actor) == (Event.REFUSED, "slow")
        assert entry.reason == f"stale token {job.token} from slow"
    assert (await events_of(app, jobs[1]))[-1] is Event.CLAIMED


async def test_renewal_in_time_is_one_write_and_leaves_no_entry(app: Penstock) -> None:
    await app.enqueue_many([new()] * 2)
    jobs = await app.claim(worker="w", limit=2)
    newest = await app.newest_log()
    with faulty(app) as faults:
        assert ids(await app.renew([job.lease for job in jobs])) == ids(jobs)
        assert faults.calls == {"renew": 1}
    assert await app.newest_log() == newest


async def test_reclaim_takes_back_only_what_ran_out(app: Penstock, clock: ManualClock) -> None:
    await app.enqueue_many([new(lease=SECOND), new(lease=HOUR)])
    short, long = await app.claim(worker="w", limit=2)
    assert await app.reclaim() == 0
    clock.advance(SECOND)
    assert await app.reclaim() == 1
    assert await app.reclaim() == 0
    assert [(await app.get(job.id)).state for job in (short, long)] == [
        State.PENDING, State.RUNNING,
    ]  # fmt: skip
    *_, entry = await app.log(short.id)
    assert (entry.event, entry.actor) == (Event.EXPIRED, "tester")


async def test_renewed_lease_is_not_taken_back(app: Penstock, clock: ManualClock) -> None:
    await add_one(app, lease=SECOND)
    job = await claim_one(app)
    clock.advance(SECOND)
    assert ids(await app.renew([job.lease])) == [job.id]
    assert await app.reclaim() == 0


# Looking


async def test_unknown_job_is_not_found(app: Penstock) -> None:
    for call in (app.get, app.cancel, app.retry, app.explain):
        with pytest.raises(JobNotFound, match="no job 99"):
            await call(99)


async def test_log_pages_behind_an_entry(app: Penstock) -> None:
    jobs = await app.enqueue_many([new()] * 5)
    first = await app.log(limit=2)
    rest = await app.log(after=first[-1].id)
    assert [entry.job_id for entry in first + rest] == ids(jobs)
    await app.cancel(jobs[0].id)
    assert [entry.event for entry in await app.log(jobs[0].id, after=first[0].id)] == [
        Event.CANCELLED
    ]


async def test_jobs_are_found_newest_first_unless_asked_otherwise(app: Penstock) -> None:
    jobs = await app.enqueue_many([new()] * 3)
    assert ids(await app.find()) == ids(jobs)[::-1]
    assert ids(await app.find(JobQuery(newest_first=False))) == ids(jobs)


# Steering


async def test_pending_job_is_cancelled_with_its_reason(app: Penstock) -> None:
    job = await app.cancel((await add_one(app)).id, "not needed")
    assert job.state is State.CANCELLED
    *_, entry = await app.log(job.id)
    assert (entry.event, entry.reason) == (Event.CANCELLED, "not needed")


async def test_finished_job_cannot_be_cancelled(app: Penstock) -> None:
    await add_one(app)
    [job] = await app.settle([(await claim_one(app), Done())])
    with pytest.raises(TransitionRefused, match=f"job {job.id} is done"):
        await app.cancel(job.id)
    assert await app.get(job.id) == job


async def test_failed_job_runs_again_with_all_its_attempts(app: Penstock) -> None:
    await add_one(app)
    [failed] = await app.settle([(await claim_one(app), Failed("no", permanent=True))])
    again = await app.retry(failed.id, "fixed")
    assert (again.state, again.attempt, again.error) == (State.PENDING, 0, None)
    assert (await claim_one(app)).id == failed.id
    assert [entry.reason for entry in await app.log(failed.id)][-2] == "fixed"


async def test_reset_takes_a_running_job_from_its_worker(app: Penstock) -> None:
    job = await add_one(app)
    held = await claim_one(app)
    with pytest.raises(TransitionRefused, match="reset takes it from its worker"):
        await app.retry(job.id)
    back = await app.reset(job.id, "silent")
    assert (back.state, back.attempt) == (State.PENDING, 0)
    assert (await app.log(job.id))[-1].reason == "silent"
    assert await app.settle_held([(held, Done())]) == [None]
    assert (await claim_one(app)).token > held.token


async def test_one_job_gets_another_priority(app: Penstock) -> None:
    await add_one(app)
    late = await add_one(app)
    moved = await app.set_priority(late.id, 9, "urgent")
    assert moved.priority == 9
    assert (await app.log(late.id))[-1].reason == "urgent"
    assert (await claim_one(app)).id == late.id
    with pytest.raises(TransitionRefused, match="running"):
        await app.set_priority(late.id, 1)
    with pytest.raises(InvalidJob, match="from 0 to 10"):
        await app.set_priority(late.id, 11)
    with pytest.raises(JobNotFound):
        await app.set_priority(99, 1)


async def test_finished_job_is_removed_with_its_log(app: Penstock) -> None:
    await add_one(app)
    [job] = await app.settle([(await claim_one(app), Done())])
    assert await app.delete(job.id) == job
    for call in (app.get, app.log, app.delete):
        with pytest.raises(JobNotFound):
            await call(job.id)


async def test_unfinished_job_is_not_removed(app: Penstock) -> None:
    job = await add_one(app)
    with pytest.raises(TransitionRefused, match=f"job {job.id} is pending"):
        await app.delete(job.id)
    await claim_one(app)
    with pytest.raises(TransitionRefused, match=f"job {job.id} is running"):
        await app.delete(job.id)
    assert (await app.get(job.id)).state is State.RUNNING


async def test_scheduled_job_is_made_to_run_now(app: Penstock) -> None:
    job = await add_one(app, delay=HOUR)
    assert (await app.retry(job.id)).waiting is Waiting.READY


@pytest.mark.parametrize("state", [State.RUNNING, State.DONE])
async def test_running_or_done_job_cannot_be_retried(app: Penstock, state: State) -> None:
    await add_one(app)
    job = await claim_one(app)
    if state is State.DONE:
        await app.settle([(job, Done())])
    with pytest.raises(TransitionRefused, match=f"is {state}"):
        await app.retry(job.id)
    assert Event.RESET not in await events_of(app, job)


async def test_retry_is_refused_while_another_holds_the_dedupe_key(app: Penstock) -> None:
    old = await add_one(app, dedupe="d")
    await app.cancel(old.id)
    newer = await add_one(app, dedupe="d")
    with pytest.raises(TransitionRefused, match=f"job {newer.id} holds its dedupe key 'd'"):
        await app.retry(old.id)


async def test_decision_is_made_anew_when_the_job_changed_meanwhile(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker claims it between the look and the write: then it is asked to stop."""
    job = await add_one(app)
    transition = app.store.transition

    async def claimed_before(changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        await app.claim(worker="quick")
        return await transition(changes, actor=actor)

    monkeypatch.setattr(app.store, "transition", claimed_before)
    job = await app.cancel(job.id)
    assert (job.state, job.cancel_requested) == (State.RUNNING, True)


async def test_paused_queue_gives_nothing_until_it_is_resumed(app: Penstock) -> None:
    await add_one(app)
    assert (await app.pause("default")).paused
    assert await app.claim(worker="w") == []
    assert not (await app.resume("default")).paused
    assert len(await app.claim(worker="w")) == 1


async def test_pause_with_a_duration_ends_by_itself(app: Penstock, clock: ManualClock) -> None:
    job = await add_one(app)
    paused = await app.pause("default", duration=10 * SECOND)
    assert paused.paused_until == clock.now + 10 * SECOND
    assert (await app.explain(job.id)).text == (
        "queue 'default' is paused until 2030-01-01 00:00:10 UTC; resume it to let its jobs go on"
    )
    clock.advance(9 * SECOND)
    await app.pause("default", duration=10 * SECOND)
    clock.advance(9 * SECOND)
    assert await app.claim(worker="w") == []
    clock.advance(SECOND)
    assert (await app.explain(job.id)).reason == "ready"
    assert not any(queue.paused for queue in await app.queues())
    assert len(await app.claim(worker="w")) == 1


@pytest.mark.parametrize("duration", [timedelta(0), -SECOND, timedelta.max, 5])
async def test_duration_of_a_pause_is_checked(app: Penstock, duration: Any) -> None:
    with pytest.raises(InvalidJob, match="duration"):
        await app.pause("default", duration=duration)


async def test_limit_is_kept_until_it_is_lifted(app: Penstock) -> None:
    assert (await app.limit("default", 1)).max_pending == 1
    await add_one(app)
    with pytest.raises(QueueFull) as full:
        await add_one(app)
    assert (full.value.queue, full.value.limit) == ("default", 1)
    await app.claim(worker="w")
    await add_one(app)
    await app.limit("default", None)
    await add_one(app)
    assert len(await app.find()) == 3


async def test_pause_and_limit_leave_each_other_alone(app: Penstock) -> None:
    await app.limit("q", 5)
    await app.pause("q")
    [queue] = await app.queues()
    assert (queue.name, queue.paused, queue.max_pending) == ("q", True, 5)


async def test_limit_of_zero_takes_nothing(app: Penstock) -> None:
    await app.limit("default", 0)
    with pytest.raises(QueueFull):
        await add_one(app)


async def test_negative_limit_is_refused(app: Penstock) -> None:
    with pytest.raises(ConfigurationError):
        await app.limit("default", -1)
    assert await app.queues() == []


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", None])
async def test_wrong_queue_names_are_refused(app: Penstock, name: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: app.pause(name),
        lambda: app.resume(name),
        lambda: app.limit(name, 1),
    ]
    for call in calls:
        with pytest.raises(InvalidJob, match="queue"):
            await call()
    assert await app.queues() == []


# Draining


async def test_drain_of_nothing_is_drained(app: Penstock) -> None:
    drained = await app.drain(timeout=LONG)
    assert (drained.status, drained.remaining) == ("drained", 0)


async def test_drain_waits_for_pending_and_running_jobs(app: Penstock) -> None:
    await app.enqueue_many([new()] * 2)
    first = await claim_one(app)
    draining = asyncio.create_task(app.drain(timeout=LONG))
    for job in (first, await claim_one(app)):
        await asyncio.sleep(0)
        assert not draining.done()
        await app.settle([(job, Done())])
    async with asyncio.timeout(SOON):
        drained = await draining
    assert (drained.status, drained.remaining) == ("drained", 0)
    assert drained.elapsed < LONG


async def test_drain_does_not_wait_for_later_jobs(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_one(app)
    first = await claim_one(app)
    wait = app.store.wait

    async def later_jobs_come(seen: int, timeout: float) -> int:
        await add_one(app)
        await app.settle_held([(first, Done())])
        return await wait(seen, timeout)

    monkeypatch.setattr(app.store, "wait", later_jobs_come)
    async with asyncio.timeout(SOON):
        drained = await app.drain(timeout=LONG)
    assert drained.status == "drained"
    assert (await app.store.backlog())[0] == 1


async def test_drain_of_one_queue_does_not_wait_for_others(app: Penstock) -> None:
    await add_one(app, queue="other")
    assert (await app.drain("default", timeout=LONG)).status == "drained"


async def test_drain_ends_with_its_timeout_and_says_what_is_left(app: Penstock) -> None:
    await app.enqueue_many([new()] * 3)
    drained = await app.drain(timeout=timedelta(milliseconds=10))
    assert (drained.status, drained.remaining) == ("timeout", 3)
    assert drained.elapsed >= timedelta(milliseconds=10)


async def test_drain_without_time_just_looks(app: Penstock) -> None:
    await add_one(app)
    assert (await app.drain(timeout=timedelta(0))).status == "timeout"


async def test_drain_ends_at_once_when_the_backlog_is_paused(app: Penstock) -> None:
    await app.enqueue_many([new(queue="a"), new(queue="b")])
    await app.pause("a")
    async with asyncio.timeout(SOON):
        drained = await app.drain("a", timeout=LONG)
    assert (drained.status, drained.remaining) == ("paused", 1)


async def test_drain_waits_for_running_jobs_of_a_paused_queue(app: Penstock) -> None:
    await add_one(app)
    job = await claim_one(app)
    await app.pause("default")
    draining = asyncio.create_task(app.drain(timeout=LONG))
    await asyncio.sleep(0)
    await app.settle([(job, Done())])
    async with asyncio.timeout(SOON):
        assert (await draining).status == "drained"


async def test_drain_sees_a_pause_that_comes_meanwhile(app: Penstock) -> None:
    await add_one(app)
    draining = asyncio.create_task(app.drain(timeout=LONG))
    await asyncio.sleep(0)
    await app.pause("default")
    async with asyncio.timeout(SOON):
        assert (await draining).status == "paused"


async def test_jobs_that_finish_while_drain_looks_are_drained_not_paused(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_one(app)
    job = await claim_one(app)
    queues = app.store.queues

    async def meanwhile(query: QueueQuery) -> list[Queue]:
        await app.settle_held([(job, Done())])
        return await queues(query)

    monkeypatch.setattr(app.store, "queues", meanwhile)
    assert (await app.drain(timeout=LONG)).status == "drained"


async def test_later_jobs_elsewhere_do_not_hide_that_the_backlog_is_paused(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.pause("a")
    await app.enqueue_many([new(queue="a"), new(queue="b")])
    [running] = await app.claim(worker="w", queues=["b"])
    wait = app.store.wait

    async def later_jobs_come(seen: int, timeout: float) -> int:
        await add_one(app, queue="b")
        await app.settle_held([(running, Done())])
        return await wait(seen, timeout)

    monkeypatch.setattr(app.store, "wait", later_jobs_come)
    drained = await app.drain(timeout=SOON * SECOND)
    assert (drained.status, drained.remaining) == ("paused", 1)


# Explaining


async def test_ready_job_waits_for_a_worker(app: Penstock) -> None:
    why = await app.explain((await add_one(app)).id)
    assert (why.reason, why.blocked_by) == ("ready", None)
    assert why.text == "it is ready; no free worker has claimed it yet"


async def test_scheduled_job_says_when_its_time_comes(app: Penstock) -> None:
    why = await app.explain((await add_one(app, delay=HOUR)).id)
    assert (why.reason, why.text) == ("scheduled", "its time comes at 2030-01-01 01:00:00 UTC")


async def test_job_that_is_tried_again_says_what_failed(app: Penstock) -> None:
    await add_one(app)
    [job] = await app.settle([(await claim_one(app), Failed("Traceback\nValueError: no"))])
    why = await app.explain(job.id)
    assert why.reason == "scheduled"
    assert why.text == (
        "its time comes at 2030-01-01 00:00:10 UTC, after attempt 1 of 2 failed: ValueError: no"
    )


async def test_blocked_job_names_who_holds_its_key(app: Penstock) -> None:
    first, second, third = await app.enqueue_many([new(key="k")] * 3)
    why = await app.explain(third.id)
    assert (why.reason, why.blocked_by) == ("blocked", first.id)
    assert why.text == f"job {first.id}, which is pending, holds its key 'k'"
    await app.claim(worker="w")
    why = await app.explain(second.id)
    assert (why.blocked_by, "running" in why.text) == (first.id, True)


async def test_job_whose_needs_end_while_it_is_explained(app: Penstock) -> None:
    first = await add_one(app)
    second = await add_one(app, after=(first.id,))
    await app.settle([((await claim_one(app)), Done())])
    assert (await app._explain_pending(second)).reason == "ready"


async def test_job_blocked_by_a_younger_one_that_runs_names_it(app: Penstock) -> None:
    old = await add_one(app, key="k")
    await app.cancel(old.id)
    young = await add_one(app, key="k")
    await claim_one(app)
    await app.retry(old.id)
    assert (await app.explain(old.id)).blocked_by == young.id


async def test_job_of_a_paused_queue_is_held(app: Penstock) -> None:
    job = await add_one(app, queue="mail")
    await app.pause("mail")
    why = await app.explain(job.id)
    assert (why.reason, why.text) == (
        "held",
        "queue 'mail' is paused; resume it to let its jobs go on",
    )


async def test_running_job_names_its_worker(app: Penstock) -> None:
    job = await add_one(app)
    await claim_one(app, "mill")
    why = await app.explain(job.id)
    text = "it runs on mill, attempt 1 of 2, leased until 2030-01-01 00:00:30 UTC"
    assert (why.reason, why.text) == ("running", text)
    await app.cancel(job.id)
    assert (await app.explain(job.id)).text == f"{text}; it was asked to stop"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Done(), "it finished at 2030-01-01 00:00:00 UTC"),
        (
            Failed("Traceback\nValueError: no", permanent=True),
            "it failed at 2030-01-01 00:00:00 UTC: ValueError: no",
        ),
        (Cancelled("why"), "it was cancelled at 2030-01-01 00:00:00 UTC: why"),
    ],
)
async def test_finished_job_says_how_it_ended(app: Penstock, outcome: Any, text: str) -> None:
    await add_one(app)
    [job] = await app.settle([(await claim_one(app), outcome)])
    why = await app.explain(job.id)
    assert (why.reason, why.text) == ("finished", text)


@pytest.mark.parametrize("error", ["", "\n", " \n\n"])
async def test_empty_error_can_be_explained(app: Penstock, error: str) -> None:
    await add_one(app)
    [job] = await app.settle([(await claim_one(app), Failed(error, permanent=True))])
    assert (await app.explain(job.id)).reason == "finished"


# The caller's own transaction


@pytest.fixture
def own(path: Path, file_app: Penstock) -> Iterator[sqlite3.Connection]:
    """The caller's connection to the same file."""
    run_sync(file_app.count())
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (name TEXT)")
    yield connection
    connection.close()


async def within(app: Penstock, connection: Any, **options: Any) -> Job:
    [job] = await app.enqueue_many([new(**options)], connection=connection)
    return job


async def test_job_becomes_visible_with_the_callers_commit(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    own.execute("INSERT INTO orders VALUES ('tea')")
    job = await within(file_app, own, tags=("x",), payload='{"n":1}')
    assert await file_app.find() == []
    own.commit()
    assert await file_app.get(job.id) == job
    assert await events_of(file_app, job) == [Event.ENQUEUED]
    assert (await file_app.count())["default", State.PENDING, Waiting.READY] == 1


async def test_job_is_gone_with_the_callers_rollback(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    own.execute("INSERT INTO orders VALUES ('tea')")
    await within(file_app, own)
    own.rollback()
    assert await file_app.find() == []
    assert await file_app.log() == []
    assert dict(await file_app.count()) == {}
    assert own.execute("SELECT count(*) FROM orders").fetchone() == (0,)


async def test_transaction_is_begun_for_a_connection_that_commits_by_hand(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    await within(file_app, own)
    assert own.in_transaction
    assert await file_app.find() == []
    own.commit()
    assert len(await file_app.find()) == 1


async def test_task_enqueues_in_the_callers_transaction(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    task = file_app.task("t", lambda n: None)
    await task.using(connection=own).enqueue(1)
    assert await file_app.find() == []
    own.commit()
    assert [job.args for job in await file_app.find()] == [{"n": 1}]


async def test_job_is_done_with_the_callers_commit(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    first, second = await file_app.enqueue_many([new(key="k")] * 2)
    job = await claim_one(file_app)
    done = await file_app.finish(job, Done('"ok"'), connection=own)
    assert (await file_app.get(first.id)).state is State.RUNNING
    own.commit()
    assert await file_app.get(first.id) == done
    assert (done.state, done.returned) == (State.DONE, "ok")
    assert await events_of(file_app, job) == [Event.ENQUEUED, Event.CLAIMED, Event.DONE]
    assert (await claim_one(file_app)).id == second.id


async def test_job_still_runs_after_the_callers_rollback(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    await file_app.enqueue_many([new()])
    job = await claim_one(file_app)
    await file_app.finish(job, connection=own)
    own.rollback()
    assert await file_app.get(job.id) == job


async def test_job_that_is_lost_cannot_be_finished(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    await file_app.enqueue_many([new()])
    job = await claim_one(file_app)
    await file_app.settle([(job, Done())])
    with pytest.raises(LeaseLost):
        await file_app.finish(job, connection=own)
    with pytest.raises(LeaseLost):
        await file_app.finish(replace(job, id=JobId(777)), connection=own)
    with pytest.raises(ConfigurationError, match=r"sqlite3\.Connection"):
        await file_app.finish(job, connection=object())


def test_synchronous_code_enqueues_in_its_own_transaction(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    with own:
        own.execute("INSERT INTO orders VALUES ('tea')")
        job = run_sync(within(file_app, own))
    assert run_sync(file_app.get(job.id)) == job


async def test_autocommit_without_a_transaction_is_refused(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    own.isolation_level = None
    with pytest.raises(ConfigurationError, match="begin a transaction first"):
        await within(file_app, own)
    assert await file_app.find() == []
    own.execute("BEGIN IMMEDIATE")
    await within(file_app, own)
    own.execute("COMMIT")
    assert len(await file_app.find()) == 1


async def test_connection_to_another_file_is_refused(
    file_app: Penstock, own: sqlite3.Connection, tmp_path: Path
) -> None:
    for other in (tmp_path / "other.db", ":memory:"):
        connection = sqlite3.connect(other)
        connection.execute("CREATE TABLE t (x)")
        with pytest.raises(ConfigurationError, match="connection"):
            await within(file_app, connection)
        connection.close()
    assert await file_app.find() == []


async def test_file_is_recognised_under_another_name(
    file_app: Penstock, own: sqlite3.Connection, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(path)
    connection = sqlite3.connect(tmp_path / "link.db")
    await within(file_app, connection)
    connection.commit()
    connection.close()
    assert len(await file_app.find()) == 1


@pytest.mark.parametrize("connection", ["jobs.db", object(), 0])
async def test_what_is_no_connection_is_refused(file_app: Penstock, connection: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite3\.Connection"):
        await within(file_app, connection)


async def test_memory_store_takes_no_connection(tmp_path: Path) -> None:
    app = Penstock("memory://")
    connection = sqlite3.connect(":memory:")
    with pytest.raises(ConfigurationError):
        await within(app, connection)
    connection.close()
    assert await app.find() == []


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip([column[0] for column in cursor.description], row, strict=True))


@pytest.mark.parametrize("row_factory", [sqlite3.Row, as_dict])
@pytest.mark.parametrize("text_factory", [str, bytes, lambda raw: raw.decode().upper()])
async def test_factories_of_the_connection_neither_disturb_nor_change(
    file_app: Penstock, own: sqlite3.Connection, row_factory: Any, text_factory: Any
) -> None:
    await file_app.limit("small", 1)
    first = await add_one(file_app, dedupe="d", key="k")
    own.row_factory, own.text_factory = row_factory, text_factory
    met = await within(file_app, own, dedupe="d")
    behind = await within(file_app, own, key="k", queue="small", tags=("x",))
    with pytest.raises(QueueFull):
        await within(file_app, own, queue="small")
    assert (own.row_factory, own.text_factory) == (row_factory, text_factory)
    own.commit()
    assert (met.id, met.duplicate) == (first.id, True)
    assert behind.waiting is Waiting.BLOCKED
    assert await file_app.get(behind.id) == behind


async def test_dedupe_sees_the_jobs_of_the_open_transaction(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    first = await within(file_app, own, dedupe="d", scope=Scope.PENDING)
    second = await within(file_app, own, dedupe="d", scope=Scope.PENDING)
    assert (second.id, second.duplicate) == (first.id, True)
    own.commit()
    assert len(await file_app.find()) == 1


async def test_invalid_job_leaves_the_callers_transaction_as_it_was(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    own.execute("INSERT INTO orders VALUES ('tea')")
    with pytest.raises(InvalidJob):
        await within(file_app, own, priority=99)
    own.commit()
    assert own.execute("SELECT name FROM orders").fetchall() == [("tea",)]
    assert await file_app.find() == []


async def test_full_queue_leaves_the_callers_transaction_as_it_was(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    await file_app.limit("default", 1)
    own.execute("INSERT INTO orders VALUES ('tea')")
    with pytest.raises(QueueFull):
        await file_app.enqueue_many([new()] * 2, connection=own)
    own.commit()
    assert own.execute("SELECT name FROM orders").fetchall() == [("tea",)]
    assert await file_app.find() == []


async def test_closed_connection_is_a_store_error(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    own.close()
    with pytest.raises(StoreError):
        await within(file_app, own)


async def test_waiting_worker_finds_the_job_after_the_commit(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    ran = asyncio.Event()

    async def note() -> None:
        ran.set()

    file_app.task("t", note)
    worker = Worker(file_app)
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        await within(file_app, own)
        own.commit()
        await ran.wait()
        worker.stop()


# After a fork


def fork(check: Callable[[], None]) -> int:
    """Run this in a forked child, whose exit code tells whether it went well."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing of pytest may run on in the child
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended_well(child: int) -> None:
    """Wait for a child, but not for ever."""
    pause = threading.Event()
    for _ in range(SOON * 100):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        pause.wait(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the forked child did not end")


def test_child_forked_before_the_store_was_opened_uses_it_like_any_process(
    file_app: Penstock,
) -> None:
    def check() -> None:
        job = run_sync(add_one(file_app, task="child"))
        assert run_sync(file_app.get(job.id)) == job
        run_sync(file_app.close())

    children = [fork(check) for _ in range(3)]
    run_sync(add_one(file_app))
    for child in children:
        ended_well(child)
    assert len(run_sync(file_app.find())) == 4


def test_child_forked_after_the_store_was_closed_uses_it_like_any_process(
    file_app: Penstock,
) -> None:
    run_sync(add_one(file_app))
    run_sync(file_app.close())

    def check() -> None:
        run_sync(add_one(file_app))

    ended_well(fork(check))
    assert len(run_sync(file_app.find())) == 2


def test_child_forked_while_the_store_was_open_is_refused(file_app: Penstock) -> None:
    """SQLite keeps its locks per process and file: a child would believe to have its parent's.

    The parent, closing last in its own eyes, would then remove the write-ahead log under the
    child, and with it what the child was told is stored.
    """
    run_sync(add_one(file_app))
    another = Penstock(file_app.url)

    def check() -> None:
        for app in (file_app, another):
            for call in (add_one(app), app.find(), app.claim(worker="child")):
                with pytest.raises(StoreError, match="fork"):
                    run_sync(call)

    ended_well(fork(check))
    assert len(run_sync(file_app.find())) == 1
    run_sync(add_one(file_app))
    assert len(run_sync(file_app.claim(worker="parent", limit=5))) == 2


def test_child_forked_while_other_threads_write_is_refused_and_does_not_hang(
    file_app: Penstock,
) -> None:
    """A lock that a thread of the parent held in that moment is never released in the child."""
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            run_sync(add_one(file_app))

    def check() -> None:
        with pytest.raises(StoreError, match="fork"):
            run_sync(add_one(file_app))
        run_sync(file_app.close())

    run_sync(add_one(file_app))
    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            ended_well(fork(check))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    run_sync(add_one(file_app))


def test_forked_child_that_only_closes_leaves_the_parent_alone(
    file_app: Penstock, path: Path
) -> None:
    seen = run_sync(file_app.store.wait(-1, 0))
    seen = run_sync(file_app.store.wait(seen, 0))
    [pipe] = path.with_name("jobs.db-bell").iterdir()
    ended_well(fork(lambda: run_sync(file_app.close())))
    assert pipe.exists()
    other = Penstock(file_app.url)
    run_sync(add_one(other))
    assert run_sync(file_app.store.wait(seen, SOON)) != seen
    run_sync(other.close())


def test_memory_of_the_parent_is_not_shared_with_a_forked_child() -> None:
    app = Penstock("memory://")
    run_sync(add_one(app))

    def check() -> None:
        with pytest.raises(StoreError, match="fork"):
            run_sync(add_one(app))

    ended_well(fork(check))


# What is asked for wrongly is said clearly


@pytest.mark.parametrize("wrong", [0, -1, 2**70, "x", 1.5, True, None])
async def test_limit_of_an_answer_is_checked(app: Penstock, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="a limit is a whole number from 1"):
        await app.claim(worker="w", limit=wrong)
    with pytest.raises(ConfigurationError, match="a limit is"):
        await app.log(limit=wrong)


@pytest.mark.parametrize("wrong", [-1, 2**70, "x", 1.5, True])
async def test_limit_of_a_queue_is_checked(app: Penstock, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="a limit is a whole number from 0"):
        await app.limit("q", wrong)


@pytest.mark.parametrize("wrong", [[1], [None], ["job"], 5, "jobs", None])
async def test_what_is_no_job_is_not_enqueued(app: Penstock, wrong: Any) -> None:
    with pytest.raises(InvalidJob, match="NewJob"):
        await app.enqueue_many(wrong)


@pytest.mark.parametrize("wrong", ["failed", ["odd"], 5, {"odd"}])
def test_states_of_a_query_are_checked(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="states is a collection of states"):
        JobQuery(states=wrong)


def test_states_of_a_query_may_be_any_collection() -> None:
    expected = JobQuery(states=frozenset({State.FAILED}))
    for states in ({State.FAILED}, [State.FAILED], ("failed",)):
        assert JobQuery(states=states) == expected  # type: ignore[arg-type] # any collection of states


@pytest.mark.parametrize("wrong", [datetime(2030, 1, 1), "yesterday", 5])  # noqa: DTZ001 - without a zone on purpose
def test_instant_of_a_query_is_checked(wrong: Any) -> None:
    for name in ("since", "before"):
        with pytest.raises(ConfigurationError, match=f"{name} .* time zone"):
            JobQuery(**{name: wrong})


async def test_log_of_an_unknown_job_is_not_found(app: Penstock, greet: Task[[str], str]) -> None:
    with pytest.raises(JobNotFound, match="no job 9999"):
        await app.log(9999)
    job = await greet.enqueue("Ada")
    assert await app.log(job.id, after=job.version) == []


def test_options_of_using_are_checked_at_once(app: Penstock, greet: Task[[str], str]) -> None:
    with pytest.raises(InvalidJob, match="priority"):
        greet.using(priority=11)
    with pytest.raises(InvalidJob, match="queue"):
        greet.using(queue="")
