"""Verbs in SQL do what those in Python do: random steps through both, and nothing differs."""

import json
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
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
from penstock.core.job import DEFAULT_LEASE, Change, Claim, Job, JobQuery, NewJob, OnFailure
from penstock.core.lifecycle import (
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
from penstock.core.store import Store
from penstock.core.times import span_to_micros, to_micros
from penstock.stores import open_store
from tests.contract.support import (
    SHARED,
    STEADY,
    STORES,
    ManualClock,
    add_one,
    drive,
    new,
    settle,
    take_one,
)

NOBODY = Claim(worker="nobody", limit=1, queues=("none",))
STEPS = [
    "add",
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
        found = self.connection.execute(sql.encode(), parameters)
        return found.fetchall() if found.description else []

    def add(self, at: int, **columns: object) -> None:
        body = {"body": "{}", "lease_time": span_to_micros(DEFAULT_LEASE), **columns}
        self._run("SELECT set_config('test.at', %s, false)", str(at))
        self._run("SELECT call_add(%s, 'sql')", json.dumps(body))

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
        self.model: Store = open_store("memory://", clock=self.clock)
        self.store: Store = open_store(url, clock=self.clock)
        drive(self.store.count())  # it is there now
        self.sql = Sqlite(url) if url.startswith("sqlite") else Postgres(url)

    def close(self) -> None:
        self.sql.connection.close()
        drive(self.store.close())

    def call(self, verb: str, job: Job, **columns: object) -> None:
        self.sql.call(self.clock(), verb, job, **columns)

    def jobs(self, *states: State) -> list[Job]:
        found = drive(self.model.find(JobQuery(newest_first=False, limit=1000)))
        return [job for job in found if job.state in states]

    def add(self, key: str | None, priority: int) -> None:
        drive(self.model.add([new(key=key, priority=priority)], actor="sql"))
        columns = {"queue": "default", "task": "t", "key": key, "priority": priority}
        self.sql.add(self.clock(), **columns, retry=RETRY)

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

    def step(self, what: str, pick: int, key: str | None) -> None:
        if what == "add":
            return self.add(key, pick % 11)
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
                    job, retry=STEADY, version=number[job.version], token=number.get(job.token, 0)
                )
                for job in jobs
            ],
            totals,
            [replace(one, id=number[one.id], token=number.get(one.token)) for one in log],
        )


@pytest.mark.parametrize("name", SHARED)
@settings(max_examples=25)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([*STEPS, "add", "claim", "claim"]),  # or little would ever run
            st.integers(0, 50),
            st.sampled_from([None, "a", "b"]),
        ),
        min_size=15,
        max_size=40,
    )
)
def test_sql_does_what_python_does(name: str, steps: list[tuple[str, int, str | None]]) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        twins = stack.enter_context(closing(Twins(STORES[name](folder))))
        for what, pick, key in steps:
            twins.clock.advance(timedelta(seconds=1))
            twins.step(what, pick, key)
            twins.check()


@pytest.fixture
def twins(tmp_path: Path) -> Any:
    with closing(Twins(STORES["sqlite"](tmp_path))) as opened:
        yield opened


def test_who_waits_is_told_with_the_next_claim(twins: Twins) -> None:
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
