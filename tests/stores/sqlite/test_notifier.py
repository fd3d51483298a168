"""Other processes are woken at once, whatever state the pipes are in."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.job import Job, NewJob
from penstock.core.lifecycle import Done
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.schedule import Rhythm, Schedule
from penstock.core.store import Store
from penstock.core.tokens import Access, Token
from penstock.core.workers import WorkerInfo
from penstock.runtime import Files, Runtime
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite import notifier as notifier_module
from penstock.stores.sqlite.notifier import SqliteNotifier
from tests.contract.support import (
    SECOND,
    ManualClock,
    add_one,
    descriptors,
    drive,
    new,
    settle,
    take,
)
from tests.environment import SOON
from tests.stores.support import database_of, sqlite_store

LONG = 60.0
TOKEN = Token(name="t", digest="d", scopes=frozenset({Access.READ}), created_at=ManualClock().now)
SCHEDULE = Schedule(
    name="s",
    job=NewJob(task="t", payload="{}"),
    rhythm=Rhythm(every=SECOND),
    next=ManualClock().now,
)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the change counter: only a notification can wake."""
    monkeypatch.setattr(notifier_module, "_POLL", LONG)


@pytest.fixture
def folder(path: Path) -> Path:
    return path.with_name("jobs.db-bell")


def make(
    path: Path, counter: Callable[[], int] = lambda: 0, matters: Callable[[], bool] = lambda: True
) -> SqliteNotifier:
    return SqliteNotifier(path, Runtime(), counter, matters)


@pytest.fixture
def notifier(path: Path) -> Iterator[SqliteNotifier]:
    notifier = make(path)
    yield notifier
    notifier.close()


ADD_ONE = """
import sys
from penstock.core.job import NewJob
from penstock.engine.penstock import Penstock, run_sync
app = Penstock(sys.argv[1])
run_sync(app.enqueue_many([NewJob(task="t", payload="{}")]))
run_sync(app.close())
"""


@pytest.mark.usefixtures("patient")
async def test_other_process_wakes_a_waiting_one_without_polling(
    store: SqlStore, path: Path
) -> None:
    seen = await store.wait(await store.wait(-1, 0), 0)
    waiting = asyncio.create_task(store.wait(seen, LONG))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ADD_ONE, f"sqlite:///{path}"
    )
    async with asyncio.timeout(SOON):
        assert await waiting != seen
        assert await process.wait() == 0
    assert len(await take(store)) == 1


class Counter:
    """A change counter: how often it was asked, and when it was asked so often."""

    def __init__(self) -> None:
        self.value = 0
        self.asked = 0
        self._more = threading.Condition()

    def __call__(self) -> int:
        with self._more:
            self.asked += 1
            self._more.notify_all()
        return self.value

    def wait_for(self, asked: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: self.asked >= asked, SOON)


def written(log: Path, text: str, at: float) -> None:
    """A log as it was left at a time."""
    log.write_text(text)
    os.utime(log, (at, at))


LONG_AGO = 1_000_000_000.0
FAR_AHEAD = 9_000_000_000.0


@pytest.mark.parametrize(
    ("text", "at"), [("longer than the first", LONG_AGO), ("first", LONG_AGO + 1)]
)
def test_commit_without_a_notification_is_found_by_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch, text: str, at: float
) -> None:
    monkeypatch.setattr(notifier_module, "_POLL", 0.005)
    monkeypatch.setattr(notifier_module, "_ASK", LONG)
    log, counter = path.with_name("jobs.db-wal"), Counter()
    written(log, "first", LONG_AGO)
    notifier = make(path, counter)
    seen = notifier.listen()
    counter.wait_for(2)  # at its start, and once for the log as it is
    assert drive(notifier.waiters.wait(seen, 0.1)) == seen
    assert counter.asked == 2
    counter.value = 1
    written(log, text, at)
    assert drive(notifier.waiters.wait(seen, SOON)) != seen
    notifier.close()


