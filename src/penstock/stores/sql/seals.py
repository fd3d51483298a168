"""The seal of a store: whether jobs move between it and another.

Every transaction that changes jobs asks for it first.
"""

from collections.abc import Sequence

from penstock.core import seal as rules
from penstock.core.seal import Passage, Seal
from penstock.stores.sql.transaction import Reading, Transaction


def find(reading: Reading) -> Seal | None:
    """The seal, if there is one."""
    row = reading.execute("seal").fetchone()
    if row is None:
        return None
    passage, peer, place = row
    return Seal(passage=Passage(passage), peer=peer, place=place)


def check_open(tx: Transaction) -> None:
    """Raise unless jobs may come in, start and move on."""
    rules.check_open(find(tx))


def check_lasting(tx: Transaction) -> None:
    """Raise if what is written would stay behind."""
    rules.check_lasting(find(tx))


def put(tx: Transaction, calls: Sequence[tuple[Seal | None, Seal | None]]) -> list[bool]:
    """See `Store.seal`."""
    return [_put_one(tx, seal, was) for seal, was in calls]


def _put_one(tx: Transaction, seal: Seal | None, was: Seal | None) -> bool:
    if find(tx) != was:
        return False
    tx.execute("drop_seal")
    if seal is not None:
        tx.execute("put_seal", (seal.passage, seal.peer, seal.place))
    tx.written = tx.ring = tx.ring_others = True
    return True
