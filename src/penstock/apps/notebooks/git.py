"""Runs git on the repository of a notebook: one process per step, whatever the number of paths.

Paths go in through standard input, or as literal texts behind `--`, so that none is taken for an
option or a pattern. The repository is named explicitly, and nothing that the folder contains is
run (`guards`).
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from penstock.apps.notebooks.errors import Passing, Permanent
from penstock.apps.notebooks.guards import environment

TIMEOUT = 60.0
"""Seconds that reading git's history may take."""

_LOCKED = "index.lock"
_POLITE = 5
"""How much requests go before git, where both want the processor."""


class TooSlow(Passing):
    """git took too long, and was ended."""


class Answer(NamedTuple):
    """What git said."""

    code: int
    out: bytes
    told: str


class Place(NamedTuple):
    """The folders that a git process is told to work on."""

    work_tree: Path
    directory: Path
    """What belongs to this work tree: HEAD, the index, and what is in progress."""
    common: Path
    """The server's own: a derived configuration, and links to the repository's data."""


class Git:
    """git on one repository; without one, for commands that need none."""

    def __init__(self, place: Place | None, *, reads_own_files: bool = False) -> None:
        """With `reads_own_files` git reads the configuration of the server's user."""
        self._reads_own_files = reads_own_files
        self._running: set[subprocess.Popen[bytes]] = set()
        self._busy = threading.Lock()
        self._is_ended = False
        self._folder = Path("/") if place is None else place.work_tree
        self._repository = {
            "GIT_CEILING_DIRECTORIES": str(self._folder),
            "GIT_DIR": os.devnull if place is None else str(place.directory),
        }
        if place is not None:
            self._repository |= {
                "GIT_COMMON_DIR": str(place.common),
                "GIT_WORK_TREE": str(place.work_tree),
            }

    def __call__(
        self,
        *words: str,
        stdin: bytes | BinaryIO = b"",
        index: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> bytes:
        """What git answers; raises `Passing` if it fails, with its own words."""
        answer = self.ask(*words, stdin=stdin, index=index, env=env, timeout=timeout)
        if answer.code:
            raise failed(_command(words), answer.told)
        return answer.out

    def ask(
        self,
        *words: str,
        stdin: bytes | BinaryIO = b"",
        index: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> Answer:
        """What git answers and how it ended, for commands whose exit code is an answer."""
        text, file = (stdin, None) if isinstance(stdin, bytes) else (None, stdin)
        with self._started(words, index, env, stdin=file) as process:
            try:
                out, told = process.communicate(text, timeout)
            except BaseException as error:
                _end(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise TooSlow(
                        f"git {_command(words)} took longer than {timeout:g} s"
                    ) from error
                raise
        return Answer(process.returncode, out, told.decode(errors="replace").strip())

    def head_of(self, *words: str, limit: int, timeout: float = TIMEOUT) -> tuple[Answer, bool]:
        """As `ask`, for answers that may be long: at most so many bytes, and whether it was all."""
        with self._started(words, None, None, errors=subprocess.DEVNULL) as process:
            patience = threading.Timer(timeout, _end, [process])
            patience.start()
            try:
                out = process.stdout.read(limit + 1) if process.stdout else b""
            finally:
                patience.cancel()
            if len(out) > limit:
                _end(process)
                return Answer(0, out[:limit], ""), False
        if process.returncode == -signal.SIGKILL:
            raise TooSlow(f"git {_command(words)} took longer than {timeout:g} s")
        return Answer(process.returncode, out, ""), True

    def end(self) -> None:
        """End what is running, and run nothing more: a git that hangs must not outlive the server.

        git gets to remove its lock files.
        """
        with self._busy:
            self._is_ended = True
            for process in self._running:
                if process.poll() is None:
                    _end(process, signal.SIGTERM)

    @contextmanager
    def _started(
        self,
        words: Sequence[str],
        index: Path | None,
        env: Mapping[str, str] | None,
        *,
        stdin: BinaryIO | None = None,
        errors: int = subprocess.PIPE,
    ) -> "Iterator[subprocess.Popen[bytes]]":
        with self._busy:
            if self._is_ended:
                raise Passing("the server works on the notebook no longer")
            process = self._start(words, index, env, stdin, errors)
            self._running.add(process)
        try:
            with process:
                with suppress(ProcessLookupError, PermissionError):
                    os.setpriority(os.PRIO_PROCESS, process.pid, os.nice(0) + _POLITE)
                yield process
        finally:
            with self._busy:
                self._running.discard(process)

    def _start(
        self,
        words: Sequence[str],
        index: Path | None,
        env: Mapping[str, str] | None,
        stdin: BinaryIO | None,
        errors: int,
    ) -> "subprocess.Popen[bytes]":
        command = ["git", "-C", str(self._folder), *words]
        try:
            return subprocess.Popen(  # noqa: S603 - words of ours; paths stand behind `--`
                command,
                stdin=stdin or subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment(index, env or {}),
                # Ctrl-C at the server's terminal must not end a commit in the middle.
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise Permanent("git is not installed") from error

    def _environment(self, index: Path | None, more: Mapping[str, str]) -> dict[str, str]:
        made = environment(reads_own_files=self._reads_own_files) | self._repository | dict(more)
        return made if index is None else {**made, "GIT_INDEX_FILE": str(index)}


def _end(process: "subprocess.Popen[bytes]", how: int = signal.SIGKILL) -> None:
    """End git and what it has started, which would keep its pipes open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def failed(command: str, told: str) -> Passing:
    """A failure of git, as something that may pass."""
    why = told.splitlines()[-1] if told else "without a word"
    if _LOCKED in told:
        why = f"the index is locked ({_LOCKED}); remove that file if no git is running"
    return Passing(f"git {command} failed: {why}")


def _command(words: Sequence[str]) -> str:
    """Which command it is: settings may stand before it."""
    at = 0
    while words[at] == "-c":
        at += 2
    return words[at]