@pytest.mark.parametrize(("ask", "at", "asked"), [(LONG, FAR_AHEAD, 3), (0.05, LONG_AGO, 2)])
def test_commit_is_found_although_the_log_looks_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch, ask: float, at: float, asked: int
) -> None:
    """What was just written to may become a commit; and what was not is asked for now and then."""
    monkeypatch.setattr(notifier_module, "_POLL", 0.005)
    monkeypatch.setattr(notifier_module, "_ASK", ask)
    counter = Counter()
    written(path.with_name("jobs.db-wal"), "first", at)
    notifier = make(path, counter)
    seen = notifier.listen()
    counter.wait_for(asked)
    counter.value = 1
    assert drive(notifier.waiters.wait(seen, SOON)) != seen
    notifier.close()


@pytest.mark.usefixtures("patient")
def test_every_listener_is_notified(path: Path) -> None:
    notifiers = [make(path) for _ in range(3)]
    seen = [notifier.listen() for notifier in notifiers]
    sender = make(path)
    sender.notify_others()
    woken = [
        drive(notifier.waiters.wait(last, SOON))
        for notifier, last in zip(notifiers, seen, strict=True)
    ]
    assert all(now != last for now, last in zip(woken, seen, strict=True))
    for each in [*notifiers, sender]:
        each.close()


@pytest.mark.usefixtures("patient")
def test_listener_that_starts_later_is_notified_too(path: Path) -> None:
    sender, first, second = (make(path) for _ in range(3))
    first.listen()
    sender.notify_others()
    seen = second.listen()
    sender.notify_others()
    assert drive(second.waiters.wait(seen, SOON)) != seen
    for each in (sender, first, second):
        each.close()


@pytest.mark.usefixtures("patient")
def test_waking_this_process_leaves_others_asleep(path: Path) -> None:
    sender, listener = make(path), make(path)
    seen = listener.listen()
    sender.waiters.wake()
    assert drive(listener.waiters.wait(seen, 0.05)) == seen
    sender.close()
    listener.close()


def test_commit_of_a_program_that_knows_no_pipes_is_found(path: Path) -> None:
    """For example one that enqueues in its own transaction."""
    counter = iter(range(1000))
    notifier = make(path, lambda: next(counter))
    seen = notifier.listen()
    assert drive(notifier.waiters.wait(seen, SOON)) != seen
    notifier.close()


def test_commit_that_matters_to_nobody_is_passed_over(path: Path) -> None:
    looks, matters = 0, iter([True, False, True])  # the first answer is about what was before

    def counter() -> int:
        nonlocal looks
        looks += 1
        return looks

    notifier = make(path, counter, lambda: next(matters, False))
    seen = notifier.listen()
    assert drive(notifier.waiters.wait(seen, SOON)) == seen + 1
    assert looks >= 3
    notifier.close()


def heartbeat(name: str) -> WorkerInfo:
    return WorkerInfo(name=name, seen_at=ManualClock().now)


def matters(store: SqlStore, change: Coroutine[Any, Any, object]) -> bool:
    """What the listener receives after a change by another process."""
    database_of(store)._last_change_matters()
    drive(change)
    return database_of(store)._last_change_matters()


def test_heartbeats_alone_do_not_matter(store: SqlStore, clock: ManualClock) -> None:
    assert not matters(store, store.heartbeat([heartbeat("a")]))
    clock.advance(SECOND)
    assert not matters(store, store.heartbeat([heartbeat("a"), heartbeat("b")]))
    assert not matters(store, store.deregister(["b"]))


@pytest.mark.parametrize(
    "change",
    [
        add_one,
        lambda store: store.configure(QueueSettings(name="q", paused=True)),
        lambda store: store.limit(Limit(kind="task", name="t", concurrency=1)),
        lambda store: store.add_token(TOKEN),
        lambda store: store.put_schedule(SCHEDULE),
    ],
    ids=["job", "queue", "limit", "token", "schedule"],
)
def test_what_comes_together_with_a_heartbeat_matters(
    store: SqlStore, clock: ManualClock, change: Callable[[Store], Coroutine[Any, Any, object]]
) -> None:
    async def both() -> None:
        await store.heartbeat([heartbeat("a")])
        await change(store)

    assert matters(store, both())
    clock.advance(SECOND)
    assert not matters(store, store.heartbeat([heartbeat("a")]))


