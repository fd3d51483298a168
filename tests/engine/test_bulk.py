"""Changes of all jobs that match a query."""

from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConfigurationError,
    InvalidJob,
    Job,
    JobQuery,
    Penstock,
    State,
    run_sync,
)
from penstock.core.job import JobId
from penstock.engine.bulk import Bulk
from penstock.jobs import Event, Waiting
from tests.contract.support import HOUR, ManualClock, ids, new
from tests.engine.support import FAILED, NOTHING, Rival, enqueue, fail, finish, states

pytestmark = pytest.mark.usefixtures("small_portions")


# By filter


async def test_cancel_all_ends_pending_and_asks_running_jobs(app: Penstock) -> None:
    await enqueue(app, 5, queue="a")
    await enqueue(app, 2, queue="b")
    await app.leases.claim(worker="w", limit=2, queues=["a"])
    seen: list[Bulk] = []
    done = await app.bulk(JobQuery(queue="a")).cancel(reason="enough", progress=seen.append)
    assert done == Bulk(matched=5, changed=5, skipped=0)
    assert [bulk.changed for bulk in seen] == [2, 4, 5]
    assert await states(app) == [State.RUNNING] * 2 + [State.CANCELLED] * 3 + [State.PENDING] * 2
    entry = (await app.log(5))[-1]
    assert (entry.event, entry.actor, entry.reason) == (Event.CANCELLED, "tester", "enough")
    again = await app.bulk(JobQuery(queue="a")).cancel()
    assert again == Bulk(matched=2, changed=0, skipped=2)
    assert len(await app.log(1)) == 3


async def test_cancelling_a_key_lets_none_of_its_jobs_become_visible(app: Penstock) -> None:
    await enqueue(app, 7, key="k")
    taken: list[Job] = []

    class Thief(Rival):
        calls = 0

        async def act(self) -> None:
            self.acted = False  # every time
            self.calls += 1
            if self.calls > 1:  # between two portions
                taken.extend(await self.app.leases.claim(worker="thief"))

    with pytest.MonkeyPatch.context() as patch:
        Thief(app, "transition", patch)
        await app.bulk(JobQuery(key="k")).cancel()
    assert ids(taken) == [1]


async def test_retry_all_is_about_failed_jobs_unless_others_are_named(app: Penstock) -> None:
    await enqueue(app, 3)
    for _ in range(2):
        await fail(app)
    await app.cancel(3)
    await enqueue(app, 1, delay=HOUR)
    assert await app.bulk(JobQuery()).retry() == Bulk(matched=2, changed=2)
    assert await app.bulk(JobQuery(states=frozenset({State.CANCELLED}))).retry() == Bulk(
        matched=1, changed=1
    )
    assert (await app.get(4)).waiting is Waiting.SCHEDULED
    assert ids(await app.leases.claim(worker="w", limit=9)) == [1, 2, 3]


async def test_filter_by_error_and_age(app: Penstock, clock: ManualClock) -> None:
    await enqueue(app, 3)
    await fail(app, "KeyError: 1")
    await fail(app, "ValueError")
    clock.advance(HOUR)
    await fail(app, "KeyError: 2")
    assert await app.bulk(JobQuery(error="KeyError")).count() == 2
    old = JobQuery(error="KeyError", before=clock.now)
    assert await app.bulk(old).retry(dry_run=True) == Bulk(matched=1)
    assert await states(app) == [State.FAILED] * 3
    await app.bulk(old).retry()
    assert await states(app) == [State.PENDING, State.FAILED, State.FAILED]


async def test_job_whose_dedupe_key_is_held_does_not_keep_others_from_being_retried(
    app: Penstock,
) -> None:
    for n in range(5):
        await enqueue(app, dedupe="d" if n in (1, 2) else f"other {n}")
        await fail(app)
    done = await app.bulk(JobQuery(states=FAILED)).retry()
    assert done == Bulk(matched=5, changed=4, skipped=1)
    assert (await states(app)).count(State.FAILED) == 1


async def test_reprioritise_changes_the_order_of_claims(app: Penstock) -> None:
    await enqueue(app, 3, queue="a", tags=("x",))
    await enqueue(app, 3, queue="b", tags=("x",))
    running = await app.leases.claim(worker="w", queues=["b"])
    assert await app.bulk(JobQuery(queue="b")).reprioritise(9) == Bulk(matched=2, changed=2)
    assert await app.bulk(JobQuery(queue="b")).reprioritise(9) == Bulk(matched=2, skipped=2)
    assert ids(await app.leases.claim(worker="w", limit=9, tags=["x"])) == [5, 6, 1, 2, 3]
    assert (await app.get(running[0].id)).priority == 5


