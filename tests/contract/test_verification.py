"""`verify` reads a whole store: nothing wrong in any that Penstock wrote, and damage is found."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.job import JobId, OnFailure
from penstock.core.lifecycle import Done, Failed, Outcome, Snoozed, State, Waiting, cancel, reset
from penstock.core.store import Store
from penstock.core.tables import Within
from penstock.core.verification import Rule, Verification
from tests.contract.support import (
    SECOND,
    SHARED,
    STORES,
    ManualClock,
    add,
    add_one,
    drive,
    everything,
    look,
    move,
    new,
    open_named,
    settle,
    tables_of,
    take,
    take_one,
    totals,
)


async def verify(store: Store) -> Verification:
    return await store.verify(lambda *_: None)


async def live(store: Store, clock: ManualClock, seed: int) -> None:
    """A bit of everything that changes jobs."""
    chance = random.Random(seed)
    for _ in range(12):
        earlier = await everything(store)
        await add(
            store,
            *(
                new(
                    queue=chance.choice("ab"),
                    key=chance.choice([None, "k", "l"]),
                    dedupe=chance.choice([None, None, "d", "e"]),
                    tags=tuple(chance.sample(["x", "y", "z"], chance.randint(0, 2))),
                    tenant=chance.choice([None, "t", "u"]),
                    delay=chance.choice([None, None, 5 * SECOND]),
                    after=tuple(
                        JobId(job.id)
                        for job in chance.sample(earlier, min(len(earlier), chance.randint(0, 2)))
                    ),
                    on_failure=chance.choice([*OnFailure]),
                )
                for _ in range(4)
            ),
        )
        clock.advance(chance.choice([1, 6]) * SECOND)
        for job in await take(store, limit=3):
            outcomes: list[Outcome] = [Done(), Failed("x"), Failed("y", permanent=True), Snoozed()]
            outcome = chance.choice(outcomes)
            await settle(store, job, outcome)
        await take(store, limit=1)
        for job in chance.sample(await everything(store), 2):
            if job.state is State.PENDING:
                await move(store, job, cancel(job))
            elif job.state is State.FAILED and job.dedupe is None:
                await move(store, job, reset(job))
    ended = [job for job in await everything(store) if job.state.final]
    await store.delete(ended[::3])


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_wrong_in_what_penstock_wrote(
    store: Store, clock: ManualClock, seed: int
) -> None:
    await live(store, clock, seed)
    found = await verify(store)
    assert found.problems == []
    assert found.jobs == len(await everything(store)) == sum((await totals(store)).values())
    assert found.entries == len(await store.log(limit=100_000))
    await store.raise_floor(actor="admin", reason="restored", reclaim=True)
    assert (await verify(store)).problems == []


async def test_progress_is_reported(store: Store) -> None:
    await add(store, *(new() for _ in range(1_200)))
    steps: list[tuple[str, int, int]] = []
    await store.verify(lambda *step: steps.append(step))
    assert steps[0] == ("checking", 0, 1_200)
    assert steps[-1] == ("checking", 1_200, 1_200)
    assert len(steps) >= 3


async def test_an_empty_store_is_sound(store: Store) -> None:
    found = await verify(store)
    assert (found.jobs, found.entries, found.found) == (0, 0, {})
    await store.repair(actor="admin")


# Damage, as only a database can have it


@pytest.fixture(params=SHARED)
def database(request: pytest.FixtureRequest, tmp_path: Any, clock: ManualClock) -> Any:
    """A store whose tables can be damaged."""
    store = open_named(request.param, tmp_path, clock)
    yield store
    drive(store.close())


async def damage(store: Store, *statements: str) -> None:
    """Run statements; `{job}` and so on are the tables."""

    def work(within: Within) -> None:
        prefix = "penstock_" if within.dialect == "sqlite" else ""
        names = ("job", "log", "total", "edge", "tag", "ready_tag", "line", "checkpoint", "meta")
        for statement in statements:
            within.execute(statement.format(**{name: f"{prefix}{name}" for name in names}))

    await tables_of(store).transact(work)


def rules(found: Verification) -> set[Rule]:
    return set(found.found)


async def prepared(store: Store) -> None:
    """Jobs 1 and 2 of a key, 3 that waits for 2, 4 with tags, 5 done, 6 running."""
    await add_one(store, key="k")
    second = await add_one(store, key="k")
    await add_one(store, after=(second.id,))
    await add_one(store, queue="tagged", tags=("x", "y"))
    await add_one(store, queue="first")
    await settle(store, await take_one(store, queues=["first"]), Done())
    await add_one(store, queue="first")
    await take_one(store, queues=["first"])
    assert (await verify(store)).found == {}


DAMAGES: dict[str, tuple[Rule, bool, tuple[str, ...]]] = {
    "a log entry is missing": (
        Rule.LOG,
        False,
        ("DELETE FROM {log} WHERE job_id = 5 AND event = 'claimed'",),
    ),
    "the newest entry is missing": (
        Rule.LOG,
        False,
        ("DELETE FROM {log} WHERE job_id = 5 AND event = 'done'",),
    ),
    "a chain goes round in a circle": (
        Rule.LOG,
        False,
        ("UPDATE {log} SET previous = id + 2 WHERE job_id = 5 AND event = 'enqueued'",),
    ),
    "a chain leads to another job": (
        Rule.LOG,
        False,
        ("UPDATE {log} SET previous = 1 WHERE job_id = 5 AND event = 'claimed'",),
    ),
    "entries of no job": (
        Rule.LOG,
        False,
        ("UPDATE {log} SET job_id = 999 WHERE job_id = 5 AND event = 'enqueued'",),
    ),
    "an impossible move": (
        Rule.LIFE,
        False,
        ("UPDATE {log} SET event = 'reset' WHERE job_id = 5 AND event = 'done'",),
    ),
    "a wrong token": (Rule.TOKEN, False, ("UPDATE {job} SET token = token + 1 WHERE id = 6",)),
    "a job runs without a deadline": (
        Rule.LIFE,
        False,
        ("UPDATE {job} SET expires_at = NULL WHERE id = 6",),
    ),
    "too many attempts": (Rule.LIFE, False, ("UPDATE {job} SET attempt = 99 WHERE id = 5",)),
    "the head of a key is blocked": (Rule.KEY, True, ("UPDATE {job} SET stage = 2 WHERE id = 1",)),
    "a job is blocked by nothing": (
        Rule.WAITING,
        True,
        ("UPDATE {job} SET stage = 2 WHERE id = 4",),
    ),
    "a dependency is gone": (Rule.DEPENDENCY, True, ("UPDATE {edge} SET needed = 999",)),
    "dependencies are miscounted": (
        Rule.DEPENDENCY,
        True,
        ("UPDATE {job} SET needs = 2 WHERE id = 3",),
    ),
    "a needed job has ended": (Rule.DEPENDENCY, True, ("UPDATE {edge} SET needed = 5",)),
    "totals differ": (Rule.TOTAL, True, ("UPDATE {total} SET n = n + 3",)),
    "a tag cannot be claimed": (Rule.TAG, True, ("DELETE FROM {ready_tag} WHERE tag = 'x'",)),
    "a tag cannot be found": (Rule.TAG, True, ("DELETE FROM {tag} WHERE tag = 'y'",)),
    "a claim finds a running job": (
        Rule.TAG,
        True,
        ("UPDATE {ready_tag} SET job_id = 6 WHERE tag = 'x'",),
    ),
    "a checkpoint of no job": (
        Rule.ORPHAN,
        True,
        ("INSERT INTO {checkpoint} (job_id, body) VALUES (999, '1')",),
    ),
    "a tag of no job": (Rule.ORPHAN, True, ("INSERT INTO {tag} (tag, job_id) VALUES ('x', 999)",)),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_damage_is_found_and_repaired_if_possible(database: Store, name: str) -> None:
    rule, repairable, statements = DAMAGES[name]
    await prepared(database)
    if rule is Rule.TOTAL:
        await database.count()
        await tables_of(database).transact(_fold)
    await damage(database, *statements)
    found = await verify(database)
    assert rule in rules(found), found
    assert (rule in found.repairable) == repairable
    assert all(problem.text for problem in found.problems)
    before = await everything(database)
    await database.repair(actor="admin")
    after = await verify(database)
    assert rules(after) == (set() if repairable else rules(found) - set(found.repairable))
    assert [job.id for job in await everything(database)] == [job.id for job in before]


def _fold(within: Within) -> None:
    """Write a total that can be damaged, where only changes are kept so far."""
    if within.dialect != "sqlite":
        within.execute(
            "INSERT INTO total SELECT queue, stage, sum(n) FROM delta GROUP BY queue, stage"
        )
        within.execute("DELETE FROM delta")


async def test_repaired_jobs_run(database: Store, clock: ManualClock) -> None:
    await prepared(database)
    await damage(
        database,
        "UPDATE {job} SET stage = 2 WHERE id IN (1, 4)",
        "UPDATE {job} SET needs = 3 WHERE id = 3",
        "DELETE FROM {ready_tag}",
    )
    assert await take(database, queues=["default", "tagged"]) == []
    await database.repair(actor="admin")
    assert [job.id for job in await take(database, queues=["tagged"], tags=("x",))] == [4]
    for expected in (1, 2, 3):
        job = await take_one(database, queues=["default"])
        assert job.id == expected
        await settle(database, job, Done())
    assert (await verify(database)).found == {}


async def test_a_repair_cancels_what_a_failed_job_would_have(database: Store) -> None:
    await prepared(database)
    failed = await add_one(database, queue="bad")
    await settle(database, await take_one(database, queues=["bad"]), Failed("no", permanent=True))
    assert failed.id == 7
    await damage(database, "UPDATE {edge} SET needed = 7")
    await database.repair(actor="admin")
    third = (await database.get([JobId(3)]))[0]
    assert (third.state, third.waiting) == (State.CANCELLED, None)


# Damage in memory: what a journal with valid checksums may say


async def test_damage_in_memory_is_found(clock: ManualClock, tmp_path: Any) -> None:
    store: Any = open_named("memory", tmp_path, clock)
    await prepared(store)
    content = store._content
    done = content.jobs[5]
    content.jobs.put(5, replace(done, token=999, version=1))
    content.totals["default", State.PENDING, Waiting.READY] += 1
    content.jobs.put(1, replace(content.jobs[1], waiting=Waiting.BLOCKED))
    content.jobs.put(4, replace(content.jobs[4], waiting=Waiting.BLOCKED))
    content.jobs.put(3, replace(content.jobs[3], needs=7))
    found = await verify(store)
    assert rules(found) == {
        Rule.LOG, Rule.TOKEN, Rule.TOTAL, Rule.KEY, Rule.WAITING, Rule.DEPENDENCY,
    }  # fmt: skip
    await store.close()


def test_every_store_is_covered() -> None:
    assert {*SHARED, "memory", "journal"} == set(STORES)


async def test_a_running_and_a_pending_job_share_a_dedupe_key(database: Store) -> None:
    """Which the scope of neither allows."""
    first = await add_one(database, dedupe="d", scope="unfinished", queue="d")
    await take_one(database, queues=["d"])
    second = await add_one(database, queue="d")
    assert second.id == 2
    await damage(database, "UPDATE {job} SET dedupe = 'd', scope = 'unfinished' WHERE id = 2")
    found = await verify(database)
    assert rules(found) == {Rule.DEDUPE}
    assert found.repairable == []
    assert (await look(database, first)).state is State.RUNNING
