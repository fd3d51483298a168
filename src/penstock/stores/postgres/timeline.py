"""The timeline of a PostgreSQL server: notices that a standby was promoted, or a backup restored.

Whatever the former primary had committed and not sent is lost then, and so are the ids that it
assigned. PostgreSQL begins a new timeline at that moment, and the store remembers its last one.
"""

import logging
from collections.abc import Mapping, Sequence

import psycopg

from penstock.core.errors import StoreUnavailable
from penstock.stores.postgres.transaction import Connection, PostgresTransaction
from penstock.stores.sql.recovery import raise_floor

_log = logging.getLogger(__name__)


class UnknownTimeline(StoreUnavailable):
    """A caller's transaction came before a writer that could have raised the floor of ids."""


def current(connection: Connection, sql: Mapping[str, str]) -> int | None:
    """Return the timeline of a primary; None where the server does not tell."""
    try:
        ((timeline,),) = connection.execute(sql["timeline"]).fetchall()
    except (psycopg.NotSupportedError, psycopg.ProgrammingError) as error:
        _log.debug("the server does not tell its timeline: %s", error)
        return None
    return int(timeline)


def is_known(connection: Connection, sql: Mapping[str, str], timeline: int) -> bool:
    """Return whether the store was last written on this timeline; note the first one."""
    row = connection.execute(sql["meta"], ("timeline",)).fetchone()
    if row is None:
        connection.execute(sql["set_meta"], ("timeline", timeline))
    return row is None or row[0] == timeline


def follow(tx: PostgresTransaction, calls: Sequence[None]) -> list[None]:
    """Note the timeline and raise the floor of ids, if no other process was faster.

    The timeline is that of the server on which this transaction runs: behind a pooler, it need not
    be that of the statement before.
    """
    ((timeline,),) = tx.execute("timeline").fetchall()
    ((known,),) = tx.execute("meta", ("timeline",)).fetchall()
    if known != timeline:
        reason = f"PostgreSQL went from timeline {known} to {timeline}"
        (cut,) = raise_floor(tx, [("penstock", reason, 0, False)])
        _log.warning("%s; ids continue above %d", reason, cut.floor)
        tx.execute("set_meta", ("timeline", timeline))
        tx.written = True
    return [None] * len(calls)
