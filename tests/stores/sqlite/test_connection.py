"""Opening a file: what is refused and with which error, what is set up, what is left alone."""

import contextlib
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import Job, JobId
from penstock.runtime import system_clock
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.connection import connect, translate
from penstock.stores.sqlite.schema import SCRIPTS, statements
from tests.contract.support import ManualClock, add, add_one, drive, new, take_one
from tests.environment import SOON
from tests.stores.support import sqlite_store, writing_connection

CLOCK = ManualClock()


def opened(path: Path, *, create: bool = True) -> None:
    drive(sqlite_store(path, CLOCK, create=create).close())


# What cannot be opened


def test_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_text("Dear diary, " * 1000)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not a SQLite file") as refused:
        opened(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        opened(tmp_path)


def test_file_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does its folder exist"):
        opened(tmp_path / "missing" / "jobs.db")
    assert not (tmp_path / "missing").exists()


def test_file_below_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="does its folder exist"):
        opened(tmp_path / "file" / "jobs.db")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody may write")
def test_file_in_a_folder_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(StoreError, match="may it be written"):
        opened(Path("/proc/self/jobs.db"))


def test_newer_schema_is_refused_and_left_as_it_is(path: Path) -> None:
    opened(path)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE penstock_meta SET value = 99 WHERE name IN ('schema', 'oldest_program')"
        )
        connection.execute("CREATE TABLE penstock_from_the_future (x)")
    connection.close()
    with pytest.raises(
        StoreError, match=rf"schema 99 \(this one knows {SCRIPTS.version}\).*upgrade"
    ):
        opened(path)
    connection = sqlite3.connect(path)
    tables = connection.execute("SELECT count(*) FROM penstock_from_the_future").fetchone()
    connection.close()
    assert tables == (0,)


def test_damaged_file_is_refused(path: Path) -> None:
    opened(path)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * (path.stat().st_size - 100))
    with pytest.raises(StoreError, match="damaged"):
        opened(path)


@pytest.mark.parametrize("seed", range(10))
def test_every_damage_that_opening_notices_is_a_declared_error(path: Path, seed: int) -> None:
    """Random bytes in the header, the catalogue or anywhere, some of which are not UTF-8."""
    rng = random.Random(seed)
    opened(path)
    whole = path.read_bytes()
    refused = 0
    for _ in range(20):
        damaged = bytearray(whole)
        end = rng.choice([100, 8192, len(whole)])
        for _ in range(rng.choice([1, 5, 50])):
            damaged[rng.randrange(end)] = rng.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(StoreError):
            refused += 1
            opened(path)
            refused -= 1
        for left in path.parent.iterdir():
            left.unlink()
    assert refused


