"""Dies by SIGKILL at a named point: at the n-th statement of a kind, or between two steps.

A point reads `before COMMIT 3`: a time (before, after, during), a statement (the name of a query
of the store, the first words of any other, or `*` for all), and which one, from 1. Between
statements a client dies `at claimed 1`, `at handling 1`, `at handled 1` or `at settled 1`. At
`amid pwrite 3`, half of a journal's write is done. At `stopped BEGIN 3` it does not die, but stands
still behind that statement until SIGCONT.
"""

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psycopg

from penstock.runtime import Files
from penstock.stores.journal.folder import Folder
from penstock.stores.postgres.connection import address, queries
from penstock.stores.postgres.pipeline import Pipeline, Rows, Statement
from penstock.stores.sqlite.transaction import SQL


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


class Point:
    """Counts what passes by and dies when it is this point's turn."""

    def __init__(self, text: str, url: str = "") -> None:
        self._when, rest = text.split(" ", 1)
        self._what, nth = rest.rsplit(" ", 1)
        self._left = int(nth)
        self._named = SQL
        if url.startswith("postgresql"):
            self._named = queries(address(url).schema)
        self.statements = 0
        self.commits = 0

    def pass_by(
        self, what: str, step: Callable[[], Any], half: Callable[[], object] | None = None
    ) -> Any:
        """Run a statement, unless this is the moment to die."""
        self.statements += 1
        self.commits += what in {"COMMIT", "fdatasync"}
        if not self._is(what):
            return step()
        self._left -= 1
        if self._left:
            return step()
        if self._when == "during":
            threading.Thread(target=_die_soon, daemon=True).start()
        if self._when == "amid" and half is not None:
            half()
        if self._when in {"before", "amid"}:
            die()
        answer = step()
        if self._when == "after":
            die()
        if self._when == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer

    def step(self, what: str) -> None:
        """A step between two calls, for the time `at`."""
        if self._when == "at" and what == self._what:
            self._left -= 1
            if not self._left:
                die()

    def _is(self, what: str) -> bool:
        if self._what in self._named:
            return what == self._named[self._what]
        return self._what == "*" or what.startswith(self._what)


def _die_soon() -> NoReturn:
    time.sleep(random.Random().uniform(0, 0.004))
    die()


def arm(point: Point) -> None:
    """Let every statement of every connection in this process pass by the point."""
    real = sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            cursor: sqlite3.Cursor = point.pass_by(
                sql, lambda: super(Connection, self).execute(sql, *parameters)
            )
            return cursor

        def executemany(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            cursor: sqlite3.Cursor = point.pass_by(
                sql, lambda: super(Connection, self).executemany(sql, *parameters)
            )
            return cursor

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        return real(*args, **options, factory=Connection)

    sqlite3.connect = connect  # type: ignore[assignment] # replaced for the test
    plain = psycopg.Connection.execute

    def execute(self: Any, query: Any, *parameters: Any, **how: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else query
        what = "COMMIT" if text.endswith("COMMIT") else text  # behind a NOTIFY
        return point.pass_by(what, lambda: plain(self, query, *parameters, **how))

    psycopg.Connection.execute = execute  # type: ignore[method-assign] # replaced for the test
    send = Pipeline.run

    def run(self: Pipeline, statements: Sequence[Statement]) -> list[Rows]:
        def commit() -> Any:
            return point.pass_by("COMMIT", lambda: send(self, statements))

        found: list[Rows] = point.pass_by(statements[-1][0], commit)
        return found

    Pipeline.run = run  # type: ignore[method-assign] # replaced for the test
    _arm_journal(point)


_CALLS = {"write_at": "pwrite", "sync_data": "fdatasync", "sync": "fsync", "truncate": "ftruncate"}


def _arm_journal(point: Point) -> None:
    """Let what a journal asks of the system pass by, too."""
    for name, call in _CALLS.items():
        setattr(Files, name, staticmethod(partial(_pass_by, point, call, getattr(Files, name))))
    publish = Folder.publish

    def published(self: Folder, draft: Path, path: Path) -> None:
        point.pass_by(f"publish {path.name}", lambda: publish(self, draft, path))

    Folder.publish = published  # type: ignore[method-assign] # replaced for the test


def _pass_by(point: Point, call: str, operation: Callable[..., Any], fd: int, *args: Any) -> Any:
    def torn() -> None:
        data, offset = args
        operation(fd, data[: len(data) // 2], offset)

    return point.pass_by(call, lambda: operation(fd, *args), torn if call == "pwrite" else None)
