from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from penstock import (
    ConfigurationError,
    InvalidJob,
    Job,
    JobNotFound,
    JobQuery,
    NewJob,
    Penstock,
    RetryPolicy,
    State,
    TransitionRefused,
    run_sync,
)
from penstock.client import AsyncClient, Client, RemotePenstock
from penstock.errors import ServerUnreachable
from penstock.jobs import OnFailure, Scope
from penstock.leases import Done, Failed
from tests.client.support import Server, swallowing

pytest.importorskip("penstock.server.jobs", reason="the server has no routes for jobs yet")

SECOND = timedelta(seconds=1)


@pytest.fixture
def app(server: Server) -> Iterator[Penstock]:
    """The store itself, beside the server."""
    one = Penstock(server.store)
    yield one
    run_sync(one.close())


@pytest.fixture
def remote(server: Server) -> Iterator[RemotePenstock]:
    one = RemotePenstock(server.url, blocking=True)
    yield one
    run_sync(one.close())


def settle(app: Penstock, queue: str, outcome: Done | Failed) -> Job:
    (job,) = run_sync(app.leases.claim(worker="w", queues=[queue]))
    (settled,) = run_sync(app.leases.settle([(job, outcome)]))
    return settled


def test_synchronous_form_needs_no_event_loop(app: Penstock, remote: RemotePenstock) -> None:
    job = remote.sync.enqueue("t", {"n": 1}, queue="synchronous")
    assert remote.sync.get(job.id) == app.sync.get(job.id)
    assert remote.queues.sync.pause("synchronous").paused
    assert [one.id for one in remote.sync.find(JobQuery(queue="synchronous"))] == [job.id]
    assert remote.bulk(JobQuery(queue="synchronous")).sync.cancel().changed == 1
    tail = remote.sync.tail(after=0, job_id=job.id)
    assert [next(tail).state, next(tail).state] == [State.PENDING, State.CANCELLED]


async def test_synchronous_form_is_for_a_blocking_client(server: Server) -> None:
    remote = RemotePenstock(server.url)
    for part in (remote, remote.queues, remote.bulk(JobQuery())):
        with pytest.raises(ConfigurationError, match="create it with blocking=True"):
            _ = part.sync
    blocking = RemotePenstock(server.url, blocking=True)
    with pytest.raises(ConfigurationError, match="an event loop runs in this thread"):
        blocking.sync.find()
    await blocking.close()


def test_a_job_reads_the_same_through_the_server_in_all_its_fields(
    app: Penstock, remote: RemotePenstock
) -> None:
    asked = NewJob(
        task="mail.send",
        payload='{"to":"ada","n":[1,2.5,null]}',
        queue="fields",
        priority=7,
        run_at=datetime(2020, 1, 1, tzinfo=UTC),
        key="k",
        dedupe="d",
        scope=Scope.PENDING,
        tags=("a", "b"),
        retry=RetryPolicy(attempts=2, delay=SECOND, factor=1.5, max_delay=SECOND * 9, jitter=0.0),
        timeout=SECOND * 3,
        lease=SECOND * 4,
        correlation="c",
        tenant="t",
        throttle="th",
        on_failure=OnFailure.RUN,
    )
    (job,) = run_sync(remote.enqueue_many([asked]))
    stored = run_sync(app.get(job.id))
    assert job == stored
    failed = settle(app, "fields", Failed("no luck", detail='{"code":1}'))
    assert run_sync(remote.get(job.id)) == failed
    assert run_sync(remote.log(job.id)) == run_sync(app.log(job.id))
    assert run_sync(remote.explain(job.id)) == run_sync(app.explain(job.id))
    assert run_sync(remote.progress(job.id)) is None
    done = run_sync(remote.retry(job.id, "again"))
    assert (done.state, done.attempt) == (State.PENDING, 0)
    done = settle(app, "fields", Done(result='{"sent":true}'))
    assert run_sync(remote.get(job.id)).returned == {"sent": True}
    assert run_sync(remote.lines(job.id)) == []
    assert run_sync(remote.batch("c")).tally == {State.DONE: 1}


def test_pages_are_put_together(app: Penstock, remote: RemotePenstock) -> None:
    jobs = run_sync(
        app.enqueue_many([NewJob(task="t", payload="{}", queue="pages") for _ in range(1_203)])
    )
    every = run_sync(remote.find(JobQuery(queue="pages", limit=2_000)))
    assert [job.id for job in every] == [job.id for job in reversed(jobs)]
    some = run_sync(remote.find(JobQuery(queue="pages", limit=1_001, newest_first=False)))
    assert [job.id for job in some] == [job.id for job in jobs[:1_001]]


