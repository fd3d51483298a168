"""The runtime: background work, executors and child processes of the operating system."""

import ast
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import runtime as runtime_module
from penstock.runtime import SYSTEM, Background, Runtime, Step, system_clock
from tests.environment import SOON

Make = Callable[[Step], Background]


@pytest.fixture
def background() -> Iterator[Make]:
    """Make background work that is closed after the test, and leaves no thread behind."""
    made: list[Background] = []
    before = threading.active_count()

    def make(step: Step) -> Background:
        made.append(SYSTEM.background(step, "test-background"))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert threading.active_count() == before


class Steps:
    """A step that counts its calls and waits where a test wants it to."""

    def __init__(self, pause: float | None = None) -> None:
        self.pause = pause
        self.ran = threading.Semaphore(0)
        self.calls = 0
        self.running = 0
        self.overlapped = False
        self.proceed = threading.Event()
        self.proceed.set()

    def __call__(self) -> float | None:
        self.overlapped = self.overlapped or self.running > 0
        self.running += 1
        self.calls += 1
        self.ran.release()
        assert self.proceed.wait(SOON)
        self.running -= 1
        return self.pause

    def wait(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.ran.acquire(timeout=SOON)


# Time and randomness


def test_system_runtime_hands_out_the_functions_of_the_standard_library() -> None:
    assert SYSTEM.clock is system_clock
    assert SYSTEM.monotonic is time.monotonic
    assert SYSTEM.sleep is time.sleep
    assert SYSTEM.files.sync is os.fsync


def test_another_clock_leaves_the_rest_and_the_original_as_they_are() -> None:
    other = SYSTEM.with_clock(lambda: 7)
    assert other.clock() == 7
    assert (other.random, other.files) == (SYSTEM.random, SYSTEM.files)
    assert SYSTEM.clock is system_clock


def test_another_clock_keeps_the_class_of_a_runtime() -> None:
    class Own(Runtime):
        """A runtime of a test."""

    assert isinstance(Own().with_clock(lambda: 7), Own)


def test_fork_has_randomness_of_its_own() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, SYSTEM.random.randbytes(8))
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    theirs = os.read(reading, 8)
    os.close(reading)
    assert theirs != SYSTEM.random.randbytes(8)


# Background work


def test_thread_starts_with_the_first_wake(background: Make) -> None:
    work = background(steps := Steps())
    assert "test-background" not in [thread.name for thread in threading.enumerate()]
    work.wake()
    steps.wait()
    [thread] = [one for one in threading.enumerate() if one.name == "test-background"]
    assert thread.daemon, "an unclosed one must not keep the program from ending"


def test_step_runs_when_woken(background: Make) -> None:
    work = background(steps := Steps())
    for _ in range(3):
        work.wake()
        steps.wait()
    work.close()
    assert steps.calls == 3


@pytest.mark.parametrize("pause", [0.001, 0.0, -1.0])
def test_step_runs_again_after_the_time_that_it_returned(background: Make, pause: float) -> None:
    work = background(steps := Steps(pause))
    work.wake()
    steps.wait(times=5)


def test_step_is_woken_before_its_time(background: Make) -> None:
    work = background(steps := Steps(pause=3600))
    for _ in range(2):
        work.wake()
        steps.wait()


def test_wakes_during_a_step_are_answered_by_one_more(background: Make) -> None:
    work = background(steps := Steps())
    steps.proceed.clear()
    work.wake()
    steps.wait()
    for _ in range(100):
        work.wake()
    steps.proceed.set()
    steps.wait()
    work.wake()
    steps.wait()
    work.close()
    assert steps.calls == 3
    assert not steps.overlapped


def test_wakes_from_many_threads_start_one_thread(background: Make) -> None:
    work = background(steps := Steps())
    barrier = threading.Barrier(8)

    def wake() -> None:
        barrier.wait(SOON)
        for _ in range(100):
            work.wake()

    threads = [threading.Thread(target=wake) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.name for one in threading.enumerate()].count("test-background") == 1
    work.close()
    assert not steps.overlapped


def test_close_waits_for_the_step_under_way(background: Make) -> None:
    work = background(steps := Steps(pause=0.0))
    steps.proceed.clear()
    work.wake()
    steps.wait()
    closing = threading.Thread(target=work.close)
    closing.start()
    closing.join(0.01)
    assert closing.is_alive()
    steps.proceed.set()
    closing.join(SOON)
    assert (closing.is_alive(), steps.running, steps.calls) == (False, 0, 1)


def test_no_step_runs_after_close(background: Make) -> None:
    work = background(steps := Steps(pause=0.0))
    work.wake()
    steps.wait()
    work.close()
    calls = steps.calls
    work.wake()
    work.close()
    assert steps.calls == calls


def test_close_before_the_first_wake_starts_nothing(background: Make) -> None:
    work = background(steps := Steps())
    work.close()
    work.wake()
    assert (steps.calls, work._thread) == (0, None)


