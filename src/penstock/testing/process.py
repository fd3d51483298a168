"""`WorkerProcess`: a worker in a child process, for tests that kill it."""

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
from penstock.engine.penstock import Penstock
from penstock.stores import is_private
from penstock.testing.clock import Clock

Point = Literal["claimed", "ran", "settled"]

SOON = timedelta(seconds=60)
_TAIL = 4_000
_PROGRAM = (
    "import sys, json; given = sys.argv[1]; sys.path[:] = json.loads(given)['paths']; "
    "from penstock.testing.child import main; main(given)"
)


class Location(msgspec.Struct, frozen=True):
    """The module and name of an app, by which another process finds it."""

    module: str
    name: str
    file: str | None = None


class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """What the child process does."""

    location: Location
    url: str
    now: int | None
    paths: list[str]
    report: int
    concurrency: int
    queues: list[str] | None
    kill_at: int | None
    point: Point


class WorkerProcess:
    """A worker in a child process that kills itself with SIGKILL at the n-th job, or on demand.

    ```python
    with WorkerProcess(app, kill_at=1) as worker:
        worker.wait()  # it has claimed a job and is dead
    ```

    `app` is an app at the top level of a module, or `"module:name"`. The child imports that module
    and runs a worker on `url`, which must name a store that processes can share. It dies when the
    n-th job is `claimed` and its handler has not started, when the handler `ran` but the store does
    not know yet, or when the job is `settled`. If the app has a `Clock`, the child's clock stands
    still at the same instant.

    The child is killed at the end of the block, and exits when this process does.
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
        self._location = locate(app) if isinstance(app, Penstock) else parse(app)
        self._url = url or (app.url if isinstance(app, Penstock) else "")
        self._now = clock() if isinstance(clock, Clock) else None
        self._kill_at = kill_at
        self._point = point
        self._concurrency = concurrency
        self._queues = None if queues is None else list(queues)
        self._process: subprocess.Popen[bytes] | None = None
        self._reports: list[tuple[str, JobId]] = []
        self._changed = threading.Condition()
        self._over = False
        self._printed: str | None = None
        if not self._url or is_private(self._url):
            raise ConfigurationError(
                "a worker in another process needs a store that both can open: "
                "give url='sqlite:///…', or point the app at one with fresh(app, url=…)"
            )

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Kill it if it is alive."""
        self.kill()

    def start(self) -> Self:
        """Start the child, which runs a worker once it has imported the app's module."""
        if self._process is not None:
            raise ConfigurationError("a worker process can only be started once: create another")
        mine, its = os.pipe()
        instructions = Instructions(
            location=self._location,
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
            [sys.executable, "-c", _PROGRAM, msgspec.json.encode(instructions).decode()],
            stdin=subprocess.PIPE,  # the child exits when this closes
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
        """The output of the child so far."""
        if self._printed is None:
            # `pread` leaves the shared position of the file alone, where the child writes.
            size = os.fstat(self._output.fileno()).st_size
            return os.pread(self._output.fileno(), size, 0).decode(errors="replace")
        return self._printed

    def jobs(self, point: Point) -> list[JobId]:
        """Return the jobs that reached a point, in order; a job may appear several times."""
        with self._changed:
            return [job_id for at, job_id in self._reports if at == point]

    def wait_for(self, point: Point, n: int = 1, *, timeout: timedelta = SOON) -> list[JobId]:
        """Wait until `n` jobs have reached a point; return them."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._over or len(self._at(point)) >= n, timeout.total_seconds()
            )
            if len(found := self._at(point)) >= n:
                return found
        raise AssertionError(self._failure(f"{n} jobs were {point}, only {len(found)}"))

    def wait(self, *, timeout: timedelta = SOON) -> int:
        """Wait until the child has exited; return its exit status, -9 if it was killed."""
        try:
            status = self._child.wait(timeout.total_seconds())
        except subprocess.TimeoutExpired:
            raise AssertionError(self._failure("it ended")) from None
        self._reader.join()
        if self._printed is None:
            self._printed = self.output
            self._output.close()
            if self._child.stdin is not None:
                self._child.stdin.close()
        return status

    def kill(self) -> int:
        """Send SIGKILL; return the exit status, which is not -9 if the child had already exited."""
        with suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGKILL)
        return self.wait()

    def stop(self, *, timeout: timedelta = SOON) -> int:
        """Send SIGTERM: the worker finishes its running jobs and exits; return the exit status."""
        self._child.send_signal(signal.SIGTERM)
        return self.wait(timeout=timeout)

    @property
    def _child(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ConfigurationError("the worker process was not started: use with or start()")
        return self._process

    def _at(self, point: Point) -> list[JobId]:
        return [job_id for at, job_id in self._reports if at == point]

    def _read(self, report: int) -> None:
        with open(report, encoding="ascii") as lines:
            for line in lines:
                point, number = line.split()
                with self._changed:
                    self._reports.append((point, JobId(int(number))))
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _failure(self, before: str) -> str:
        status = self._child.poll()
        end = "still runs" if status is None else f"ended with status {status}"
        return f"the worker process {end}, before {before}; it printed:\n{self.output[-_TAIL:]}"


def parse(target: str) -> Location:
    """Return the location that `module:name` names."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(f"expected 'module:name', got {target!r}")
    return Location(module, name)


def locate(app: Penstock) -> Location:
    """Return the module that holds an app, and its name there.

    If several do, such as a program and a test that imports it, prefer the one with its tasks.
    """
    owners = Counter(task.handler.__module__ for task in app.tasks.values())
    found = [
        Location(module_name, name, getattr(module, "__file__", None))
        for module_name, module in list(sys.modules.items())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is app
    ]
    if not found:
        raise ConfigurationError(
            "no module holds this app by name, so another process cannot find it; "
            "create it at the top level of a module, or give 'module:name'"
        )
    return max(found, key=lambda one: (owners[one.module], one.module != "__main__"))
