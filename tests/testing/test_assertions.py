from datetime import UTC, date, datetime
from unittest.mock import ANY

import pytest

from penstock import ConfigurationError, NewJob, Penstock, Task, run_sync
from penstock.testing import assert_enqueued, assert_not_enqueued, drain, enqueued
from tests.contract.support import HOUR


@pytest.fixture
def send(app: Penstock) -> Task[..., None]:
    def send(to: str, subject: str = "hello", on: date | None = None) -> None:
        pass

    return app.task("send", send)


def test_finds_by_task_arguments_and_fields(app: Penstock, send: Task[..., None]) -> None:
    mail = send.using(queue="mail", key="a", tags=["x", "y"], priority=7)
    job = run_sync(mail.enqueue("ann"))
    assert_enqueued(app, send)
    assert_enqueued(app, "send")
    assert_enqueued(app)
    assert_enqueued(app, send, args={"to": "ann"})
    [found] = assert_enqueued(
        app, send, args={"to": "ann"}, queue="mail", key="a", tags=["x", "y"], priority=7
    )
    assert found == job


@pytest.mark.parametrize(
    "wanted",
    [
        {"args": {"to": "bob"}},
        {"args": {"to": "ann", "subject": "other"}},
        {"args": {"cc": "ann"}},
        {"queue": "post"},
        {"key": "k"},
        {"tags": ["x"]},
        {"delay": HOUR},
    ],
)
def test_what_differs_is_not_found(
    app: Penstock, send: Task[..., None], wanted: dict[str, object]
) -> None:
    run_sync(send.enqueue("ann"))
    assert_not_enqueued(app, send, **wanted)  # type: ignore[arg-type] # options as data
    with pytest.raises(AssertionError):
        assert_enqueued(app, send, **wanted)  # type: ignore[arg-type] # options as data


def test_defaults_count_and_values_are_compared_as_stored(
    app: Penstock, send: Task[..., None]
) -> None:
    run_sync(send.enqueue("ann", on=date(2030, 1, 1)))
    assert_enqueued(app, send, args={"subject": "hello", "on": date(2030, 1, 1)})
    assert_enqueued(app, send, args={"on": "2030-01-01"})
    assert_enqueued(app, send, args={"on": ANY})
    run_sync(send.enqueue("bob"))
    assert_enqueued(app, send, args={"on": None})


def test_delay_and_run_at(app: Penstock, send: Task[..., None]) -> None:
    at = datetime(2040, 1, 1, tzinfo=UTC)
    run_sync(send.using(delay=HOUR).enqueue("ann"))
    run_sync(send.using(run_at=at).enqueue("bob"))
    assert_enqueued(app, send, args={"to": "ann"}, delay=HOUR)
    assert_enqueued(app, send, args={"to": "bob"}, run_at=at)


def test_finished_jobs_were_enqueued_as_well(app: Penstock, send: Task[..., None]) -> None:
    run_sync(send.enqueue("ann"))
    drain(app)
    assert_enqueued(app, send, args={"to": "ann"})


@pytest.mark.parametrize(
    ("times", "found"), [(0, "twice"), (1, "twice"), (2, None), (3, "twice"), (None, None)]
)
def test_counts(app: Penstock, send: Task[..., None], times: int | None, found: str | None) -> None:
    run_sync(app.enqueue_many([send.new("ann"), send.new("ann"), send.new("bob")]))
    if found is None:
        assert_enqueued(app, send, args={"to": "ann"}, times=times)
        return
    with pytest.raises(AssertionError, match=f"but found {found}"):
        assert_enqueued(app, send, args={"to": "ann"}, times=times)


def test_enqueued_lists_oldest_first(app: Penstock, send: Task[..., None]) -> None:
    run_sync(app.enqueue_many([send.new("ann"), send.new("bob"), send.new("ann")]))
    run_sync(app.enqueue_many([NewJob(task="elsewhere", payload='{"to":"ann"}')]))
    assert [job.args["to"] for job in enqueued(app, send)] == ["ann", "bob", "ann"]
    assert len(enqueued(app, args={"to": "ann"})) == 3
    assert len(enqueued(app, "elsewhere")) == 1


def test_failure_shows_near_misses_first(app: Penstock, send: Task[..., None]) -> None:
    other = app.task("other", lambda to: None)
    run_sync(other.using(queue="mail").enqueue("ann"))
    run_sync(send.enqueue("bob", subject="bye"))
    run_sync(send.using(queue="mail").enqueue("bob"))
    with pytest.raises(AssertionError) as raised:
        assert_enqueued(app, send, args={"to": "ann"}, queue="mail")
    default = "queue is 'default', not 'mail'"
    assert str(raised.value).splitlines() == [
        "expected send(to='ann') queue='mail' enqueued once, but found never",
        "what was enqueued, nearest first:",
        "  job 3: send(to='bob')  <- to is 'bob', not 'ann'",
        "  job 2: send(to='bob', subject='bye')  <- to is 'bob', not 'ann'; " + default,
        "  job 1: other(to='ann')  <- task is other",
    ]


def test_failure_of_a_negation_shows_what_was_there(app: Penstock, send: Task[..., None]) -> None:
    run_sync(send.enqueue("ann"))
    with pytest.raises(AssertionError, match=r"enqueued never, but found once\n.*\n.*<- matches"):
        assert_not_enqueued(app, send)


def test_failure_says_when_there_is_nothing(app: Penstock, send: Task[..., None]) -> None:
    with pytest.raises(AssertionError, match="nothing was enqueued at all"):
        assert_enqueued(app, send)


def test_long_failures_are_cut(app: Penstock, send: Task[..., None]) -> None:
    run_sync(app.enqueue_many([send.new("x" * 500) for _ in range(30)]))
    with pytest.raises(AssertionError, match="… and 20 more") as raised:
        assert_enqueued(app, send, args={"to": "ann"})
    assert "x" * 500 not in str(raised.value).split("<-", maxsplit=1)[0]


def test_no_job_is_overlooked_among_many(app: Penstock, send: Task[..., None]) -> None:
    run_sync(app.enqueue_many([send.new(str(n)) for n in range(2_100)]))
    assert len(enqueued(app, send)) == 2_100
    assert_enqueued(app, send, args={"to": "2099"})


def test_unknown_field_is_told(app: Penstock) -> None:
    with pytest.raises(ConfigurationError, match="jobs have no colour"):
        assert_enqueued(app, colour="red")


async def test_in_an_event_loop(app: Penstock, send: Task[..., None]) -> None:
    await send.enqueue("ann")
    assert_enqueued(app, send)
    assert_not_enqueued(app, send, queue="mail")
