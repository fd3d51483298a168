"""A store that holds at least one of everything, and what it answers to every question.

`python -m tests.stores.filled` writes the fixtures of the present schemas: the store as a script of
SQL, and its answers as JSON. Write them before a released schema changes: `sql/test_schema.py` then
shows that stores made with it open, are upgraded, and lose nothing.
"""

import json
import re
import sqlite3
import subprocess
import tempfile
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from penstock.core.job import Claim, Lease, OnFailure, Scope
from penstock.core.lifecycle import Cancelled, Done, Failed, cancel, start
from penstock.core.limits import Limit
from penstock.core.progress import Line, Progress, Report
from penstock.core.query import JobQuery
from penstock.core.queue import QueueSettings
from penstock.core.schedule import Missed, Rhythm, Schedule
from penstock.core.statistics import TOGETHER
from penstock.core.store import Store
from penstock.core.superseding import Tail
from penstock.core.tables import Mirror, Tables, Within
from penstock.core.tasks import AnnouncedTask
from penstock.core.tokens import Access, Token, digest_of
from penstock.core.workers import WorkerInfo
from penstock.runtime import Runtime
from penstock.stores import open_store
from penstock.stores.postgres.connection import SCRIPTS as POSTGRES
from penstock.stores.sqlite import schema as sqlite
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    drive,
    move,
    new,
    settle,
    tables_of,
    take_one,
)
from tests.postgres import PostgresServer, program, within

FOLDER = Path(__file__).parent / "fixtures"
_LINE = 90

PAGES = Tables(
    sqlite=(
        """
        CREATE TABLE page (id INTEGER PRIMARY KEY, at INTEGER, job_id INTEGER, stage INTEGER);
        CREATE TRIGGER page_added AFTER INSERT ON page BEGIN
            INSERT INTO penstock_newcomer (source, row_id, at) VALUES ('page', NEW.id, NEW.at);
        END;
        CREATE TRIGGER page_came AFTER DELETE ON penstock_newcomer WHEN OLD.source = 'page' BEGIN
            INSERT INTO penstock_add (queue, task, body, key, at)
            VALUES ('pages', 'render', json_object('page', OLD.row_id), 'page', OLD.at);
            UPDATE page SET job_id = (SELECT max(id) FROM penstock_job) WHERE id = OLD.row_id;
        END;
        """,
    ),
    postgres=(
        """
        CREATE TABLE page (id bigint PRIMARY KEY, at bigint, job_id bigint, stage integer);
        CREATE FUNCTION page_added() RETURNS trigger LANGUAGE plpgsql
        SET search_path FROM CURRENT AS $$
        BEGIN
            PERFORM enter(0);
            INSERT INTO newcomer (source, row_id, at) VALUES ('page', NEW.id, NEW.at);
            RETURN NULL;
        END $$;
        CREATE TRIGGER page_added AFTER INSERT ON page
        FOR EACH ROW EXECUTE FUNCTION page_added();
        CREATE FUNCTION page_came() RETURNS trigger LANGUAGE plpgsql
        SET search_path FROM CURRENT AS $$
        DECLARE
            wanted json;
        BEGIN
            SELECT json_agg(json_build_object(
                'queue', 'pages', 'task', 'render', 'body', json_build_object('page', row_id)::text,
                'priority', 5, 'lease_time', 30000000, 'key', 'page', 'attempt', 0, 'at', at
            ) ORDER BY id)
            INTO wanted FROM gone WHERE source = 'page';
            IF wanted IS NOT NULL THEN
                UPDATE page SET job_id = j.id
                FROM ROWS FROM (call_add_all(wanted, 'sql')) WITH ORDINALITY AS j (id, n)
                JOIN (SELECT row_id, row_number() OVER (ORDER BY id) AS n FROM gone) AS g
                ON g.n = j.n
                WHERE page.id = g.row_id::bigint;
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER page_came AFTER DELETE ON newcomer REFERENCING OLD TABLE AS gone
        FOR EACH STATEMENT EXECUTE FUNCTION page_came();
        """,
    ),
)
_STAGE = "UPDATE page SET stage = NEW.stage WHERE job_id = NEW.id"
MIRROR = Mirror(name="page_stage", queue="pages", sqlite=_STAGE, postgres=_STAGE)


