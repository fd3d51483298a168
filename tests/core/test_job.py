import copy
import pickle
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.core.job import Job, JobId, Lease, LogId, NewJob, Retention, Scope, bind, headline
from penstock.core.lifecycle import FINAL, State, Waiting
from penstock.core.times import from_micros, span_from_micros, span_to_micros, to_micros
from penstock.engine.penstock import run_sync
from penstock.engine.sync import Sync

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = Job(
    id=JobId(1),
    version=LogId(2),
    task="t",
    payload='{"n":1,"text":"zoë"}',
    queue="q",
    priority=5,
    state=State.PENDING,
    waiting=Waiting.READY,
    attempt=0,
    enqueued_at=NOW,
    run_at=NOW,
    tags=("x",),
)


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        JOB.state = State.DONE  # type: ignore[misc] # is what is refused


def test_new_job_defaults() -> None:
    new = NewJob(task="t", payload="{}")
    assert (new.queue, new.priority, new.scope) == ("default", 5, Scope.UNFINISHED)
    assert (new.delay, new.run_at, new.key, new.dedupe, new.tags) == (None, None, None, None, ())
    assert (new.timeout, new.lease) == (None, timedelta(seconds=30))


def test_arguments_are_decoded() -> None:
    assert JOB.args == {"n": 1, "text": "zoë"}


def test_result_is_none_until_there_is_one() -> None:
    assert JOB.returned is None
    assert msgspec.structs.replace(JOB, result_json='{"rows":3}').returned == {"rows": 3}
    assert msgspec.structs.replace(JOB, result_json="null").returned is None


class Answering:
    """Waits for the end of a job, as a Penstock does."""

    async def result(self, job: Job, *, timeout: timedelta | None = None) -> object:
        return job.id, timeout

    @property
    def sync(self) -> Sync:
        return Sync(self)


def test_job_asks_its_source_for_its_result() -> None:
    (job,) = bind([msgspec.structs.replace(JOB)], Answering())
    assert run_sync(job.result(timeout=timedelta(1))) == (1, timedelta(1))
    assert run_sync(job.result()) == (1, None)
    assert job.sync.result(timeout=timedelta(1)) == (1, timedelta(1))


def test_source_of_a_job_is_not_part_of_its_value() -> None:
    (job,) = bind([msgspec.structs.replace(JOB)], Answering())
    assert job == JOB
    assert hash(job) == hash(JOB)
    assert repr(job) == repr(JOB)
    assert msgspec.json.encode(job) == msgspec.json.encode(JOB)
    assert msgspec.structs.asdict(job) == msgspec.structs.asdict(JOB)
    assert pickle.dumps(job) == pickle.dumps(JOB)
    with pytest.raises(AttributeError):
        job._results = Answering()


@pytest.mark.parametrize(
    "elsewhere",
    [
        msgspec.structs.replace,
        copy.copy,
        lambda job: pickle.loads(pickle.dumps(job)),  # noqa: S301 - its own
        lambda job: msgspec.json.decode(msgspec.json.encode(job), type=Job),
    ],
)
def test_job_from_elsewhere_says_how_to_wait_for_it(elsewhere: Callable[[Job], Job]) -> None:
    (job,) = bind([msgspec.structs.replace(JOB)], Answering())
    with pytest.raises(ConfigurationError, match=r"job 1 was not returned.*app\.result\(job\)"):
        run_sync(elsewhere(job).result())


def test_job_keeps_its_source_alive_and_no_longer() -> None:
    answering = Answering()
    seen = weakref.ref(answering)
    (job,) = bind([msgspec.structs.replace(JOB)], answering)
    del answering
    assert seen() is not None
    del job
    assert seen() is None


def test_lease_names_job_token_and_worker() -> None:
    held = msgspec.structs.replace(JOB, token=9, worker="w")
    assert held.lease == Lease(JobId(1), 9, "w")


def test_job_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(JOB), type=Job) == JOB


@pytest.mark.parametrize("state", sorted(FINAL))
def test_failed_jobs_are_kept_longer(state: State) -> None:
    days = 7 if state is State.FAILED else 1
    assert Retention().keeps(state) == timedelta(days=days)


@given(st.datetimes(datetime(1900, 1, 1), datetime(3000, 1, 1)))  # noqa: DTZ001 - made aware below
def test_instants_survive_counting(naive: datetime) -> None:
    instant = naive.replace(tzinfo=UTC)
    assert from_micros(to_micros(instant)) == instant
    assert from_micros(to_micros(instant)).utcoffset() == timedelta(0)


@given(st.timedeltas(timedelta(days=-400), timedelta(days=400)))
def test_durations_survive_counting(span: timedelta) -> None:
    assert span_from_micros(span_to_micros(span)) == span


def test_headline_says_what_an_error_is() -> None:
    assert headline("ValueError: a\nb\n\nTraceback (most recent call last):\n…") == "ValueError: a"
    assert headline("Traceback:\n  File\nKeyError: 'x'\n") == "KeyError: 'x'"
    assert headline("gone") == "gone"
    assert headline(None) == ""
