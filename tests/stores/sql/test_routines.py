"""Where SQL decides, it decides as the core does: generated histories through both."""

import json
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.core.errors import TransitionRefused
from penstock.core.job import DEFAULT_LEASE, Claim, Job, JobId, NewJob, OnFailure, Scope
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Expired,
    Failed,
    Move,
    Outcome,
    Snoozed,
    State,
    advance,
    cancel,
    reprioritise,
    reset,
)
from penstock.core.query import JobQuery
from penstock.core.store import Store
from penstock.core.tasks import KnownTasks
from penstock.core.times import span_to_micros, to_micros
from penstock.core.transition import Change
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests import tiers
from tests.contract.support import (
    SHARED,
    STEADY,
    STORES,
    ManualClock,
    add_one,
    drive,
    new,
    settle,
    tables_of,
    take,
    take_one,
)
from tests.stores.filled import PAGES

NOBODY = Claim(worker="nobody", limit=1, queues=("none",))
STEPS = [
    "add",
    "follow",
    "insert",
    "claim",
    "done",
    "fail",
    "give up",
    "release",
    "expire",
    "cancel",
    "reset",
    "prefer",
]
RETRY = '{"attempts":2,"delay":"PT10S","factor":1.0,"jitter":0.0}'


class Refused(Exception):
    """The database did not do what was asked for."""


class Sqlite:
    """The verbs of SQLite: rows for views."""

    def __init__(self, url: str) -> None:
        self.connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)

    def add(self, at: int, **columns: object) -> None:
        self._insert("penstock_add", at=at, **columns)

    def call(self, at: int, verb: str, job: Job, **columns: object) -> None:
        self._insert("penstock_call", at=at, verb=verb, job_id=job.id, **columns)

    def insert(self, at: int, page: int) -> None:
        self.connection.execute("INSERT INTO page (id, at) VALUES (?, ?)", (page, at))
        self.connection.execute("DELETE FROM penstock_newcomer")

    def _insert(self, view: str, **columns: object) -> None:
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        try:
            self.connection.execute(
                f"INSERT INTO {view} ({names}) VALUES ({marks})",  # noqa: S608 - the test's own
                [*columns.values()],
            )
        except sqlite3.IntegrityError as error:
            raise Refused(str(error)) from error


