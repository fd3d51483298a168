"""Runs command lines, inside this process and as processes of their own, and drives `top`."""

import json
import os
import pty
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import click
from click.testing import CliRunner, Result

from penstock import Job, JobQuery, NewJob, Penstock, RetryPolicy, run_sync
from penstock.cli.live.follower import Now, system_now
from penstock.cli.main import cli
from penstock.client.remote import RemotePenstock
from penstock.engine.protocol import App
from penstock.jobs import Progress
from penstock.leases import Done, Failed, Lease, Outcome, Report, WorkerInfo
from penstock.testing import Clock
from tests.environment import SOON

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from penstock.cli.top.app import Top

COMMAND = (sys.executable, "-m", "penstock.cli.main")


class Shell:
    """Runs commands on one store, as a user who has set PENSTOCK_STORE."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *args: str, code: int = 0, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(cli, args, input=stdin, env={"PENSTOCK_STORE": self.url})
        assert result.exit_code == code, result.output
        return result

    def json(self, *args: str, code: int = 0) -> Any:
        """The document that a command prints."""
        return json.loads(self(*args, "--json", code=code).stdout)

    def error(self, *args: str, code: int) -> str:
        """The one line on stderr of a command that fails."""
        result = self(*args, code=code)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        return line


def run_one(app: Penstock, outcome: Outcome) -> Job:
    """Claim the next job and settle it so."""
    (job,) = run_sync(app.leases.claim(worker="w"))
    (settled,) = run_sync(app.leases.settle([(Lease(job.id, job.token, "w"), outcome)]))
    return settled


ONCE = RetryPolicy(attempts=1)


def enqueue(app: Penstock, n: int = 1, **options: object) -> None:
    for _ in range(n):
        run_sync(app.enqueue("greet", {"name": "Ada"}, **options))  # type: ignore[arg-type] # options as data


def states(app: Penstock) -> list[str]:
    return [job.state.value for job in run_sync(app.find(JobQuery(newest_first=False)))]


def on_terminal(arguments: list[str], typed: str = "", columns: int = 80, code: int = 0) -> str:
    """What a command prints on a terminal, where it ends with this code."""
    main, terminal = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": str(columns), "TERM": "xterm"}
    os.write(main, typed.encode())
    ended = subprocess.run(
        [*COMMAND, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        check=False,
        timeout=SOON,
    )
    os.close(terminal)
    printed = read_all(main).decode().replace("\r\n", "\n")
    assert ended.returncode == code, printed
    return click.unstyle(printed)


class Process:
    """A command that runs beside the test; what it prints is waited for, line by line."""

    def __init__(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._popen = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self.printed: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, text: str) -> str:
        """The next line with this text in it."""
        while (line := self._lines.get(timeout=SOON)) is not None:
            self.printed.append(line)
            if text in line:
                return line
        raise AssertionError(f"it ended without saying {text!r}: {self.printed}")

    @property
    def pid(self) -> int:
        return self._popen.pid

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        """What a terminal does when somebody presses Ctrl-C."""
        os.killpg(self._popen.pid, number)

    def wait(self) -> int:
        """Its exit code."""
        code = self._popen.wait(timeout=SOON)
        while (line := self._lines.get(timeout=SOON)) is not None:
            self.printed.append(line)
        return code

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._reader.join()
        assert self._popen.stdout is not None
        self._popen.stdout.close()


def read_all(terminal: int) -> bytes:
    """All that was printed on a terminal that nobody holds open any more."""
    printed = b""
    with suppress(OSError):  # its way to say that this was all
        while piece := os.read(terminal, 65_536):
            printed += piece
    os.close(terminal)
    return printed


@contextmanager
def started(
    command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """A process that is gone afterwards, whatever happens."""
    process = Process(command, folder, env)
    try:
        yield process
    finally:
        process.close()


# A view that a test drives, on a store whose clock stands still


class Screen:
    """A view on a terminal of its own, and what can be read there."""

    def __init__(self, top: "Top", pilot: "Pilot[None]") -> None:
        self.top = top
        self._pilot = pilot

    def text(self) -> str:
        """What stands on the screen."""
        width, height = self.top.size
        lines = self.top.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in lines[:height] if width)

    @property
    def focus(self) -> str | None:
        """What the keys go to."""
        return None if self.top.focused is None else self.top.focused.id

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def type(self, text: str) -> None:
        names = {":": "colon", " ": "space", "'": "apostrophe"}
        await self._pilot.press(*(names.get(c, c) for c in text), "enter")

    async def until(self, *texts: str, absent: str | None = None) -> str:
        """The screen, once all these stand on it; each press is followed by looks of its own."""
        return await self.once(
            lambda seen: all(text in seen for text in texts) and (absent or "\0") not in seen, texts
        )

    async def once(self, right: Callable[[str], bool], wanted: object = "") -> str:
        deadline = time.monotonic() + SOON
        while not right(self.text()):
            assert time.monotonic() < deadline, f"{wanted!r} is not in\n{self.text()}"
            await self._pilot.pause(0.02)
        return self.text()

    async def settle(self) -> None:
        """Let it draw what it has to draw."""
        await self._pilot.pause(0.05)

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)

    def said(self) -> list[str]:
        """What was told in passing, the newest last."""
        return [note.message for note in self.top._notifications]

    async def until_said(self, text: str) -> str:
        deadline = time.monotonic() + SOON
        while not any(text in one for one in self.said()):
            assert time.monotonic() < deadline, f"{text!r} was not said: {self.said()}"
            await self._pilot.pause(0.02)
        return next(one for one in self.said() if text in one)


@asynccontextmanager
async def viewing(
    app: App,
    *,
    now: Now = system_now,
    theme: str = "penstock-dark",
    size: tuple[int, int] = (120, 30),
) -> AsyncIterator[Screen]:
    """A view that runs inside the block."""
    from penstock.cli.live.reader import Reader
    from penstock.cli.top.app import Top

    top = Top(Reader(app), now=now, theme=theme)
    # A message stays until a test has seen it, however slow the machine is.
    with patch.object(Top, "NOTIFICATION_TIMEOUT", SOON):
        async with top.run_test(size=size, notifications=True) as pilot:
            yield Screen(top, pilot)
    if isinstance(app, RemotePenstock):  # a store is closed by its owner
        await app.close()


def now_of(clock: Clock) -> Now:
    return lambda: clock.now


# Jobs that are the same on every machine and every day

NOON = datetime(2030, 1, 1, 12, 0, 30, tzinfo=UTC)
TRACEBACK = """ConnectionError: the mailbox of ada does not answer
Traceback (most recent call last):
  File "mail.py", line 12, in send
    server.deliver(to)