def test_step_that_raises_is_logged_and_runs_again(
    background: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime_module, "_RETRY_PAUSE", 0.001)
    steps, errors = Steps(pause=3600), [ValueError("a bug"), OSError("the disk is full")]

    def step() -> float | None:
        steps()
        if errors:
            raise errors.pop(0)
        return 3600

    with caplog.at_level(logging.ERROR):
        background(step).wake()
        steps.wait(times=3)
    assert "background work test-background failed, trying again" in caplog.text
    assert "ValueError: a bug" in caplog.text
    assert "OSError: the disk is full" in caplog.text


# Executors and processes


def test_executor_calls_functions_in_named_threads() -> None:
    with SYSTEM.executor(1, "test-executor") as executor:
        name = executor.submit(lambda: threading.current_thread().name).result(SOON)
    assert name.startswith("test-executor")


def test_child_process_is_waited_for_without_being_reaped() -> None:
    process = SYSTEM.spawn([sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"])
    SYSTEM.wait_for_exit(process)
    assert Path(f"/proc/{process.pid}/stat").exists(), "its number must not be reused yet"
    assert process.wait(SOON) == 3
    SYSTEM.wait_for_exit(process)  # returns at once for one that was reaped


def test_signal_reaches_the_whole_process_group() -> None:
    family = "import os, time; print(os.fork(), flush=True); time.sleep(600)"
    process = SYSTEM.spawn(
        [sys.executable, "-I", "-S", "-c", family],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert {output.readline() for _ in range(2)} > {b"0\n"}
        SYSTEM.signal_group(process, signal.SIGKILL)
        assert output.read() == b"", "the pipe closes when the last of them has ended"
    assert process.wait(SOON) == -signal.SIGKILL
    SYSTEM.signal_group(process, signal.SIGKILL)  # does nothing for one that was reaped


# Nothing goes around it

ROOT = Path(runtime_module.__file__).parent
FORBIDDEN = {
    "time": {"*"},
    "random": {"*"},
    "shutil": {"*"},
    "tempfile": {"*"},
    "subprocess": {"Popen", "run", "call", "check_call", "check_output"},
    "socket": {"gethostname", "create_connection", "create_server"},
    "threading": {"Thread", "Timer"},
    "sqlite3": {"connect"},
    "os": {
        *("getpid", "getppid", "fork", "kill", "killpg", "_exit", "urandom", "scandir", "walk"),
        *("open", "close", "read", "write", "pread", "pwrite", "lseek", "ftruncate", "truncate"),
        *("fsync", "fdatasync", "stat", "fstat", "listdir", "replace", "rename", "link", "unlink"),
        *("remove", "mkdir", "rmdir", "makedirs", "access", "pipe", "mkfifo", "posix_fallocate"),
    },
}
"""What stores, engine and worker reach through the runtime only."""

ALLOWED = [
    ("engine/connection.py", "os.getpid", "keeps it: asking in every call takes a microsecond"),
    (
        "engine/archive_file.py",
        "os.getpid os.open os.close os.fsync os.link",
        "exports and archives are written on command, which no simulated world gives",
    ),
    ("stores/observed.py", "time.perf_counter", "measures how long calls really take"),
    ("stores/backups.py", "tempfile.mkdtemp", "the name must be one that nobody can guess"),
    ("stores/backups.py", "os.link", "unlike all other operations, it never replaces a file"),
    ("stores/journal/backup.py", "shutil.copyfile", "the copy is synced through the runtime"),
    (
        "stores/postgres/schema.py",
        "time.time_ns time.monotonic time.sleep",
        "PostgreSQL is tested with real servers: no simulated world has one",
    ),
    ("stores/sqlite/forks.py", "os.listdir os.fstat", "descriptors of a process that really forks"),
    (
        "worker/children/main.py",
        "os.getpid os.getppid os.kill os._exit",
        "the program of a real child process; simulated workers have none",
    ),
    ("worker/children/process.py", "os.getpid", "tells a real child process who its parent is"),
]
"""Where the operating system is reached directly, and why."""


def _bypasses(path: Path) -> set[str]:
    """What a module uses of the operating system past the runtime."""
    tree = ast.parse(path.read_text("utf-8"))
    annotations = {
        id(part)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if isinstance(annotation := getattr(node, field, None), ast.AST)
        for part in ast.walk(annotation)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN:
            names = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [(node.value.id, node.attr)] if id(node) not in annotations else []
        else:
            continue
        for module, name in names:
            if FORBIDDEN.get(module, set()) & {"*", name}:
                found.add(f"{module}.{name}")
    return found


@pytest.mark.parametrize("package", ["stores", "engine", "worker"])
def test_nothing_goes_around_the_runtime(package: str) -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}": bypasses
        for path in (ROOT / package).rglob("*.py")
        if (bypasses := _bypasses(path))
    }
    allowed: dict[str, set[str]] = {}
    for path, names, _ in ALLOWED:
        if path.startswith(package):
            allowed.setdefault(path, set()).update(names.split())
    assert found == allowed


def test_bypasses_are_recognised(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "import os, time\nfrom random import random\n"
        "def f(sock: socket.socket) -> None:\n    os.getpid(), time.sleep(1), os.O_RDONLY\n"
    )
    assert _bypasses(module) == {"os.getpid", "time.sleep", "random.random"}
