"""`/metrics`, read by Prometheus' own parser, and the rules and dashboards that use it."""

import json
import random
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock import Job, NewJob, Penstock, RetryPolicy
from penstock.core.tasks import AnnouncedTask, KnownTasks
from penstock.core.workers import WorkerInfo
from penstock.leases import Done, Failed
from penstock.server.app import Service
from penstock.server.metrics import Family, Metrics, render
from penstock.server.request_metrics import RequestMetrics
from penstock.stores import open_store
from penstock.stores.observed import Timing, observe
from penstock.testing import Clock, faulty
from penstock.web.routes import routes_of

ROOT = Path(__file__).parents[2]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Return every sample by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


class Scraped:
    """A service whose metrics are read, and its store."""

    def __init__(self) -> None:
        self.clock = Clock()
        timings: dict[str, Timing] = {}
        self.app = Penstock(
            "memory://",
            clock=self.clock,
            opener=lambda *args, **given: observe(open_store(*args, **given), timings),
        )
        requests = RequestMetrics()
        metrics = Metrics(self.app, requests, timings, process=3)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(
                Service(self.app, [], routes_of(metrics), requests=requests)
            ),
            base_url="http://test",
        )

    async def text(self) -> str:
        answer = await self.http.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.text

    async def samples(self) -> Samples:
        return parsed(await self.text())

    async def run(self, *outcomes: Done | Failed) -> list[Job]:
        """Enqueue a job for each outcome, and run it."""
        once = RetryPolicy(attempts=1)
        await self.app.enqueue_many(
            [NewJob(task="t", payload="{}", queue="mail", retry=once) for _ in outcomes]
        )
        jobs = await self.app.leases.claim(worker="w", limit=len(outcomes))
        self.clock.advance(timedelta(seconds=3))
        return await self.app.leases.settle(list(zip(jobs, outcomes, strict=True)))


@pytest.fixture
async def scraped() -> AsyncIterator[Scraped]:
    scraped = Scraped()
    async with scraped.app, scraped.http:
        yield scraped


async def test_depths_by_queue_state_and_what_is_waited_for(scraped: Scraped) -> None:
    jobs = [
        NewJob(task="t", payload="{}"),
        NewJob(task="t", payload="{}", delay=timedelta(hours=1)),
        NewJob(task="t", payload="{}", key="k"),
        NewJob(task="t", payload="{}", key="k"),
    ]
    await scraped.app.enqueue_many(jobs)
    samples = await scraped.samples()
    pending = {"queue": "default", "state": "pending"}
    assert sample(samples, "penstock_jobs", **pending, waiting="ready") == 2
    assert sample(samples, "penstock_jobs", **pending, waiting="scheduled") == 1
    assert sample(samples, "penstock_jobs", **pending, waiting="blocked") == 1


async def test_oldest_ready_age_and_pause(scraped: Scraped) -> None:
    await scraped.app.enqueue_many([NewJob(task="t", payload="{}")])
    await scraped.app.queues.pause("default")
    scraped.clock.advance(timedelta(seconds=90))
    samples = await scraped.samples()
    assert sample(samples, "penstock_oldest_ready_seconds", queue="default") == 90
    assert sample(samples, "penstock_queue_paused", queue="default") == 1


async def test_counters_and_histograms_come_from_the_log(scraped: Scraped) -> None:
    await scraped.run(Done(), Done(), Failed("broken"))
    await scraped.app.statistics.roll_up()
    samples = await scraped.samples()
    for event, n in (("enqueued", 3), ("claimed", 3), ("done", 2), ("failed", 1)):
        assert sample(samples, "penstock_events_total", queue="mail", event=event) == n
    run = "penstock_job_run_seconds"
    assert sample(samples, f"{run}_count", queue="mail") == 3
    assert sample(samples, f"{run}_sum", queue="mail") == 9
    assert sample(samples, f"{run}_bucket", queue="mail", le="2.5") == 0
    assert sample(samples, f"{run}_bucket", queue="mail", le="5") == 3
    assert sample(samples, f"{run}_bucket", queue="mail", le="+Inf") == 3
    assert sample(samples, "penstock_job_wait_seconds_count", queue="mail") == 3


async def test_workers_and_their_leases(scraped: Scraped) -> None:
    now = scraped.clock.now
    await scraped.app.store.heartbeat([WorkerInfo(name="idle", host="h", seen_at=now)])
    await scraped.app.enqueue_many([NewJob(task="t", payload="{}")])
    scraped.clock.advance(timedelta(minutes=6))
    await scraped.app.leases.claim(worker="busy")
    samples = await scraped.samples()
    assert sample(samples, "penstock_workers", status="alive") == 1
    assert sample(samples, "penstock_workers", status="silent") == 1
    assert sample(samples, "penstock_worker_silence_seconds", worker="idle") == 360
    assert sample(samples, "penstock_worker_leases", worker="busy") == 1