class Postgres:
    """The verbs of PostgreSQL: functions, which have the time from a variable of the session."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url.partition("?")[0], autocommit=True)
        schema = dict(parse_qsl(urlsplit(url).query))["schema"]
        self._run(f"SET search_path = {schema}")
        for name in ("now()", "enter(integer)"):
            self._run(self._on_time(name))

    def _on_time(self, name: str) -> str:
        [[text]] = self._run("SELECT pg_get_functiondef(%s::regprocedure)", name)
        given = "to_timestamp(nullif(current_setting('test.at', true), '')::bigint / 1e6)"
        real = "clock_timestamp()"
        return str(text) if given in text else text.replace(real, f"coalesce({given}, {real})")

    def _run(self, sql: str, *parameters: object) -> list[Any]:
        try:
            found = self.connection.execute(sql.encode(), parameters)
        except psycopg.errors.RaiseException as error:
            raise Refused(str(error)) from error
        return found.fetchall() if found.description else []

    def add(self, at: int, **columns: object) -> None:
        body = {"body": "{}", "lease_time": span_to_micros(DEFAULT_LEASE), **columns}
        self._run("SELECT set_config('test.at', %s, false)", str(at))
        [last] = self._run("SELECT last_value, is_called FROM job_id")
        try:
            self._run("SELECT call_add(%s, 'sql')", json.dumps(body))
        except Refused:
            self._run("SELECT setval('job_id', %s, %s)", *last)  # for the same ids as the model's
            raise

    def insert(self, at: int, page: int) -> None:
        self._run("SELECT set_config('test.at', %s, false)", str(at))
        self._run("INSERT INTO page (id, at) VALUES (%s, %s)", page, at)
        self._run("SELECT adopt()")

    def call(self, at: int, verb: str, job: Job, **columns: object) -> None:
        given = columns.get
        self._run("SELECT set_config('test.at', %s, false)", str(at))
        if verb == "claim":
            done = self._run("SELECT call_claim(%s, %s, NULL)", job.id, given("worker"))
        elif verb in ("cancel", "reset", "reprioritise"):
            done = self._run(
                "SELECT call_steer(%s, %s, %s, %s, %s)",
                *(verb, job.id, given("priority"), given("reason"), given("actor")),
            )
        else:
            done = self._run(
                "SELECT call_settle(%s, %s, %s, %s, %s, %s)",
                *(verb, job.id, given("run_at"), given("error"), bool(given("permanent"))),
                given("actor"),
            )
        if not done[0][0]:
            raise Refused(verb)


class Twins:
    """A store that is driven in Python, and one that is driven in SQL."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        # Before now: SQL has its own clock, and would not take what lies in the future.
        self.clock.advance(timedelta(days=-3650))
        self.model: Store = open_store("memory://", runtime=Runtime(self.clock))
        self.store: Store = open_store(url, runtime=Runtime(self.clock))
        drive(tables_of(self.store).prepare_tables("pages", PAGES))
        self.sql = Sqlite(url) if url.startswith("sqlite") else Postgres(url)

    def close(self) -> None:
        self.sql.connection.close()
        drive(self.store.close())

    def call(self, verb: str, job: Job, **columns: object) -> None:
        self.sql.call(self.clock(), verb, job, **columns)

    def jobs(self, *states: State) -> list[Job]:
        found = drive(self.model.find(JobQuery(newest_first=False, limit=1000)))
        return [job for job in found if job.state in states]

    def running(self, store: Store) -> list[Job]:
        query = JobQuery(states=frozenset({State.RUNNING}), newest_first=False, limit=1000)
        return drive(store.find(query))

    def add(self, key: str | None, dedupe: str | None, priority: int) -> None:
        job = new(key=key, dedupe=dedupe, scope=Scope.UNFINISHED, priority=priority)
        [added] = drive(self.model.add([job], actor="sql"))
        columns = {"queue": "default", "task": "t", "priority": priority, "retry": RETRY}
        with pytest.raises(Refused) if added.duplicate else nullcontext():
            self.sql.add(self.clock(), **columns, key=key, dedupe=dedupe)

    def follow(self, key: str | None, pick: int) -> None:
        """Add a job that needs another, in Python: SQL has no verb for that, but ends both."""
        jobs = self.jobs(*State)
        if jobs:
            needed, how = jobs[pick % len(jobs)].id, [*OnFailure][pick % len(OnFailure)]
            for store in (self.model, self.store):
                job = new(key=key, after=(needed,), on_failure=how)
                drive(store.add([job], actor="p"))

    def insert(self) -> None:
        """Another program inserts a row, which becomes a job."""
        page = NewJob(task="render", queue="pages", payload="{}", key="page")
        [job] = drive(self.model.add([page], actor="sql"))
        self.sql.insert(self.clock(), job.id)

    def claim(self) -> None:
        for job in drive(self.model.claim(Claim(worker="w", limit=1))):
            self.call("claim", job, worker="w")

    def settle(self, job: Job, outcome: Outcome, verb: str, **columns: Any) -> None:
        moved = self.move(job, advance(job, outcome, 0.0))
        if moved.state is State.PENDING:
            columns["run_at"] = to_micros(moved.run_at)
        self.call(verb, job, actor="sql", **columns)

    def move(self, job: Job, step: Move) -> Job:
        [moved] = drive(self.model.transition([Change(job, step)], actor="sql"))
        assert moved is not None
        return moved

    def step(self, what: str, pick: int, key: str | None, dedupe: str | None) -> None:
        if what == "add":
            return self.add(key, dedupe, pick % 11)
        if what == "follow":
            return self.follow(key, pick)
        if what == "insert":
            return self.insert()
        if what == "claim":
            return self.claim()
        states = [State.RUNNING] if STEPS.index(what) < STEPS.index("cancel") else list(State)
        jobs = self.jobs(*states)
        if jobs:
            self.change(what, jobs[pick % len(jobs)], pick % 11)
        return None

    def change(self, what: str, job: Job, priority: int) -> None:
        if what == "done":
            self.settle(job, Done(), "done")
        elif what == "fail":
            self.settle(job, Failed("oh"), "fail", error="oh")
        elif what == "give up":
            self.settle(job, Failed("no", permanent=True), "fail", error="no", permanent=1)
        elif what == "release":
            self.settle(job, Snoozed(timedelta(seconds=5)), "release")
        elif what == "expire":
            self.clock.advance(timedelta(minutes=2))
            self.settle(job, Expired(), "expire")
        else:
            self.steer(what, job, priority)

    def steer(self, what: str, job: Job, priority: int) -> None:
        moves: dict[str, tuple[Callable[[], Move], str, dict[str, object]]] = {
            "cancel": (lambda: cancel(job, "no"), "cancel", {"reason": "no"}),
            "reset": (lambda: reset(job, "again"), "reset", {"reason": "again"}),
            "prefer": (lambda: reprioritise(job, priority), "reprioritise", {"priority": priority}),
        }
        decide, verb, columns = moves[what]
        if what == "reset" and job.key is not None and job.needs:
            with pytest.raises(Refused):  # left to Python: it might wait for itself
                self.call(verb, job, actor="sql", **columns)
            return
        try:
            self.move(job, decide())
        except TransitionRefused:
            with pytest.raises(Refused):
                self.call(verb, job, actor="sql", **columns)
        else:
            self.call(verb, job, actor="sql", **columns)

    def check(self) -> None:
        """What has fallen due is let in on both sides; then they are the same."""
        for store in (self.model, self.store):
            drive(store.claim(NOBODY))
        seen = [self._seen(store) for store in (self.model, self.store)]
        assert seen[0] == seen[1]

    def _seen(self, store: Store) -> tuple[Any, ...]:
        jobs = drive(store.find(JobQuery(newest_first=False, limit=1000)))
        totals = {place: n for place, n in drive(store.count()).items() if n}
        log = drive(store.log())
        # PostgreSQL leaves numbers out.
        number: dict[int | None, int] = {entry.id: n for n, entry in enumerate(log, 1)}
        return (
            [
                replace(
                    job,
                    retry=STEADY,
                    payload="{}",  # databases write JSON with other spaces
                    version=number[job.version],
                    token=number.get(job.token, 0),
                )
                for job in jobs
            ],
            totals,
            [replace(one, id=number[one.id], token=number.get(one.token)) for one in log],
        )


