"""Transactions that the writer sends in one round trip: what a verb provides for them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from penstock.stores.postgres.pipeline import Rows
from penstock.stores.postgres.transaction import LockMode, PostgresTransaction

Receipt = tuple[int | None, int | None]
"""The client and its number for a transaction; None for a transaction with a commit of its own."""

Trip = tuple[str, tuple[Any, ...]]
"""The name and the parameters of a query, the only one of its transaction."""


class Verb(Protocol):
    """Calls that one statement answers in most cases."""

    def prepare(self, calls: Sequence[Any], now: int | None, receipt: Receipt) -> Trip | None:
        """Return the statement for these calls; None if one is not enough.

        Without a time, the server's is meant.
        """
        ...

    def complete(
        self, tx: PostgresTransaction, calls: Sequence[Any], found: Rows
    ) -> Sequence[Any] | None:
        """Return the answers; None if nothing was written, because one is not enough after all.

        `tx` has been committed; like a verb, this adds to it what must follow the commit.
        """
        ...


class RoundTrip(NamedTuple):
    """How the calls of a verb are sent in one round trip."""

    verb: Verb
    mode: LockMode
    notifies: bool
    """Whether other processes are to be notified."""
    written: str
    """The query that finds what such a transaction wrote, when the answer was lost."""