@pytest.mark.parametrize("wrong", [11, -1, "9", True, 1.0])
async def test_priority_is_checked(app: Penstock, wrong: Any) -> None:
    with pytest.raises(InvalidJob, match="priority"):
        await app.bulk(JobQuery()).reprioritise(wrong)


async def test_delete_all_removes_finished_jobs_only(app: Penstock) -> None:
    await enqueue(app, 6)
    await finish(app, 3)
    (running,) = await app.leases.claim(worker="w")
    assert await app.bulk(JobQuery()).delete(dry_run=True) == Bulk(matched=3)
    assert await app.bulk(JobQuery()).delete() == Bulk(matched=3, changed=3)
    assert ids(await app.find(JobQuery(newest_first=False))) == [running.id, 5, 6]
    with pytest.raises(ConfigurationError, match="cancel unfinished ones first"):
        await app.bulk(JobQuery(states=frozenset({State.DONE, State.PENDING}))).delete()


async def test_verb_refuses_a_query_for_jobs_it_is_not_about(app: Penstock) -> None:
    with pytest.raises(ConfigurationError, match="pending and running jobs, not to failed"):
        await app.bulk(JobQuery(states=FAILED)).cancel()
    with pytest.raises(ConfigurationError, match="retry applies to"):
        await app.bulk(JobQuery(states=frozenset({State.DONE}))).retry()
    with pytest.raises(ConfigurationError, match="reprioritise"):
        await app.bulk(JobQuery(states=FAILED)).reprioritise(1)


async def test_paging_of_the_query_does_not_count(app: Penstock) -> None:
    await enqueue(app, 5)
    page = JobQuery(limit=1, after=JobId(3), newest_first=False)
    assert await app.bulk(page).count() == 5
    assert (await app.bulk(page).cancel()).changed == 5


async def test_jobs_that_come_meanwhile_are_left_alone(app: Penstock) -> None:
    await enqueue(app, 5)
    for verb in (
        app.bulk(JobQuery()).reprioritise(9, progress=lambda _: None),
        app.bulk(JobQuery()).cancel(),
    ):

        class Producer(Rival):
            async def act(self) -> None:
                self.acted = False  # every time
                await enqueue(self.app)

        with pytest.MonkeyPatch.context() as patch:
            Producer(app, "transition", patch)
            assert (await verb).changed in (5, 8)
    assert (await app.count())["default", State.PENDING, Waiting.READY] == 4


async def test_job_that_changed_meanwhile_is_decided_anew(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue(app, 3)

    class Worker(Rival):
        async def act(self) -> None:
            await self.app.leases.claim(worker="w")

    Worker(app, "transition", monkeypatch)
    assert await app.bulk(JobQuery()).cancel() == Bulk(matched=3, changed=3)
    job = await app.get(1)
    assert (job.state, job.cancel_requested) == (State.RUNNING, True)


async def test_job_that_no_longer_fits_is_skipped(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue(app, 3)

    class Worker(Rival):
        async def act(self) -> None:
            await self.app.leases.claim(worker="w")

    Worker(app, "transition", monkeypatch)
    assert await app.bulk(JobQuery()).reprioritise(9) == Bulk(matched=3, changed=2, skipped=1)
    assert (await app.get(1)).priority == 5


async def test_job_that_is_retried_while_it_is_deleted_stays(
    app: Penstock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await enqueue(app, 3)
    for _ in range(3):
        await fail(app)

    class Person(Rival):
        async def act(self) -> None:
            await self.app.retry(2)

    Person(app, "delete", monkeypatch)
    done = await app.bulk(JobQuery()).delete(archive=tmp_path / "a.jsonl.gz")
    assert done == Bulk(matched=3, changed=2, skipped=1)
    assert (await app.get(2)).state is State.PENDING


def test_bulk_works_without_an_event_loop(app: Penstock, tmp_path: Path) -> None:
    run_sync(app.enqueue_many([new()] * 5))
    assert run_sync(app.bulk(JobQuery()).cancel()).changed == 5
    assert run_sync(app.bulk(JobQuery(states=frozenset({State.CANCELLED}))).retry()).changed == 5
    assert run_sync(app.bulk(JobQuery()).reprioritise(1)).changed == 5
    assert run_sync(app.archive.export(tmp_path / "jobs.jsonl")).changed == 5
    assert run_sync(app.archive.import_(tmp_path / "jobs.jsonl")).skipped == 5
    run_sync(app.bulk(JobQuery()).cancel())
    assert run_sync(app.archive.prune(NOTHING, archive=tmp_path / "old.jsonl")).changed == 0
    assert run_sync(app.bulk(JobQuery()).delete(archive=tmp_path / "old.jsonl")).changed == 5
