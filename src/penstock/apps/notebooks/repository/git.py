"""Runs git on the repository of a notebook, with one process per step for any number of paths.

Paths are passed on standard input, or literally after `--`, so that none is read as an option or a
pattern. The repository is named explicitly, and nothing that the folder contains is executed (see
`guards`).
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from penstock.apps.notebooks.errors import Permanent, Transient
from penstock.apps.notebooks.repository.guards import environment

TIMEOUT = 60.0
"""Seconds that a git command may take."""

_LOCKED = "index.lock"
_POLITE = 5
"""How much lower the priority of git is than that of the server."""


class TooSlow(Transient):
    """A git command exceeded its time limit and was killed."""


class GitOutput(NamedTuple):
    """The output of a git command."""

    code: int
    stdout: bytes
    stderr: str


class Place(NamedTuple):
    """The folders that a git process works on."""

    work_tree: Path
    directory: Path
    """The git directory of this work tree: HEAD, the index, and operations in progress."""
    common: Path
    """A directory of the server with a derived configuration and links to the data of the
    repository."""


class Git:
    """Runs git on one repository, or on none for commands that need none."""

    def __init__(self, place: Place | None, *, reads_own_files: bool = False) -> None:
        """With `reads_own_files`, git reads the configuration of the server's user."""
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
        """Run a command and return its output; raises `Transient` with git's message on failure."""
        answer = self.ask(*words, stdin=stdin, index=index, env=env, timeout=timeout)
        if answer.code:
            raise failed(_command(words), answer.stderr)
        return answer.stdout

    def ask(
        self,
        *words: str,
        stdin: bytes | BinaryIO = b"",
        index: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> GitOutput:
        """Run a command whose exit code is part of the answer."""
        text, file = (stdin, None) if isinstance(stdin, bytes) else (None, stdin)
        with self._started(words, index, env, stdin=file) as process:
            try:
                stdout, stderr = process.communicate(text, timeout)
            except BaseException as error:
                _end(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise TooSlow(
                        f"git {_command(words)} took longer than {timeout:g} s"
                    ) from error
                raise
        return GitOutput(process.returncode, stdout, stderr.decode(errors="replace").strip())

    def head_of(self, *words: str, limit: int, timeout: float = TIMEOUT) -> tuple[GitOutput, bool]:
        """Run a command with long output; return at most `limit` bytes and whether that was all."""
        with self._started(words, None, None, errors=subprocess.DEVNULL) as process:
            timer = threading.Timer(timeout, _end, [process])
            timer.start()
            try:
                out = process.stdout.read(limit + 1) if process.stdout else b""
            finally:
                timer.cancel()
            if len(out) > limit:
                _end(process)
                return GitOutput(0, out[:limit], ""), False
        if process.returncode == -signal.SIGKILL:
            raise TooSlow(f"git {_command(words)} took longer than {timeout:g} s")
        return GitOutput(process.returncode, out, ""), True

    def end(self) -> None:
        """Stop running commands and refuse new ones: a hanging git must not outlive the server.

        The signal allows git to remove its lock files.
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
                raise Transient("the server has closed the notebook")
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
            return subprocess.Popen(  # noqa: S603 - fixed arguments; paths follow `--`
                command,
                stdin=stdin or subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment(index, env or {}),
                # Ctrl-C in the terminal of the server must not interrupt a commit.
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise Permanent("git is not installed") from error

    def _environment(self, index: Path | None, more: Mapping[str, str]) -> dict[str, str]:
        made = environment(reads_own_files=self._reads_own_files) | self._repository | dict(more)
        return made if index is None else {**made, "GIT_INDEX_FILE": str(index)}


def _end(process: "subprocess.Popen[bytes]", how: int = signal.SIGKILL) -> None:
    """Send a signal to git and its children, which would otherwise keep its pipes open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def failed(command: str, stderr: str) -> Transient:
    """Return the error for a failed command; a retry may succeed."""
    why = stderr.splitlines()[-1] if stderr else "without a message"
    if _LOCKED in stderr:
        why = f"the index is locked ({_LOCKED}); remove that file if no git is running"
    return Transient(f"git {command} failed: {why}")


def _command(words: Sequence[str]) -> str:
    """Return the command among the arguments: settings may come before it."""
    at = 0
    while words[at] == "-c":
        at += 2
    return words[at]
