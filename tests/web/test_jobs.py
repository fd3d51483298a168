"""Jobs as JSON: every field of `Job` is sent and read again without being written down twice."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.client import shapes
from penstock.core.job import Job, JobId, LogEntry, LogId, Scope
from penstock.core.lifecycle import Event, State, Waiting
from penstock.core.retry import RetryPolicy
from penstock.core.secrets import HIDDEN, Secrets
from penstock.web import jobs

NOW = datetime(2030, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
JOB = Job(
    id=JobId(1),
    version=LogId(2),
    task="mail.send",
    payload='{"to":"ada","n":[1,2.5,null]}',
    queue="mail",
    priority=7,
    state=State.PENDING,
    waiting=Waiting.SCHEDULED,
    attempt=3,
    enqueued_at=NOW,
    run_at=NOW + timedelta(hours=1),
    key="ada",
    dedupe="once",
    scope=Scope.PENDING,
    tags=("a", "b"),
    retry=RetryPolicy(attempts=5, delay=timedelta(milliseconds=1500), factor=1.5, jitter=0.0),
    timeout=timedelta(minutes=1),
    lease_time=timedelta(seconds=12.5),
    correlation="c",
    tenant="t",
    parent=JobId(9),
    needs=2,
    throttle="api",
    trace="00-1-2-01",
    token=4,
    worker="host:1",
    started_at=NOW,
    expires_at=NOW,
    cancel_requested=True,
    finished_at=NOW,
    error="oops",
    result_json='{"sum":3}',
)
ENTRY = LogEntry(
    id=LogId(2),
    job_id=JobId(1),
    at=NOW,
    event=Event.FAILED,
    state=State.PENDING,
    actor="host:1",
    token=4,
    reason="because",
    error="oops",
    duration=timedelta(seconds=2),
    detail='{"exit":1}',
)


def sent(shape: msgspec.Struct) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(shape))
    return decoded


def test_job_is_sent_with_its_fields_in_their_order() -> None:
    text = msgspec.json.encode(jobs.job_shape(JOB, Secrets()))
    assert text == (
        b'{"id":1,"version":2,"task":"mail.send","args":{"to":"ada","n":[1,2.5,null]},'
        b'"queue":"mail","priority":7,"state":"pending","waiting":"scheduled","attempt":3,'
        b'"enqueued_at":"2030-01-01T12:00:00.250000Z","run_at":"2030-01-01T13:00:00.250000Z",'
        b'"key":"ada","dedupe":"once","scope":"pending","tags":["a","b"],'
        b'"retry":{"attempts":5,"delay":1.5,"factor":1.5,"max_delay":3600.0,"jitter":0.0},'
        b'"timeout":60.0,"lease_time":12.5,"correlation":"c","tenant":"t","parent":9,"needs":2,'
        b'"throttle":"api","trace":"00-1-2-01","task_version":1,"token":4,"worker":"host:1",'
        b'"started_at":"2030-01-01T12:00:00.250000Z","expires_at":"2030-01-01T12:00:00.250000Z",'
        b'"cancel_requested":true,"finished_at":"2030-01-01T12:00:00.250000Z","error":"oops",'
        b'"result":{"sum":3}}'
    )


def test_only_the_answer_to_an_enqueue_says_whether_it_is_a_duplicate() -> None:
    assert "duplicate" not in sent(jobs.job_shape(JOB, Secrets()))
    assert sent(jobs.enqueued_shape(JOB, Secrets()))["duplicate"] is False


def test_client_reads_the_job_that_the_server_has() -> None:
    assert shapes.job(sent(jobs.job_shape(JOB, Secrets()))) == JOB
    bare = msgspec.structs.replace(JOB, timeout=None, result_json=None, waiting=None)
    assert shapes.job(sent(jobs.job_shape(bare, Secrets()))) == bare


def test_client_reads_the_entry_that_the_server_has() -> None:
    assert shapes.entry(sent(jobs.log_shape(ENTRY))) == ENTRY
    bare = msgspec.structs.replace(ENTRY, duration=None, detail=None)
    assert shapes.entry(sent(jobs.log_shape(bare))) == bare


def test_secrets_are_hidden_in_arguments_and_results() -> None:
    job = msgspec.structs.replace(JOB, payload='{"password":"x"}', result_json='{"password":"y"}')
    found = sent(jobs.job_shape(job, Secrets(("password",))))
    assert found["args"] == found["result"] == {"password": HIDDEN}


@pytest.mark.parametrize("kind", [JOB, ENTRY], ids=["job", "entry"])
def test_every_field_reaches_the_wire(kind: Job | LogEntry) -> None:
    names = jobs.JSON_TEXTS[type(kind)]
    shape = jobs.JobShape if isinstance(kind, Job) else jobs.LogShape
    wanted = [names.get(name, name) for name in kind.__struct_fields__]
    assert list(shape.__struct_fields__) == wanted


def test_new_field_needs_no_line() -> None:
    class Later(Job, frozen=True, kw_only=True):
        pause: timedelta | None = None
        note: str = ""

    @jobs.derived_from(Later)
    class Shape(msgspec.Struct, frozen=True, kw_only=True):
        """A job of a later version."""

        note: int

    properties = msgspec.json.schema(Shape)["$defs"]["Shape"]["properties"]
    assert list(properties)[-2:] == ["pause", "note"]
    assert properties["pause"]["anyOf"] == [{"type": "number"}, {"type": "null"}]
    assert properties["note"] == {"type": "integer"}  # what is declared wins