def test_a_query_is_asked_for_as_it_is(app: Penstock, remote: RemotePenstock) -> None:
    new = [
        NewJob(task="x", payload="{}", queue="ask", tags=("red", "big"), tenant="t/1 &?"),
        NewJob(task="y", payload="{}", queue="ask", tags=("blue",), key="Ä k"),
    ]
    x, y = run_sync(app.enqueue_many(new))
    for query, expected in (
        (JobQuery(queue="ask", tags=("red", "none")), [x]),
        (JobQuery(queue="ask", tenant="t/1 &?"), [x]),
        (JobQuery(key="Ä k"), [y]),
        (JobQuery(queue="ask", task="y", states=frozenset({State.PENDING, State.DONE})), [y]),
        (JobQuery(queue="ask", before=datetime(2020, 1, 1, tzinfo=UTC)), []),
        (JobQuery(queue="ask", since=datetime(2020, 1, 1, tzinfo=UTC), text="lu"), [y]),
        (JobQuery(queue="ask", cancel_requested=True), []),
        (JobQuery(queue="ask", after=y.id), [x]),
    ):
        assert run_sync(remote.find(query)) == run_sync(app.find(query)) == expected


def test_many_jobs_are_steered_by_a_query(app: Penstock, remote: RemotePenstock) -> None:
    run_sync(app.enqueue_many([NewJob(task="t", payload="{}", queue="many") for _ in range(5)]))
    query = JobQuery(queue="many")
    assert run_sync(remote.bulk(query).reprioritise(9, dry_run=True)).matched == 5
    assert run_sync(remote.bulk(query).reprioritise(9)).changed == 5
    told: list[object] = []
    cancelled = run_sync(remote.bulk(query).cancel(reason="enough", progress=told.append))
    assert (cancelled.changed, told) == (5, [cancelled])
    states = frozenset({State.CANCELLED})
    assert run_sync(remote.bulk(JobQuery(queue="many", states=states)).retry()).changed == 5
    run_sync(remote.bulk(query).cancel())
    assert run_sync(remote.bulk(query).delete()).changed == 5
    assert run_sync(app.find(query)) == []
    with pytest.raises(ConfigurationError, match="archive"):
        run_sync(remote.bulk(query).delete(archive="x.jsonl"))


def test_queues_are_looked_at_and_steered(app: Penstock, remote: RemotePenstock) -> None:
    run_sync(remote.enqueue("t", {"n": 1}, queue="steer/ed"))
    assert run_sync(remote.queues.pause("steer/ed")).paused
    drained = run_sync(remote.queues.drain("steer/ed", timeout=SECOND))
    assert (drained.status, drained.remaining) == ("paused", 1)
    still = run_sync(remote.queues.pause("steer/ed", duration=60 * SECOND))
    assert (still.paused, still.paused_until) == (True, None)  # it does not end earlier for that
    run_sync(remote.queues.resume("steer/ed"))
    held = run_sync(remote.queues.pause("steer/ed", duration=60 * SECOND))
    assert held.paused_until is not None
    assert held in run_sync(app.queues.list())
    assert not run_sync(remote.queues.resume("steer/ed")).paused
    limited = run_sync(
        remote.limits.queue("steer/ed", 5, concurrency=2, rate=(3, SECOND), promote_after=SECOND)
    )
    assert limited in run_sync(app.queues.list())
    aged = run_sync(remote.limits.queue("steer/ed", promote_after=(SECOND, 2 * SECOND)))
    assert aged.promote_after == (SECOND, 2 * SECOND)
    assert run_sync(remote.limits.queue("steer/ed", None)).max_pending is None
    assert run_sync(remote.queues.list()) == run_sync(app.queues.list())
    assert run_sync(remote.count()) == run_sync(app.count())
    with pytest.raises(ConfigurationError, match="name it"):
        run_sync(remote.queues.drain(timeout=SECOND))


def test_what_is_wrong_is_an_error_of_the_package(remote: RemotePenstock) -> None:
    with pytest.raises(JobNotFound):
        run_sync(remote.get(999_999))
    with pytest.raises(JobNotFound):
        run_sync(remote.log(999_999))
    job = run_sync(remote.enqueue("t", queue="wrong"))
    run_sync(remote.cancel(job.id))
    with pytest.raises(TransitionRefused):
        run_sync(remote.cancel(job.id))
    with pytest.raises(InvalidJob, match="queue"):
        run_sync(remote.enqueue("t", queue=""))
    with pytest.raises(InvalidJob, match="args is not JSON"):
        run_sync(remote.enqueue("t", {"x": object()}))
    with pytest.raises(InvalidJob, match="NewJob"):
        run_sync(remote.enqueue_many(["t"]))  # type: ignore[list-item] # that is the point


def test_an_enqueue_without_an_answer_is_repeated_and_stored_once(
    server: Server, app: Penstock
) -> None:
    with swallowing(server, answers=1) as proxy, Client(proxy.url) as client:
        job = client.enqueue("t", {"n": 1}, queue="lost")
        assert proxy.requests == 2
    assert [found.id for found in run_sync(app.find(JobQuery(queue="lost")))] == [job.id]


def test_a_job_that_supersedes_is_sent_once(server: Server, app: Penstock) -> None:
    with swallowing(server, answers=1) as proxy, Client(proxy.url) as client:
        with pytest.raises(ServerUnreachable):
            client.enqueue("t", queue="super", key="k", supersede=True)
        assert proxy.requests == 1
    assert len(run_sync(app.find(JobQuery(queue="super")))) == 1


async def test_the_async_client_reaches_jobs_as_well(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        job = await client.enqueue("t", {"n": 1}, queue="async")
        assert (await client.jobs.get(job.id)).args == {"n": 1}
