"""A worker in a process of its own, for tests that kill it."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Literal, Self

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.job import JobId
from penstock.engine import Penstock
from penstock.stores import is_private
from penstock.testing.clock import Clock

Point = Literal["claimed", "ran", "settled"]

SOON = timedelta(seconds=60)
_TAIL = 4_000
_PROGRAM = (
    "import sys, json; order = sys.argv[1]; sys.path[:] = json.loads(order)['paths']; "
    "from penstock.testing.child import main; main(order)"
)


class Place(msgspec.Struct, frozen=True):
    """Where a program keeps an app, so that another process finds it."""

    module: str
    name: str
    file: str | None = None


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the child shall do."""

    place: Place
    url: str
    now: int | None
    paths: list[str]
    report: int
    concurrency: int
    queues: list[str] | None
    kill_at: int | None
    point: Point


class WorkerProcess:
    """A worker in a child process, that dies by SIGKILL at the n-th job or when told.

    ```python
    with WorkerProcess(app, kill_at=1) as worker:
        worker.wait()  # it has claimed a job, and is gone
    ```

    `app` is an app that a module holds by name, or `"module:name"`; the child imports that
    module, points the app at the same `url`, which must name a store that processes can share,
    and works. It dies when the job was `claimed` and its handler has not begun, when the handler
    `ran` and nobody knows yet, or when the job is `settled`. If the app has a `Clock`, time
    stands still in the child where it stood here.

    The end of the block kills a child that is still there; the end of this process ends it too.
    """

    def __init__(
        self,
        app: Penstock | str,
        *,
        url: str | None = None,
        kill_at: int | None = None,
        point: Point = "claimed",
        concurrency: int = 1,
        queues: Sequence[str] | None = None,
    ) -> None:
        clock = app.clock if isinstance(app, Penstock) else None
        self._place = locate(app) if isinstance(app, Penstock) else parse(app)
        self._url = url or (app.url if isinstance(app, Penstock) else "")
        self._now = clock() if isinstance(clock, Clock) else None
        self._kill_at = kill_at
        self._point = point
        self._concurrency = concurrency
        self._queues = None if queues is None else list(queues)
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: list[tuple[str, JobId]] = []
        self._news = threading.Condition()
        self._over = False
        self._printed: str | None = None
        if not self._url or is_private(self._url):
            raise ConfigurationError(
                "a worker in another process needs a store that both can open: "
                "give url='sqlite:///…', or point the app at one by fresh(app, url=…)"
            )

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Kill it, if it lives."""
        self.kill()

    def start(self) -> Self:
        """Start the child; it works as soon as it has imported the app's module."""
        if self._process is not None:
            raise ConfigurationError("a worker process is started once: make another")
        mine, its = os.pipe()
        order = Order(
            place=self._place,
            url=self._url,
            now=self._now,
            paths=[path or str(Path.cwd()) for path in sys.path],
            report=its,
            concurrency=self._concurrency,
            queues=self._queues,
            kill_at=self._kill_at,
            point=self._point,
        )
        self._output: IO[Any] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this
        self._process = subprocess.Popen(  # noqa: S603 - this Python, our own program
            [sys.executable, "-c", _PROGRAM, msgspec.json.encode(order).decode()],
            stdin=subprocess.PIPE,  # its end tells the child that we are gone
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=(its,),
        )
        os.close(its)
        self._reader = threading.Thread(target=self._read, args=(mine,), daemon=True)
        self._reader.start()
        return self

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    @property
    def output(self) -> str:
        """What the child has printed."""
        if self._printed is None:
            # By position: the child writes where the file that they share stands.
            size = os.fstat(self._output.fileno()).st_size
            return os.pread(self._output.fileno(), size, 0).decode(errors="replace")
        return self._printed

    def jobs(self, point: Point) -> list[JobId]:
        """The jobs that came so far, in their order; a job appears once for each time."""
        with self._news:
            return [job_id for at, job_id in self._seen if at == point]

    def wait_for(self, point: Point, n: int = 1, *, timeout: timedelta = SOON) -> list[JobId]:
        """Wait until `n` jobs have come to this point; which."""
        with self._news:
            self._news.wait_for(
                lambda: self._over or len(self._at(point)) >= n, timeout.total_seconds()
            )
            if len(found := self._at(point)) >= n:
                return found
        raise AssertionError(self._disappointed(f"{n} jobs were {point}, only {len(found)}"))

    def wait(self, *, timeout: timedelta = SOON) -> int:
        """Wait until the child has ended; its exit status, -9 if it was killed."""
        try:
            status = self._child.wait(timeout.total_seconds())
        except subprocess.TimeoutExpired:
            raise AssertionError(self._disappointed("it ended")) from None
        self._reader.join()
        if self._printed is None:
            self._printed = self.output
            self._output.close()
            if self._child.stdin is not None:
                self._child.stdin.close()
        return status

    def kill(self) -> int:
        """SIGKILL, now; the exit status, which is another if it had ended by itself."""
        with suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGKILL)
        return self.wait()

    def stop(self, *, timeout: timedelta = SOON) -> int:
        """SIGTERM: it claims no more, finishes what runs and ends; the exit status."""
        self._child.send_signal(signal.SIGTERM)
        return self.wait(timeout=timeout)

    @property
    def _child(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ConfigurationError("the worker process was not started: use with, or start()")
        return self._process

    def _at(self, point: Point) -> list[JobId]:
        return [job_id for at, job_id in self._seen if at == point]

    def _read(self, report: int) -> None:
        with open(report, encoding="ascii") as lines:
            for line in lines:
                point, number = line.split()
                with self._news:
                    self._seen.append((point, JobId(int(number))))
                    self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()

    def _disappointed(self, before: str) -> str:
        status = self._child.poll()
        end = "still runs" if status is None else f"ended with status {status}"
        return f"the worker process {end}, before {before}; it printed:\n{self.output[-_TAIL:]}"


def parse(target: str) -> Place:
    """The place that `module:name` means."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(f"an app is named 'module:name', not {target!r}")
    return Place(module, name)


def locate(app: Penstock) -> Place:
    """The module that holds an app, and the name it has there.

    Of several, such as a program and a test that has imported it, the one with the app's tasks.
    """
    homes = Counter(task.handler.__module__ for task in app.tasks.values())
    places = [
        Place(module_name, name, getattr(module, "__file__", None))
        for module_name, module in list(sys.modules.items())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is app
    ]
    if not places:
        raise ConfigurationError(
            "no module holds this app by name, so another process cannot find it; "
            "make it at the top level of a module, or give 'module:name'"
        )
    return max(places, key=lambda place: (homes[place.module], place.module != "__main__"))