def insert_page(tx: Within, page: int, at: int) -> None:
    """Insert a row as another program does; its job is made when somebody looks."""
    tx.execute("INSERT INTO page (id, at) VALUES (?, ?)", (page, at))


async def fill(store: Store, clock: ManualClock) -> None:
    """Store at least one of everything."""
    await _configure(store, clock)
    await _add_jobs(store, clock)
    await _import_jobs(store, clock)
    while await store.roll_up(1000):
        pass
    await store.series(limit=2)
    await _schedule(store, clock)
    await _register(store, clock)
    tables = tables_of(store)
    await tables.prepare_tables("pages", PAGES)
    await tables.add_mirror(MIRROR)
    needed = await add_one(store, queue="bounded")
    await add_one(store, queue="bounded", after=(needed.id,))
    await tables.transact(lambda tx: insert_page(tx, 1, clock()))
    await tables.transact(lambda tx: _leave_waiting(tx, needed.id, clock()))


def _leave_waiting(tx: Within, job: int, at: int) -> None:
    """Do in SQL what the next claim has to go on with."""
    insert_page(tx, 2, at)
    if tx.dialect == "sqlite":
        columns = "verb, job_id, reason, actor, at"
        given = ("cancel", job, "by a program", "sql", at)
        tx.execute(f"INSERT INTO penstock_call ({columns}) VALUES (?, ?, ?, ?, ?)", given)  # noqa: S608 - fixed columns
    else:
        tx.execute("SELECT call_steer('cancel', ?, NULL, 'by a program', 'sql')", (job,))


async def _configure(store: Store, clock: ManualClock) -> None:
    settings = [
        QueueSettings(name="bounded", max_pending=50),
        QueueSettings(name="slow", concurrency=1),
        QueueSettings(name="rated", rate=(3, timedelta(minutes=1))),
        QueueSettings(name="ageing", promote_after=timedelta(minutes=5)),
        QueueSettings(name="stopped", paused=True),
        QueueSettings(name="resting", paused=True, paused_until=clock.now + HOUR),
    ]
    for one in settings:
        await store.configure(one)
    for limit in (
        Limit(kind="task", name="render", concurrency=4),
        Limit(kind="throttle", name="host:", concurrency=1),
        Limit(kind="queues", name="", concurrency=500),
    ):
        await store.limit(limit)


async def _add_jobs(store: Store, clock: ManualClock) -> None:
    ended = await add(store, *(new(queue="ended", payload=f'{{"n": {n}}}') for n in range(6)))
    for outcome in (
        Done(result='{"sum": 3}', detail='{"by": "hand"}'),
        Failed("ValueError: no", permanent=True),
        Failed("OSError: gone"),
        Cancelled("not wanted"),
        Done(),
    ):
        clock.advance(SECOND)
        job = await take_one(store, queues=("ended",))
        clock.advance(3 * SECOND)
        await settle(store, await move(store, job, start(job)), outcome)
    await move(store, ended[5], cancel(ended[5], "on second thoughts"), actor="a person")

    parent = await add_one(
        store,
        queue="bounded",
        tags=("red", "blue"),
        correlation="batch-1",
        tenant="acme",
        trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        timeout=timedelta(minutes=2),
        lease=timedelta(days=1),
        priority=7,
    )
    running = await take_one(store, queues=("bounded",), worker="w-1")
    lease = Lease(running.id, running.token, "w-1")
    at = clock.now
    await store.report(
        [
            Report(
                lease=lease,
                progress=Progress(3, 10, "three of ten", at, at),
                state='{"page": 3}',
                lines=(Line(1, at, "info", "began", 1), Line(2, at, "error", "hm", 1)),
            )
        ]
    )
    await add(
        store,
        new(queue="bounded", parent=parent.id, tags=("red",), tenant="acme", correlation="batch-1"),
        new(queue="bounded", after=(parent.id,), on_failure=OnFailure.RUN),
        new(queue="bounded", after=(parent.id,), follows=(0,)),
        new(queue="bounded", delay=HOUR, dedupe="hourly", scope=Scope.PENDING),
        new(queue="bounded", dedupe="once"),
        new(queue="stopped", key="k", tags=("red",)),
        new(queue="stopped", key="k"),
        new(queue="ageing", priority=1),
        new(queue="rated"),
        new(queue="slow", tenant="acme"),
        new(queue="slow", tenant="zeta"),
        new(queue="throttled", throttle="host:a", lease=timedelta(days=1)),
        new(queue="throttled", throttle="host:a"),
        new(queue="cancelling", lease=timedelta(days=1)),
    )
    [older] = await add(store, new(queue="ended", key="path"))
    await store.add(
        [new(queue="ended", key="path")], actor="p", tail=Tail(job=older, replaces=True)
    )
    await take_one(store, queues=("rated",), worker="w-2")
    await store.claim(Claim(worker="w-2", limit=5, queues=("slow", "throttled")))
    asked = await take_one(store, queues=("cancelling",), worker="w-2")
    await move(store, asked, cancel(asked, "enough"), actor="a person")


