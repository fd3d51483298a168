"""The seal of a file: whether jobs move between it and another store.

Every transaction that changes jobs asks for it first. One writer at a time makes that safe.
"""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.core import seal as rules
from penstock.core.seal import Passage, Seal
from penstock.stores.sqlite.transaction import SQL, Transaction


def find(execute: Callable[..., Any]) -> Seal | None:
    """The seal, if there is one."""
    row = execute(SQL["seal"]).fetchone()
    if row is None:
        return None
    passage, peer, place = row
    return Seal(passage=Passage(passage), peer=peer, place=place)


def check_open(tx: Transaction) -> None:
    """Raise unless jobs may come in, start and move on."""
    rules.check_open(find(tx.execute))


def check_lasting(tx: Transaction) -> None:
    """Raise if what is written would stay behind."""
    rules.check_lasting(find(tx.execute))


def put(tx: Transaction, calls: Sequence[tuple[Seal | None, Seal | None]]) -> list[bool]:
    """See `Store.seal`."""
    return [_put_one(tx, seal, was) for seal, was in calls]


def _put_one(tx: Transaction, seal: Seal | None, was: Seal | None) -> bool:
    if find(tx.execute) != was:
        return False
    tx.execute(SQL["drop_seal"])
    if seal is not None:
        tx.execute(SQL["put_seal"], (seal.passage, seal.peer, seal.place))
    tx.written = tx.ring = tx.ring_others = True
    return True
