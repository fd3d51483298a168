"""Arguments and results arrive in the types of their annotations, wherever the handler runs."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock import JobFailed, JobQuery, NewJob, Penstock, State, run_sync
from penstock.client import RemotePenstock
from penstock.testing import assert_enqueued, inline
from tests.client.support import serving
from tests.worker import typed
from tests.worker.support import ONCE, work_off
from tests.worker.typed import VALUES, WAYS, same


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Penstock]:
    monkeypatch.setattr(typed.app.connection, "url", f"sqlite:///{tmp_path}/jobs.db")
    yield typed.app
    run_sync(typed.app.close())


async def test_values_of_every_kind_arrive_everywhere(app: Penstock) -> None:
    jobs = {
        (way, kind): await app.tasks[f"{way}.{kind}"].enqueue(value)
        for kind, (_, value) in VALUES.items()
        for way in WAYS
    }
    await work_off(app)
    failed = await app.find(JobQuery(states=[State.FAILED]))
    assert [(job.task, job.error) for job in failed] == []
    for (way, kind), job in jobs.items():
        result = await job.result()
        assert same(result, VALUES[kind][1]), (way, kind, result)
        assert same(await app.result(job.id), VALUES[kind][1])


@pytest.mark.parametrize("kind", VALUES)
def test_values_arrive_inline(app: Penstock, kind: str) -> None:
    value = VALUES[kind][1]
    with inline(app):
        job = run_sync(app.tasks[f"thread.{kind}"].enqueue(value))
        assert same(run_sync(job.result()), value)
        assert_enqueued(app, f"thread.{kind}", args={"value": value})


async def test_program_without_the_task_reads_plain_json(app: Penstock) -> None:
    job = await app.tasks["coroutine.model"].enqueue(VALUES["model"][1])
    await work_off(app)
    async with Penstock(app.url) as other:
        plain = {"items": [{"SKU": "a-1", "price": "1.10"}], "at": "2030-01-31T12:30:15.123456Z"}
        assert await other.result(job.id) == plain
        assert (await app.get(job.id)).returned == plain  # as it is stored
        assert (await app.get(job.id)).args == {"value": plain}


async def test_values_arrive_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typed.app
    with serving(tmp_path) as server:
        monkeypatch.setattr(app.connection, "url", server.store)
        remote = RemotePenstock(server.url)
        for kind, (_, value) in VALUES.items():
            task = app.tasks[f"coroutine.{kind}"]
            job = await remote.enqueue(task.name, {"value": plain(task.new(value))}, retry=ONCE)
            await work_off(app)
            assert same(await app.result(job.id), value), kind
            assert (await remote.get(job.id)).returned == plain(task.new(value))
        await remote.close()
        await app.close()


def plain(new: NewJob) -> Any:
    """The argument of a job, as a client in another language sends it."""
    return json.loads(new.payload)["value"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        ("decimal", '"a lot"', "value: must be a decimal number"),
        (
            "model",
            '{"items":[{"SKU":"","price":1}],"at":"x-secret"}',
            r"value: items.0.SKU: .*; at",
        ),
        ("either-model", '{"neither":"x-secret"}', "value: .*Order.items: Field required"),
        (
            "model-in-struct",
            '{"parcels":[{"item":{}}]}',
            r"value.parcels\[0\].item: SKU: Field req",
        ),
    ],
)
async def test_wrong_stored_argument_fails_its_job_for_good_and_is_named(
    app: Penstock, way: str, kind: str, wrong: str, said: str
) -> None:
    new = NewJob(task=f"{way}.{kind}", payload=f'{{"value":{wrong}}}')
    [job] = await app.enqueue_many([new])  # the retries of a new job, which are several
    await work_off(app)
    job = await app.get(job.id)
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert job.error is not None
    assert re.search(f"arguments of task {way}.{kind}: {said}", job.error), job.error
    assert "x-secret" not in job.error


@pytest.mark.parametrize("way", ["thread", "process"])
async def test_error_of_a_failed_job_carries_its_traceback(app: Penstock, way: str) -> None:
    job = await app.tasks[f"{way}.divide"].enqueue(0)
    await work_off(app)
    with pytest.raises(JobFailed, match="ZeroDivisionError") as failure:
        await job.result()
    assert "in divide\n    return 1 / by" in (failure.value.traceback or "")


async def test_handler_in_a_thread_makes_synchronous_calls(app: Penstock) -> None:
    job = await typed.fan_out.enqueue([Decimal("1.10")] * 3)
    await work_off(app)
    assert [await app.result(one) for one in await job.result()] == [Decimal("1.10")] * 3