def test_commit_of_another_kind_matters(store: SqlStore) -> None:
    """A program's own tables in the file, or a report of a running job: as before."""
    database_of(store)._last_change_matters()
    assert database_of(store)._last_change_matters()


def test_without_pipes_the_change_counter_is_enough(
    path: Path, folder: Path, clock: ManualClock
) -> None:
    folder.write_text("in the way")
    store, other = sqlite_store(path, clock), sqlite_store(path, clock)
    seen = drive(store.wait(drive(store.wait(-1, 0)), 0))
    drive(add_one(other))
    assert drive(store.wait(seen, SOON)) != seen
    drive(store.close())
    drive(other.close())
    assert folder.read_text() == "in the way"


def test_pipe_of_a_listener_stays_in_the_folder_until_it_closes(path: Path, folder: Path) -> None:
    one, other = make(path), make(path)
    assert not folder.exists()
    one.listen()
    other.listen()
    assert len(list(folder.iterdir())) == 2
    one.close()
    assert len(list(folder.iterdir())) == 1
    other.close()
    assert not folder.exists()


def test_pipe_of_a_killed_process_is_removed(notifier: SqliteNotifier, folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "999-dead")
    notifier.notify_others()
    assert list(folder.iterdir()) == []


def test_pipe_whose_listener_died_later_is_forgotten(
    notifier: SqliteNotifier, folder: Path
) -> None:
    folder.mkdir()
    pipe = folder / "999-dying"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    notifier.notify_others()
    assert os.read(reader, 10) == b"\0"
    os.close(reader)
    for _ in range(3):
        notifier.notify_others()
    pipe.unlink(missing_ok=True)
    notifier.notify_others()


@pytest.mark.parametrize("obstacle", ["none", "file", "stranger", "link"])
def test_notifying_never_raises(notifier: SqliteNotifier, folder: Path, obstacle: str) -> None:
    if obstacle == "file":
        folder.write_text("")
    elif obstacle != "none":
        folder.mkdir()
    if obstacle == "stranger":
        (folder / "README").mkdir()
    if obstacle == "link":
        (folder / "1-gone").symlink_to("nowhere")
    notifier.notify_others()
    notifier.notify_others()


def test_notifying_never_raises_when_the_folder_is_removed(path: Path, folder: Path) -> None:
    sender, listener = make(path), make(path)
    listener.listen()
    sender.notify_others()
    for pipe in folder.iterdir():
        pipe.unlink()
    folder.rmdir()
    sender.notify_others()
    sender.close()
    listener.close()


def test_notifying_never_blocks_on_a_listener_that_does_not_read(
    notifier: SqliteNotifier, folder: Path
) -> None:
    folder.mkdir()
    pipe = folder / "999-stopped"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def notify() -> None:
        for _ in range(70_000):
            notifier.notify_others()

    notifying = threading.Thread(target=notify)
    notifying.start()
    notifying.join(3 * SOON)
    assert not notifying.is_alive()
    assert len(os.read(reader, 100_000)) == 65_536
    os.close(reader)


async def test_close_wakes_waiters(path: Path) -> None:
    notifier = make(path)
    seen = notifier.listen()
    waiting = asyncio.create_task(notifier.waiters.wait(seen, LONG))
    await asyncio.sleep(0)
    notifier.close()
    async with asyncio.timeout(SOON):
        assert await waiting != seen


def test_close_does_not_trip_over_a_listener_that_ends_by_itself(path: Path) -> None:
    """It may see that the notifier is closed before close wakes it."""
    notifier = make(path)
    notifier.listen()
    unlink = notifier._files.unlink

    class Slow(Files):
        def unlink(self, path: Any) -> None:  # type: ignore[override] # a method in its place
            unlink(path)
            notifier._listener.close()

    notifier._files = Slow()
    notifier.close()


