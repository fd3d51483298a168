"""Kill -9 at named points, and before and after every single statement of a scripted client."""

from pathlib import Path

import pytest

from penstock.core.lifecycle import FINAL, Done
from penstock.engine.penstock import run_sync
from tests import tiers
from tests.contract.statistics import assert_exact
from tests.contract.support import drive
from tests.crash.history import read_store
from tests.crash.processes import Child, Zygote, until
from tests.crash.recording import is_postgres
from tests.crash.support import assert_promises_kept, client, drain, finish_by_hand, on_both
from tests.schemas import schemas

# The first transactions of the script: 2 the schema and 1 limit, then enqueues, a pause, a claim.
SCRIPTED = [
    "after BEGIN IMMEDIATE 5",
    "before COMMIT 6",
    "after COMMIT 6",
    "before log_added 2",
    "before add_plain_with_options 1",
    "after add_plain_with_options 1",
    "before log_claimed 1",
    "before start 1",
    "at claimed 1",
    "at handling 1",
    "at handled 1",
    "at settled 1",
    "before log_moved 1",
    "before move 1",
    "before move 2",
    "before restage 1",
    "after restage 1",
    "before update_lease 1",
]
MIGRATING = [
    "before PRAGMA journal_mode 1",
    "after PRAGMA journal_mode 1",
    "after BEGIN IMMEDIATE 1",
    "before COMMIT 1",
    "after COMMIT 1",
]
WORKING = ["at claimed 2", "at handling 4", "at handled 3", "at settled 2", "before move 3"]
PRUNING = [
    "after BEGIN IMMEDIATE 1",
    "before prune_log 1",
    "before prune_payloads 1",
    "before prune_jobs 1",
    "after prune_jobs 1",
    "before COMMIT 1",
    "after COMMIT 1",
]
DIGESTING = [
    "before sums 2",
    "after sums 2",
    "after BEGIN IMMEDIATE 2",
    "before set_rolled_up 2",
    "before add_history 2",
    "before add_counters 2",
    "after add_counters 2",
    "before COMMIT 2",
    "after COMMIT 2",
]
# The same on PostgreSQL, whose schema is there already.
SCRIPTED_POSTGRES = [
    "after BEGIN 5",
    "before COMMIT 6",
    "after COMMIT 6",
    "before add_plain 1",
    "before add_jobs 1",
    "before log_added 2",
    "before claim_of_many 1",
    "after claim_of_many 1",
    "at claimed 1",
    "at handling 1",
    "at handled 1",
    "at settled 1",
    "before finish_plain 1",
    "before log_moved 1",
    "before move 1",
    "before move 2",
    "before restage 1",
    "after restage 1",
    "before update_lease 1",
]
MIGRATING_POSTGRES = [
    "before CREATE SCHEMA 1",
    "after CREATE SCHEMA 1",
    "before INSERT INTO 1",
    "after INSERT INTO 1",
    "before add_partitions 1",
    "after add_partitions 1",
]
PRUNING_POSTGRES = ["after BEGIN 1", "before COMMIT 1", "after COMMIT 1"]
DIGESTING_POSTGRES = [
    "before fold_totals 1",
    "after fold_totals 1",
    "before sums 2",
    "after sums 2",
    "after BEGIN 2",
    "before set_rolled_up 2",
    "before COMMIT 2",
    "after COMMIT 2",
]
POSTGRES = pytest.mark.parametrize("folder", ["postgres"], indirect=True)
# Every how many-th statement of the script is died at, on a file and on PostgreSQL.
STRIDES = [
    tiers.amount(4, 1, "PENSTOCK_CRASH_STRIDE"),
    tiers.amount(30, 10, "PENSTOCK_CRASH_STRIDE"),
]
CHECKPOINTING = [
    f"{when} PRAGMA wal_checkpoint({kind}) {nth}"
    for when in ("before", "during", "after")
    for kind in ("PASSIVE", "RESTART")
    for nth in (1, 3)
]


@pytest.mark.parametrize("point", MIGRATING + SCRIPTED)
def test_client_dies_at(point: str, zygote: Zygote, folder: Path) -> None:
    zygote.start("script", folder, point=point).die()
    finish_by_hand(folder)
    assert_promises_kept(folder, point)


@POSTGRES
@pytest.mark.parametrize("point", SCRIPTED_POSTGRES)
def test_client_of_postgres_dies_at(point: str, zygote: Zygote, folder: Path) -> None:
    zygote.start("script", folder, point=point).die()
    finish_by_hand(folder)
    assert_promises_kept(folder, point)


@pytest.mark.parametrize("point", MIGRATING_POSTGRES)
def test_client_dies_while_it_makes_the_schema(
    point: str, postgres_url: str, zygote: Zygote, folder: Path
) -> None:
    (folder / "url").write_text(postgres_url)
    zygote.start("script", folder, point=point).die()
    finish_by_hand(folder)
    assert_promises_kept(folder, point)