@pytest.mark.parametrize("name", SHARED)
@settings(max_examples=tiers.amount(10, 25))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([*STEPS, "add", "claim", "claim"]),  # or little would ever run
            st.integers(0, 50),
            st.sampled_from([None, "a", "b"]),
            st.sampled_from([None, None, "x", "y"]),
        ),
        min_size=15,
        max_size=40,
    )
)
def test_sql_does_what_python_does(
    name: str, steps: list[tuple[str, int, str | None, str | None]]
) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        twins = stack.enter_context(closing(Twins(STORES[name](folder))))
        for what, pick, key, dedupe in steps:
            twins.clock.advance(timedelta(seconds=1))
            twins.step(what, pick, key, dedupe)
            twins.check()


OUTCOMES: list[Outcome] = [
    Done(),
    Done("7"),
    Failed("oh"),
    Failed("no", permanent=True),
    Snoozed(timedelta(seconds=5)),
    Cancelled("no"),
]
PLAIN = [
    NewJob(task="t", payload="{}"),
    new(queue="other", priority=7, lease=timedelta(seconds=7)),
    new(
        timeout=timedelta(seconds=9),
        correlation="batch",
        parent=JobId(1),
        trace=f"00-{'ab' * 16}-{'cd' * 8}-01",
    ),
]