def test_message_that_quotes_a_damaged_catalogue_is_translated(path: Path) -> None:
    opened(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = 'CREATE nothing' WHERE rowid = 1")
        connection.execute("UPDATE sqlite_schema SET name = CAST(x'fffe' AS TEXT) WHERE rowid = 1")
        connection.commit()
    with pytest.raises(StoreError, match="damaged; restore a backup") as refused:
        opened(path)
    assert isinstance(refused.value.__cause__, UnicodeDecodeError)


def test_version_that_is_no_number_is_damage(path: Path) -> None:
    opened(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE penstock_meta SET value = 'x' WHERE name = 'schema'")
        connection.commit()
    with pytest.raises(StoreError, match="damaged"):
        opened(path)


def test_damage_that_is_found_later_is_reported_then(path: Path) -> None:
    store = sqlite_store(path, CLOCK)
    drive(add(store, *[new(payload='{"a":"' + "x" * 900 + '"}')] * 600))
    drive(store.close())
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * (size - size // 2))
    store = sqlite_store(path, CLOCK)
    with pytest.raises(StoreError, match="damaged"):
        drive(store.get([JobId(job_id) for job_id in range(1, 601)]))
    drive(store.close())


def test_store_that_is_not_there_is_not_made_unless_wanted(path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        opened(path, create=False)
    assert not path.exists()


def test_file_without_a_store_gets_none_unless_wanted(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    with pytest.raises(StoreError, match="without a store"):
        opened(path, create=False)
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]
    connection.close()


def test_store_that_is_there_is_opened_without_making_one(path: Path) -> None:
    opened(path)
    opened(path, create=False)


def test_what_was_refused_can_be_opened_when_it_was_put_right(path: Path) -> None:
    path.write_text("no database at all")
    with pytest.raises(StoreError):
        opened(path)
    path.unlink()
    opened(path)


def test_failed_opening_leaves_no_file_open(path: Path) -> None:
    path.write_text("no database at all" * 100)
    with pytest.raises(StoreError):
        opened(path)
    assert path not in [fd.resolve() for fd in Path("/proc/self/fd").iterdir()]


def test_file_that_is_removed_under_the_store_is_not_taken_for_the_same(path: Path) -> None:
    opened(path)
    path.unlink()
    opened(path)


# What others have in the file


def test_tables_of_others_are_left_alone_and_ours_have_their_prefix(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE job (x); INSERT INTO job VALUES (1); CREATE INDEX job_x ON job (x);"
        "PRAGMA user_version = 7; PRAGMA application_id = 42;"
    )
    before = connection.execute("SELECT name FROM sqlite_schema").fetchall()
    store = sqlite_store(path, CLOCK)
    drive(add_one(store, tags=("a",), key="k"))
    drive(store.close())
    after = connection.execute("SELECT name FROM sqlite_schema").fetchall()
    ours = [name for (name,) in after if (name,) not in before]
    assert ours
    assert {name for name in ours if not name.startswith("penstock_")} <= {
        name for name in ours if name.startswith("sqlite_autoindex_penstock_")
    }
    assert connection.execute("SELECT x FROM job").fetchall() == [(1,)]
    assert connection.execute("PRAGMA user_version").fetchone() == (7,)
    assert connection.execute("PRAGMA application_id").fetchone() == (42,)
    connection.close()


def test_no_other_file_is_left_when_it_is_closed(path: Path) -> None:
    store = sqlite_store(path, CLOCK)
    drive(add_one(store))
    drive(store.wait(-1, 0))
    drive(store.close())
    assert list(path.parent.iterdir()) == [path]


def test_copy_of_a_closed_file_is_the_whole_store(path: Path) -> None:
    store = sqlite_store(path, CLOCK)
    job = drive(add_one(store))
    drive(store.close())
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    store = sqlite_store(copy, CLOCK)
    assert drive(store.get([job.id])) == [job]
    drive(store.close())


# How it is set up


def test_writes_are_durable_on_return(store: SqlStore) -> None:
    """FULL is 2: every commit is synced, and a power failure loses nothing acknowledged."""
    connection = writing_connection(store)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_every_connection_is_set_up_alike(path: Path) -> None:
    opened(path)
    connection = connect(path)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    assert connection.isolation_level is None
    connection.close()


def test_schema_is_brought_up_once(path: Path) -> None:
    opened(path)
    connection = sqlite3.connect(path)
    before = connection.execute("PRAGMA schema_version").fetchone()
    opened(path)
    assert connection.execute("PRAGMA schema_version").fetchone() == before
    found = connection.execute("SELECT value FROM penstock_meta WHERE name = 'schema'")
    assert found.fetchone() == (SCRIPTS.version,)
    connection.close()


OPEN_WHEN_TOLD = """
import sys
from penstock.core.job import NewJob
from penstock.engine.penstock import Penstock, run_sync
app = Penstock(sys.argv[1])
print("here", flush=True)
sys.stdin.readline()
[job] = run_sync(app.enqueue_many([NewJob(task="t", payload="{}")]))
run_sync(app.close())
print(job.id)
"""


def test_ten_processes_may_open_an_empty_file_at_once(path: Path) -> None:
    command = [sys.executable, "-c", OPEN_WHEN_TOLD, f"sqlite:///{path}"]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=3 * SOON)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 10
    assert sorted(int(answer) for answer in answers) == list(range(1, 11))


def test_too_old_a_sqlite_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 0))
    with pytest.raises(StoreError, match=r"3\.38\.0 or newer"):
        opened(path)


def test_script_is_split_into_its_statements() -> None:
    script = (
        "-- first; really\nCREATE TABLE a (x);\n"
        "CREATE TRIGGER t AFTER INSERT ON a\nBEGIN\n    SELECT 1;\n    SELECT 2;\nEND;\n"
        "INSERT INTO a VALUES ('x;\ny');\n"
    )
    found = list(statements(script))
    assert [text.split()[0] for text in found] == ["--", "CREATE", "INSERT"]
    assert "".join(found) == script


# What the driver's errors mean


def failed(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("as the driver says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (sqlite3.SQLITE_BUSY, "locked"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "locked"),
        (sqlite3.SQLITE_LOCKED, "locked"),
        (sqlite3.SQLITE_FULL, "disk is full"),
        (sqlite3.SQLITE_IOERR, "reading or writing failed"),
        (sqlite3.SQLITE_IOERR_FSYNC, "reading or writing failed"),
    ],
)
def test_passing_trouble_may_be_tried_again(code: int, text: str) -> None:
    error = translate(failed(code), Path("jobs.db"))
    assert type(error) is StoreUnavailable
    for part in (text, "jobs.db", "nothing was changed", "as the driver says"):
        assert part in str(error)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (sqlite3.SQLITE_NOTADB, "not a SQLite file"),
        (sqlite3.SQLITE_CORRUPT, "damaged"),
        (sqlite3.SQLITE_CANTOPEN, "cannot be opened"),
        (sqlite3.SQLITE_READONLY, "may not be written"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "may not be written"),
        (sqlite3.SQLITE_PERM, "may not be opened"),
        (sqlite3.SQLITE_AUTH, "may not be opened"),
        (sqlite3.SQLITE_ERROR, "SQLite reported"),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, "SQLite reported"),
    ],
)
def test_permanent_error_is_reported_as_such(code: int, text: str) -> None:
    error = translate(failed(code), Path("jobs.db"))
    assert type(error) is StoreError
    for part in (text, "jobs.db", "as the driver says"):
        assert part in str(error)


def test_error_without_a_code_is_reported() -> None:
    error = translate(sqlite3.ProgrammingError("closed"), Path("jobs.db"))
    assert type(error) is StoreError
    assert "closed" in str(error)


def test_drivers_error_is_the_cause(path: Path) -> None:
    path.write_text("no database at all" * 100)
    with pytest.raises(StoreError) as refused:
        opened(path)
    assert isinstance(refused.value.__cause__, sqlite3.Error)


def test_lock_that_another_program_keeps_is_waited_for(path: Path) -> None:
    """Writers of other programs never show as an error while they take reasonable time."""
    store = sqlite_store(path, system_clock)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    added: list[Job] = []
    thread = threading.Thread(target=lambda: added.append(drive(add_one(store))))
    thread.start()
    thread.join(0.1)
    assert not added
    other.execute("COMMIT")
    thread.join(SOON)
    assert len(added) == 1
    assert drive(take_one(store)).id == added[0].id
    other.close()
    drive(store.close())