def test_client_of_postgres_dies_at_every_statement(zygote: Zygote, tmp_path: Path) -> None:
    def script(name: str, **options: str) -> tuple[Child, Path]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "url").write_text(schemas().take())
        return zygote.start("script", folder, **options), folder

    unharmed, folder = script("unharmed")
    unharmed.succeed()
    statements, commits = map(int, (folder / "passed").read_text().split())
    assert statements > 100
    points = [f"before * {n}" for n in range(1, statements + 1, STRIDES[1])]
    points += [f"after COMMIT {n}" for n in range(1, commits + 1, max(1, STRIDES[1] // 2))]
    for n, point in enumerate(points):
        client, folder = script(str(n), point=point)
        if client.wait() == 0:  # the first one made the schema: there is no such point here
            passed = (folder / "passed").read_text().split()
            assert int(point.split()[2]) > int(passed["COMMIT" in point])
            continue
        client.die()
        finish_by_hand(folder)
        assert_promises_kept(folder, point)


# After a statement is before the next one, except where a client is told in between.
@pytest.mark.parametrize("every", ["before * odd", "before * even", "after COMMIT"])
def test_client_dies_at_every_statement(every: str, zygote: Zygote, tmp_path: Path) -> None:
    unharmed = tmp_path / "unharmed"
    unharmed.mkdir()
    zygote.start("script", unharmed).succeed()
    statements, commits = map(int, (unharmed / "passed").read_text().split())
    assert statements > 100 < 9 * commits
    when, what, *_ = every.split()
    for n in {
        "before * odd": range(1, statements + 1, 2 * STRIDES[0]),
        "before * even": range(2, statements + 1, 2 * STRIDES[0]),
        "after COMMIT": range(1, commits + 1, max(1, STRIDES[0] // 2)),
    }[every]:
        folder = tmp_path / str(n)
        folder.mkdir()
        point = f"{when} {what} {n}"
        script = zygote.start("script", folder, point=point)
        if script.wait() == 0:  # a checkpoint made the first one longer: there is no such point
            passed = (folder / "passed").read_text().split()
            assert n > int(passed[what == "COMMIT"])
            break
        script.die()
        finish_by_hand(folder)
        assert_promises_kept(folder, point)


@on_both
@pytest.mark.parametrize("point", WORKING)
def test_worker_dies_at(point: str, zygote: Zygote, folder: Path) -> None:
    with client(folder, seed=1) as app:
        for _ in range(20):
            run_sync(app.enqueue_many([app.any_job()]))
    zygote.start("worker", folder, point=point, concurrency=2).die()
    drain(zygote, folder)
    assert_promises_kept(folder, point)


@pytest.mark.parametrize("point", CHECKPOINTING)
def test_client_dies_at_checkpoint(point: str, zygote: Zygote, folder: Path) -> None:
    zygote.start("checkpointed", folder, point=point).die()
    finish_by_hand(folder)
    assert_promises_kept(folder, point)


@pytest.mark.parametrize(
    ("folder", "point"),
    [("sqlite", point) for point in PRUNING] + [("postgres", point) for point in PRUNING_POSTGRES],
    indirect=["folder"],
)
def test_client_dies_while_pruning(point: str, zygote: Zygote, folder: Path) -> None:
    zygote.start("script", folder).succeed()
    finished = frozenset(job.id for job in read_store(folder).jobs.values() if job.state in FINAL)
    assert finished
    zygote.start("pruner", folder, point=point).die()
    assert_promises_kept(folder, point, drained=False, removable=finished)
    left = finished & read_store(folder).jobs.keys()
    assert left == (frozenset() if point == "after COMMIT 1" else finished)
    finish_by_hand(folder)
    assert_promises_kept(folder, point, removable=finished)


@pytest.mark.parametrize(
    ("folder", "point"),
    [("sqlite", point) for point in DIGESTING]
    + [("postgres", point) for point in DIGESTING_POSTGRES],
    indirect=["folder"],
)
def test_client_dies_while_counting_the_log(point: str, zygote: Zygote, folder: Path) -> None:
    """Between what it has read and what it writes, or anywhere else: each entry counts once."""
    with client(folder) as app:
        run_sync(app.enqueue_many(app.some_jobs()))
        for job in run_sync(app.leases.claim(worker=app.connection.actor, limit=100)):
            run_sync(app.leases.settle([(app.handle(job), Done())]))
        run_sync(app.enqueue_many([app.new() for _ in range(20)]))
        zygote.start("digester", folder, point=point).die()
        counted = sum(sum(one.counts.values()) for one in run_sync(app.statistics.counters()))
        if not is_postgres(folder):  # else the log has gaps between its numbers
            assert counted == (10 if point == "after COMMIT 2" else 5)
        assert run_sync(app.statistics.roll_up()) == len(run_sync(app.log())) - counted
        drive(assert_exact(app.store))


def test_process_left_by_a_dead_one_is_in_nobodys_way(zygote: Zygote, folder: Path) -> None:
    """A process forked by a handler inherits files and what locks them, and may live for long."""
    zygote.start("parent", folder, point="after BEGIN IMMEDIATE 3").die()
    try:
        other = zygote.start("enqueues", folder)
        until(lambda: other.ended, "a lock outlives the process that took it")
        other.succeed()
    finally:
        (folder / "go").touch()
    finish_by_hand(folder)
    assert_promises_kept(folder)