@pytest.mark.parametrize("name", SHARED)
@settings(max_examples=tiers.amount(10, 25))
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 4), st.sampled_from([None, 0, 5])),
            st.tuples(st.just("add one"), st.just(1), st.sampled_from(PLAIN)),
            st.tuples(st.just("claim"), st.integers(1, 4), st.none()),
            st.tuples(st.just("settle"), st.integers(0, 50), st.sampled_from(OUTCOMES)),
        ),
        min_size=10,
        max_size=30,
    )
)
def test_plain_jobs_live_as_the_core_decides(name: str, steps: list[tuple[str, int, Any]]) -> None:
    """Jobs without a key, dedupe key or dependency, each step of which is one statement."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        twins = stack.enter_context(closing(Twins(STORES[name](folder))))
        stores = (twins.model, twins.store)
        for what, n, given in steps:
            twins.clock.advance(timedelta(seconds=1))
            running = [twins.running(store) for store in stores]
            assert len(running[0]) == len(running[1])
            for store, jobs in zip(stores, running, strict=True):
                if what == "add":
                    delay = None if given is None else timedelta(seconds=given)
                    drive(store.add([new(delay=delay)] * n, actor="p"))
                elif what == "add one":
                    drive(store.add([given], actor="p"))
                elif what == "claim":
                    drive(store.claim(Claim(worker="w", limit=n)))
                elif jobs:
                    job = jobs[n % len(jobs)]
                    drive(store.transition([Change(job, advance(job, given, 0.0))], actor="w"))
            twins.check()


@pytest.fixture
def twins(tmp_path: Path) -> Any:
    with closing(Twins(STORES["sqlite"](tmp_path))) as opened:
        yield opened


def test_program_may_claim_a_job_whose_task_no_worker_knows(twins: Twins) -> None:
    store = twins.store
    job = drive(add_one(store))
    assert drive(take(store, tasks=KnownTasks({}))) == []
    twins.call("claim", job, worker="me")
    [found] = drive(store.get([job.id]))
    assert (found.state, found.worker) == (State.RUNNING, "me")


def test_dependents_are_released_by_the_next_claim(twins: Twins) -> None:
    store = twins.store
    first = drive(add_one(store))
    freed, lost = (
        drive(add_one(store, after=(first.id,), on_failure=how))
        for how in (OnFailure.RUN, OnFailure.CANCEL)
    )
    held = drive(take_one(store))
    twins.call("fail", held, error="no", permanent=1)
    assert [job.id for job in drive(store.claim(Claim(worker="w", limit=5)))] == [freed.id]
    [found] = drive(store.get([lost.id]))
    assert found.state is State.CANCELLED


@pytest.mark.parametrize(
    ("verb", "said"),
    [("done", "not held"), ("renew", "not held"), ("fly", "no such verb"), ("claim", "cannot be")],
)
def test_what_cannot_be_says_so(twins: Twins, verb: str, said: str) -> None:
    job = drive(add_one(twins.store, delay=timedelta(days=36500)))
    with pytest.raises(Refused, match=said):
        twins.call(verb, job)
    twins_log = drive(twins.store.log(job.id))
    assert len(twins_log) == 1


def test_a_stale_token_is_refused(twins: Twins) -> None:
    drive(add_one(twins.store))
    job = drive(take_one(twins.store))
    with pytest.raises(Refused, match="not held by this claim"):
        twins.call("done", job, token=job.token - 1)
    twins.call("renew", job, token=job.token, expires_at=to_micros(twins.clock.now) + 7)
    [renewed] = drive(twins.store.get([job.id]))
    assert renewed.expires_at == twins.clock.now + timedelta(microseconds=7)
    drive(settle(twins.store, renewed, Done()))


def test_a_full_queue_and_a_taken_dedupe_key(twins: Twins, tmp_path: Path) -> None:
    sql = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    sql.execute("INSERT INTO penstock_queue (name, max_pending) VALUES ('small', 1)")
    added = "INSERT INTO penstock_add (queue, task, dedupe) VALUES ('small', 't', 'one')"
    sql.execute(added)
    with pytest.raises(sqlite3.IntegrityError, match="queue is full"):
        sql.execute(added)
    with pytest.raises(sqlite3.IntegrityError, match="dedupe key"):
        sql.execute(added.replace("'small'", "'other'"))
    jobs = drive(twins.store.add([NewJob(task="t", payload="{}", dedupe="one")], actor="p"))
    assert jobs[0].duplicate
    sql.close()