ConnectionError: the mailbox of ada does not answer"""


async def sample() -> tuple[Penstock, Clock]:
    """A morning's work: four queues, one paused, one full; something of every state."""
    clock = Clock(NOON - timedelta(minutes=9))
    app = Penstock("memory://", clock=clock, actor="ada@desk")
    for name, queues in (("web1:4711", None), ("web2:4712", ("mail", "images"))):
        await app.store.heartbeat([_worker(name, queues, clock.now)])
    for n in range(8):
        await _send(app, clock, 3 + n)
    await _fail(app, clock)
    await _wait(app)
    await _run(app, clock)
    await _repeat(app)
    clock.set(NOON - timedelta(seconds=5))
    for name, queues in (("web1:4711", None), ("web2:4712", ("mail", "images"))):
        await app.store.heartbeat([_worker(name, queues, NOON - timedelta(minutes=9))])
    clock.set(NOON)
    return app, clock


def _worker(name: str, queues: tuple[str, ...] | None, started_at: datetime) -> WorkerInfo:
    return WorkerInfo(
        name=name,
        host=name.partition(":")[0],
        pid=1,
        queues=queues,
        concurrency=4,
        started_at=started_at,
        seen_at=started_at,
    )


async def _send(app: Penstock, clock: Clock, n: int) -> None:
    mail = NewJob(task="send", payload='{"to": "grace"}', queue="mail")
    await app.enqueue_many([mail] * n)
    for job in await app.leases.claim(worker="web2:4712", limit=n, queues=["mail"]):
        clock.advance(timedelta(milliseconds=400))
        await app.leases.settle([(job, Done())])
    clock.advance(timedelta(minutes=1) - n * timedelta(milliseconds=400))


async def _fail(app: Penstock, clock: Clock) -> None:
    twice = RetryPolicy(attempts=2, delay=timedelta(seconds=5), jitter=0)
    mail = NewJob(
        task="send", payload='{"to": "ada"}', queue="mail", retry=twice, tags=("urgent", "paid")
    )
    await app.enqueue_many([mail])
    for _ in range(2):
        (job,) = await app.leases.claim(worker="web1:4711", queues=["mail"])
        clock.advance(timedelta(seconds=2))
        await app.leases.settle([(job, Failed(TRACEBACK))])
        clock.advance(timedelta(seconds=5))


async def _wait(app: Penstock) -> None:
    await app.enqueue_many([NewJob(task="report", payload='{"month": 1}', queue="reports")] * 3)
    await app.queues.pause("reports")
    await app.limits.queue("exports", 2)
    export = NewJob(task="export", payload="{}", queue="exports", delay=timedelta(hours=1))
    await app.enqueue_many([export] * 2)
    ended = await app.enqueue_many([NewJob(task="report", payload="{}", queue="reports")])
    await app.cancel(ended[0].id, "not needed")


async def _repeat(app: Penstock) -> None:
    report = NewJob(task="report", payload="{}", queue="reports")
    await app.schedules.put("nightly", report, cron="0 2 * * *", timezone="Europe/Berlin")
    await app.schedules.put("sweep", report, every=timedelta(minutes=5))
    await app.schedules.pause("sweep")


async def _run(app: Penstock, clock: Clock) -> None:
    resize = NewJob(task="resize", payload='{"count": 40}', queue="images", key="album-7")
    await app.enqueue_many([resize] * 2)
    clock.advance(timedelta(seconds=1))
    (job,) = await app.leases.claim(worker="web1:4711", queues=["images"])
    said = clock.now + timedelta(seconds=10)
    progress = Progress(30, 40, "img-30.png", said, clock.now, 10)
    await app.leases.report([Report(lease=job.lease, progress=progress)])
