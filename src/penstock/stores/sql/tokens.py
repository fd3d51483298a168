"""Access tokens."""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.times import from_micros, to_micros
from penstock.core.tokens import Access, Token
from penstock.stores.sql import migration_lock
from penstock.stores.sql.database import Reader, Transaction
from penstock.stores.sql.rows import encoded

_scopes = msgspec.json.Decoder(frozenset[Access])


def find(reader: Reader) -> list[Token]:
    """See `Store.tokens`."""
    return [_token(row) for row in reader.execute("tokens")]


def add(tx: Transaction, calls: Sequence[Token]) -> list[bool]:
    """See `Store.add_token`."""
    migration_lock.check_lasting(tx)
    return [_add_one(tx, token) for token in calls]


def _add_one(tx: Transaction, token: Token) -> bool:
    columns = (
        token.name,
        token.digest,
        encoded(sorted(token.scopes)),
        to_micros(token.created_at),
        None if token.expires_at is None else to_micros(token.expires_at),
    )
    return _changed(tx, "add_token", columns)


def drop(tx: Transaction, names: Sequence[str]) -> list[bool]:
    """See `Store.drop_token`."""
    return [_changed(tx, "drop_token", (name,)) for name in names]


def _changed(tx: Transaction, query: str, parameters: Sequence[Any]) -> bool:
    """Run a query; if it changed a row, notify every process and return True."""
    if not tx.execute(query, parameters).fetchall():
        return False
    tx.written = tx.notify = tx.notify_others = True
    return True


def _token(row: Sequence[Any]) -> Token:
    name, digest, scopes, created_at, expires_at = row
    return Token(
        name=name,
        digest=digest,
        scopes=_scopes.decode(scopes),
        created_at=from_micros(created_at),
        expires_at=None if expires_at is None else from_micros(expires_at),
    )