def test_close_without_having_listened_is_no_trouble(path: Path, folder: Path) -> None:
    notifier = make(path)
    notifier.notify_others()
    notifier.close()
    assert not folder.exists()


def test_listener_survives_a_failing_change_counter(path: Path) -> None:
    """A disk that fails for a moment must not make a worker deaf for ever."""
    answers: Iterator[int | OSError] = iter([0, OSError("disk"), *range(1, 1000)])

    def counter() -> int:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise StoreUnavailable("reading failed") from answer
        return answer

    notifier = make(path, counter)
    seen = notifier.listen()
    assert drive(notifier.waiters.wait(seen, SOON)) != seen
    notifier.close()


def test_no_descriptor_is_left_open(path: Path) -> None:
    before = descriptors()
    notifiers = [make(path) for _ in range(3)]
    for notifier in notifiers:
        notifier.listen()
    for notifier in notifiers:
        notifier.notify_others()
    for notifier in notifiers:
        notifier.close()
    assert descriptors() <= before


def test_killed_listener_costs_nothing(path: Path, folder: Path, store: SqlStore) -> None:
    """Its pipe is found to be dead with the next notification."""
    code = (
        "import sys; from penstock import Penstock, run_sync; app = Penstock(sys.argv[1]);"
        "seen = run_sync(app.store.wait(-1, 0)); print('here', flush=True);"
        "run_sync(app.store.wait(seen, 60))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"sqlite:///{path}"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    process.kill()
    process.communicate()
    drive(add_one(store))
    drive(add_one(store))
    assert not folder.exists() or list(folder.iterdir()) == []


@pytest.fixture
def neighbour(path: Path, store: SqlStore) -> Iterator[SqlStore]:
    """Another one that listens, as another process would."""
    other = sqlite_store(path, store.clock)
    yield other
    drive(other.close())


async def fill(store: SqlStore, kind: str, **options: Any) -> Job:
    """Two ready jobs, of which a limit lets one run: that one."""
    if kind == "queue":
        await store.configure(QueueSettings(name="default", concurrency=1))
    elif kind == "task":
        await store.limit(Limit(kind="task", name="t", concurrency=1))
    else:
        options["throttle"] = "x"
    await store.add([new(**options)] * 2, actor="p")
    [job] = await take(store, limit=5)
    return job


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", ["queue", "task", "throttle"])
@pytest.mark.parametrize("tags", [(), ("red",)])
async def test_free_slot_that_a_job_waits_for_notifies_others(
    store: SqlStore, neighbour: SqlStore, kind: str, tags: tuple[str, ...]
) -> None:
    job = await fill(store, kind, tags=tags)
    assert await take(neighbour, tags=tags) == []
    seen = await neighbour.wait(await neighbour.wait(-1, 0), 0)
    waiting = asyncio.create_task(neighbour.wait(seen, LONG))
    await settle(store, job, Done())
    async with asyncio.timeout(SOON):
        assert await waiting != seen
    assert len(await take(neighbour, tags=tags)) == 1


@pytest.mark.parametrize("kind", ["queue", "task", "throttle"])
async def test_free_slot_that_is_taken_at_once_notifies_nobody(store: SqlStore, kind: str) -> None:
    job = await fill(store, kind)
    notified: list[str] = []
    database = database_of(store)
    database.notify = lambda: notified.append("here")
    database._notifier.notify_others = lambda: notified.append("others")  # type: ignore[method-assign] # the same
    with database_of(store)._group.lock:  # both are there before the transaction begins
        exchange = asyncio.gather(settle(store, job, Done()), take(store))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(database_of(store)._group._waiting) == 2
    _, [taken] = await exchange
    assert notified == ["here"]
    await settle(store, taken, Done())  # nobody waits for this slot any more
    assert notified == ["here", "here"]