async def _import_jobs(store: Store, clock: ManualClock) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    first = await add_one(other, queue="imported", tags=("green",))
    await add_one(other, queue="imported", after=(first.id,))
    records = await other.records([job.id for job in await other.find(JobQuery())])
    await store.restore(
        records, origin=msgspec.structs.replace(await other.origin(), source=7), actor="import"
    )
    await other.close()


async def _schedule(store: Store, clock: ManualClock) -> None:
    for schedule in (
        Schedule(
            name="nightly", job=new(task="tidy"), rhythm=Rhythm(cron="0 3 * * *"),
            missed=Missed.ALL, declared=True, next=clock.now + HOUR,
        ),
        Schedule(
            name="often", job=new(task="poll", queue="polls"), rhythm=Rhythm(every=60 * SECOND),
            overlap=False, paused=True,
        ),
    ):  # fmt: skip
        await store.put_schedule(schedule)


async def _register(store: Store, clock: ManualClock) -> None:
    await store.add_token(
        Token(
            name="ci", digest=digest_of("secret"), scopes=frozenset({Access.READ}),
            created_at=clock.now, expires_at=clock.now + 24 * HOUR,
        )
    )  # fmt: skip
    await store.heartbeat(
        [
            WorkerInfo(
                name=name, host="h", pid=9, queues=("bounded",), tags=("red",), concurrency=4,
                started_at=clock.now, seen_at=clock.now,
            )
            for name in ("w-1", "w-3")
        ]
    )  # fmt: skip
    gone = WorkerInfo(name="w-4", seen_at=clock.now, tasks=(AnnouncedTask(name="t"),))
    await store.heartbeat([gone])
    await store.deregister([gone.name])
    await store.drain_worker("w-3")


async def answers(store: Store, clock: ManualClock) -> dict[str, Any]:
    """What a store answers to every question about what it holds."""
    jobs = await store.find(JobQuery(newest_first=False, limit=1000))
    ids = [job.id for job in jobs]
    day = timedelta(days=1)
    found = {
        "jobs": jobs,
        "records": await store.records(ids),
        "log": await store.log(),
        "newest_log": await store.newest_log(),
        "edges": await store.edges(ids),
        "reported": await store.reported(ids),
        "count": {place: n for place, n in (await store.count()).items() if n},
        "tally": await store.tally(JobQuery()),
        "red": await store.find_ids(JobQuery(tags=("red",))),
        "of acme": await store.find_ids(JobQuery(tenant="acme")),
        "ready_tags": [await store.ready_tags(q) for q in ("bounded", "imported", "stopped")],
        "keys": await store.keys(None, 100),
        "oldest_ready": await store.oldest_ready(),
        "backlog": await store.backlog(),
        "queues": await store.queues(),
        "summary": await store.summary(),
        "limits": await store.limits(),
        "held": [(job.id, held) for job in jobs if (held := await store.held(job))],
        "expired": await store.expired(100),
        "origin": await store.origin(),
        "restored": await store.restored_ids(7, [1, 2, 3]),  # type: ignore[list-item] # ids of another store
        "migration_lock": await store.migration_lock(),
        "intervals": await store.intervals(clock.now - day, None, None, day),
        "together": await store.intervals(clock.now - day, None, TOGETHER, day),
        "counters": await store.counters(),
        "series": await store.series(),
        "schedules": await store.schedules(),
        "due": await store.due({"tidy", "poll"}, {"nightly"}, 10),
        "tokens": await store.tokens(),
        "workers": await store.workers(),
        "pages": await tables_of(store).read(
            lambda tx: tx.execute("SELECT id, at, job_id, stage FROM page ORDER BY id").fetchall()
        ),
    }
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    """A value as JSON has it; mappings as sorted pairs, because their keys are not always text."""
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return {name: _plain(one) for name, one in fields.items() if one is not None}
    if isinstance(value, Mapping):
        return sorted(([_plain(name), _plain(one)] for name, one in value.items()), key=str)
    if isinstance(value, AbstractSet):
        return sorted(map(_plain, value))
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return msgspec.to_builtins(value)


