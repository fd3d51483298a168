"""One transaction in one round trip: prepared statements, sent together and committed together.

The server runs them one after the other, each with a snapshot of its own, and commits when it
reaches the end of what was sent. The driver has a pipeline of its own, for cursors, which takes
120 µs for two statements; these functions of libpq take 15 µs.
"""

import select
from collections.abc import Sequence
from itertools import count
from typing import Any

import psycopg
from psycopg import errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format

Statement = tuple[str, Sequence[Any]]
"""A statement and its parameters."""
Rows = list[tuple[Any, ...]]

AVAILABLE = hasattr(select, "poll") and psycopg.capabilities.has_pipeline()
"""Whether this machine can; the driver's library cannot if it is older than PostgreSQL 14."""

NAME = "penstock_trip_"
"""What the names of statements begin with, as the server sees them."""


class Pipeline:
    """Runs transactions on one connection, which nobody else uses meanwhile."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._names: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._numbers = count()
        self._readable = select.poll()
        self._readable.register(self._pgconn.socket, select.POLLIN)
        self._either = select.poll()
        self._either.register(self._pgconn.socket, select.POLLIN | select.POLLOUT)

    def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run statements in a transaction and commit it; return the rows of each.

        If one fails, nothing is written. If the connection is lost, nobody knows.
        """
        try:
            return self._run(statements)
        except errors.InvalidSqlStatementName:  # the driver drops them all after a DROP TABLE
            self._names.clear()
            return self._run(statements)

    def roll_back(self) -> None:
        """Roll back a transaction. The driver would also drop all prepared statements."""
        self._pgconn.exec_(b"ROLLBACK")

    def _run(self, statements: Sequence[Statement]) -> list[Rows]:
        pgconn = self._pgconn
        unprepared = dict(self._names)
        pgconn.enter_pipeline_mode()
        transformers = [self._send(*statement) for statement in statements]
        pgconn.pipeline_sync()
        self._flush()
        results = self._results()
        pgconn.exit_pipeline_mode()
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                self._names = unprepared  # some statements may not have been prepared
                raise errors.error_from_result(result, self._connection.info.encoding)
        answers = [result for result in results if result.status == ExecStatus.TUPLES_OK]
        return [_rows(*one) for one in zip(transformers, answers, strict=True)]

    def _send(self, text: str, parameters: Sequence[Any]) -> Any:
        transformer = Transformer(self._connection)
        values = transformer.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
        types = tuple(transformer.types or ())
        name = self._names.get((text, types))
        if name is None:
            name = f"{NAME}{next(self._numbers)}".encode()
            self._names[text, types] = name
            self._pgconn.send_prepare(name, text.encode(), types)
        self._pgconn.send_query_prepared(name, values, transformer.formats, Format.BINARY)
        return transformer

    def _flush(self) -> None:
        """Send all; meanwhile read what the server says, or both sides would wait."""
        while self._pgconn.flush():
            for _, event in self._either.poll():
                if event & ~select.POLLOUT:
                    self._pgconn.consume_input()

    def _results(self) -> list[Any]:
        pgconn = self._pgconn
        results: list[Any] = []
        while True:
            while pgconn.is_busy():
                self._readable.poll()  # get_result would keep other threads from running
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:  # the end of one statement
                if pgconn.status:
                    raise psycopg.OperationalError("the connection was lost")
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                return results
            results.append(result)


def _rows(transformer: Any, result: Any) -> Rows:
    transformer.set_pgresult(result, set_loaders=True, format=Format.BINARY)
    found: Rows = transformer.load_rows(0, result.ntuples, tuple)
    return found