async def test_jobs_that_wait_for_a_task_that_no_live_worker_knows(
    scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.metrics._NAMED_TASKS", 1)
    app, now = scraped.app, scraped.clock.now
    known = AnnouncedTask(name="known")
    await app.store.heartbeat([WorkerInfo(name="w", host="h", seen_at=now, tasks=(known,))])
    new = [NewJob(task="gone", payload="{}", task_version=n) for n in (2, 2, 1)]
    await app.enqueue_many([*new, NewJob(task="known", payload="{}")])
    assert await app.leases.claim(worker="w", limit=9, tasks=KnownTasks({})) == []
    samples = await scraped.samples()
    assert sample(samples, "penstock_unknown_task_jobs", task="gone", version="2") == 2
    assert sample(samples, "penstock_unknown_task_jobs", task="(other)", version="") == 1
    listed = (await scraped.http.get("/api/v1/workers")).json()["waiting_tasks"]
    assert [(one["task"], one["version"], one["jobs"]) for one in listed] == [
        ("gone", 1, 1),
        ("gone", 2, 2),
    ]
    assert listed[0]["text"] == "no live worker knows task 'gone'; no worker has announced it"


async def test_store_calls_and_requests_of_this_process(scraped: Scraped) -> None:
    await scraped.run(Done())
    await scraped.http.get("/nowhere", headers={"x": "y"})
    await scraped.http.request("BREW", "/metrics")
    await scraped.samples()
    samples = await scraped.samples()
    own = {"process": "3"}
    assert sample(samples, "penstock_store_call_seconds_count", verb="add", **own) == 1
    assert sample(samples, "penstock_store_call_seconds_sum", verb="add", **own) > 0
    assert sample(samples, "penstock_store_call_errors_total", verb="add", **own) == 0
    requests = "penstock_http_request_seconds_count"
    route = {"method": "GET", "route": "/metrics", "status": "200"}
    assert sample(samples, requests, **route, **own) == 1
    other = {"method": "other", "route": "other", "status": "404"}
    assert sample(samples, requests, **other, **own) == 1
    assert sample(samples, "process_cpu_seconds_total", **own) > 0
    assert not any("BREW" in str(key) for key in samples)


async def test_a_store_that_does_not_answer_is_told(scraped: Scraped) -> None:
    await scraped.app.enqueue_many([NewJob(task="t", payload="{}")])
    with faulty(scraped.app) as faults:
        faults.fail("count")
        samples = await scraped.samples()
    assert sample(samples, "penstock_store_up") == 0
    assert not any(name.startswith("penstock_jobs") for name, _ in samples)
    assert sample(await scraped.samples(), "penstock_store_up") == 1


def test_labels_are_escaped() -> None:
    family = Family("x", "gauge", "A metric.")
    wild = 'a "quoted"\n\\ name {}, é'
    family.add(1.5, {"queue": wild})
    assert parsed(render([family]).decode()) == {("x", frozenset({("queue", wild)})): 1.5}


# What stands on it


async def exported(scraped: Scraped) -> set[str]:
    """Return the names of all samples."""
    text = await scraped.text()
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    names = set(families)
    for name, kind in families.items():
        if kind in ("histogram", "summary"):
            names |= {f"{name}_sum", f"{name}_count", f"{name}_bucket"}
    return names


def named(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:penstock|process)_[a-z_]+", expression))


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


async def test_rules_name_metrics_that_exist_and_say_what_to_do(scraped: Scraped) -> None:
    known = await exported(scraped)
    for rule in rules():
        assert named(rule["expr"]) - known == set(), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
    assert len({rule["alert"] for rule in rules()}) == len(rules()) >= 8


async def test_dashboard_names_metrics_that_exist(scraped: Scraped) -> None:
    board = json.loads((ROOT / "deploy/grafana/penstock.json").read_text("utf-8"))
    expressions = [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
    ]
    assert len(expressions) >= 10
    known = await exported(scraped)
    for expression in expressions:
        assert named(expression)
        assert named(expression) - known == set(), expression
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


# Many queues


def by_queue(samples: Samples, name: str) -> dict[str, float]:
    """Return the samples of a metric, summed by queue."""
    found: dict[str, float] = {}
    for (metric, labels), value in samples.items():
        if metric == name:
            queue = dict(labels)["queue"]
            found[queue] = found.get(queue, 0) + value
    return found


async def test_queues_without_a_series_of_their_own_share_one(scraped: Scraped) -> None:
    await scraped.app.store.series(2)
    await scraped.app.enqueue_many(
        [NewJob(task="t", payload="{}", queue=f"q{n}") for n in range(5)]
    )
    await scraped.app.queues.pause("q1")
    await scraped.app.queues.pause("q3")
    await scraped.app.statistics.roll_up()
    scraped.clock.advance(timedelta(seconds=7))
    samples = await scraped.samples()
    assert by_queue(samples, "penstock_jobs") == {"q0": 1, "q1": 1, "(other)": 3}
    assert by_queue(samples, "penstock_events_total") == {"q0": 1, "q1": 1, "(other)": 3}
    assert by_queue(samples, "penstock_oldest_ready_seconds") == {"q0": 7, "q1": 7, "(other)": 7}
    assert by_queue(samples, "penstock_queue_paused") == {"q0": 0, "q1": 1, "(other)": 1}
    assert sample(samples, "penstock_queues") == 5


async def test_workers_beyond_so_many_share_a_series(
    scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.metrics._NAMED_WORKERS", 2)

    async def greet(*names: str) -> None:
        now = scraped.clock.now
        await scraped.app.store.heartbeat(
            [WorkerInfo(name=name, host="h", seen_at=now) for name in names]
        )

    async def shown() -> set[str]:
        samples = await scraped.samples()
        assert sum(name == "penstock_workers" for name, _ in samples) == 2
        return {
            dict(labels)["worker"]
            for name, labels in samples
            if name == "penstock_worker_silence_seconds"
        }

    await greet("m", "n", "(other)")
    assert await shown() == {"m", "n", "(other)"}
    await greet("a")  # it comes first by name, and yet takes nobody's place
    assert await shown() == {"m", "n", "(other)"}
    await scraped.app.store.deregister(["m", "(other)"])
    assert await shown() == {"a", "n"}


class Checker:
    """Scrapes the metrics, and compares each scrape with the one before.

    The counters of a queue go with it: only those of queues that were removed may be missing.
    """

    def __init__(self, url: str, most: int) -> None:
        self.app = Penstock(url)
        self.most = most
        self.before: Samples = {}
        metrics = Metrics(self.app, RequestMetrics(), {})
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(Service(self.app, [], routes_of(metrics))),
            base_url="http://test",
        )

    async def scrape(self, removed: set[str]) -> None:
        await self.app.statistics.roll_up()
        text = (await self.http.get("/metrics")).text
        samples = parsed(text)
        counted = {
            sample.name
            for family in text_string_to_metric_families(text)
            if family.type in {"counter", "histogram"}
            for sample in family.samples
        }
        for (name, labels), value in self.before.items():
            queue = dict(labels).get("queue")
            if name not in counted or queue is None or queue in removed:
                continue
            assert samples.get((name, labels), -1) >= value, (name, labels)
        shown = {dict(labels)["queue"] for name, labels in samples if "queue" in dict(labels)}
        assert len(shown) <= self.most + 1
        self.before = samples


def remove_queues(path: Path, names: set[str]) -> None:
    """Remove queues as if the last job of each had been removed."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for table in ("job", "total"):
            connection.executemany(
                f"DELETE FROM penstock_{table} WHERE queue = ?",  # noqa: S608 - a name of ours
                [(name,) for name in names],
            )
        connection.executemany("DELETE FROM penstock_queue WHERE name = ?", [(n,) for n in names])
        connection.execute("COMMIT")


async def test_no_counter_falls_and_series_stay_bounded_while_queues_come_and_go(
    tmp_path: Path,
) -> None:
    rng = random.Random(7)
    path = tmp_path / "jobs.db"
    limit = 5
    async with AsyncExitStack() as stack:
        checkers = [Checker(f"sqlite:///{path}", limit) for _ in range(2)]
        for checker in checkers:
            await stack.enter_async_context(checker.app)
            await stack.enter_async_context(checker.http)
        app = checkers[0].app
        await app.store.series(limit)
        names = [f"q{n}" for n in range(25)]
        removed: set[str] = set()
        for turn in range(40):
            chosen = rng.sample(names, 4)
            await app.enqueue_many([NewJob(task="t", payload="{}", queue=one) for one in chosen])
            claimed = await app.leases.claim(worker="w", limit=3)
            await app.leases.settle([(job, Done()) for job in claimed])
            if turn % 5 == 4:
                removed = set(rng.sample(names, 6))
                remove_queues(path, removed)
            for checker in checkers:
                await checker.scrape(removed)
            removed = set()
        assert "(other)" in by_queue(checkers[0].before, "penstock_events_total")