def written(url: str, clock: ManualClock) -> None:
    """Fill the store there, and leave it."""
    store = open_store(url, runtime=Runtime(clock))
    drive(fill(store, clock))
    drive(store.close())


def answered(url: str, clock: ManualClock) -> dict[str, Any]:
    """Open the store there, and ask it everything."""
    store = open_store(url, runtime=Runtime(clock))
    found = drive(answers(store, clock))
    drive(store.close())
    return found


def dump_sqlite(path: Path) -> str:
    """The whole file as a script."""
    with closing(sqlite3.connect(path)) as connection:
        return "\n".join(connection.iterdump()) + "\n"


def load_sqlite(script: str, path: Path) -> None:
    """Make the file that the script describes."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def dump_postgres(server: PostgresServer) -> str:
    """The schema `penstock` of the server as a script, without what only `psql` understands."""
    command = [
        str(program(server.folder, "pg_dump")),
        "--inserts",
        "--schema=penstock",
        "--no-owner",
    ]
    text = subprocess.run([*command, server.url], check=True, capture_output=True, text=True).stdout
    kept = [
        line
        for line in text.splitlines()
        if not re.match(r"--|SET |\\|SELECT pg_catalog.set_config", line)
    ]
    return re.sub(r"\n{2,}", "\n\n", "\n".join(kept)).strip() + "\n"


def load_postgres(script: str, server: str, schema: str) -> None:
    """Make the schema that the script describes, under this name."""
    script = re.sub(r"\bpenstock(?=[.;'\"])", schema, script)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("SET check_function_bodies = off")
        connection.execute(script.encode())


def main() -> None:
    """Write the fixtures of the present schema."""
    with tempfile.TemporaryDirectory() as folder, PostgresServer.create() as server:
        clock = ManualClock()
        path = Path(folder, "jobs.db")
        written(f"sqlite:///{path}", clock)
        script = dump_sqlite(path)
        load_sqlite(script, copy := Path(folder, "copy.db"))
        _write(f"sqlite-{sqlite.SCRIPTS.version}", script, answered(f"sqlite:///{copy}", clock))
        clock = ManualClock()
        written(within(server.url, "penstock"), clock)
        script = dump_postgres(server)
        load_postgres(script, server.url, "copy")
        _write(
            f"postgres-{POSTGRES.version}",
            script,
            answered(within(server.url, "copy"), clock),
        )


def _write(name: str, script: str, found: dict[str, Any]) -> None:
    (FOLDER / f"{name}.sql").write_text(script)
    (FOLDER / f"{name}.json").write_text(_pretty(found))


def _pretty(found: dict[str, Any]) -> str:
    """JSON with one line for each job, entry or queue."""
    parts = []
    for name, value in found.items():
        text = json.dumps(value)
        if isinstance(value, list) and len(text) > _LINE:
            text = "[\n  " + ",\n  ".join(json.dumps(one) for one in value) + "\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
