"""The migration lock: whether jobs are being moved between this store and another.

Every transaction that changes jobs checks it first.
"""

from collections.abc import Sequence

from penstock.core import migration_lock
from penstock.core.migration_lock import MigrationLock, MigrationPhase
from penstock.stores.sql.database import Reader, Transaction


def find(reader: Reader) -> MigrationLock | None:
    """Return the migration lock, if it is set."""
    row = reader.execute("migration_lock").fetchone()
    if row is None:
        return None
    phase, peer, place = row
    return MigrationLock(phase=MigrationPhase(phase), peer=peer, place=place)


def check_open(tx: Transaction) -> None:
    """Raise unless jobs may be added, started and changed."""
    if (lock := find(tx)) is not None:
        migration_lock.check_open(lock)


def check_lasting(tx: Transaction) -> None:
    """Raise if what is written would be left behind by a migration."""
    migration_lock.check_lasting(find(tx))


def put(
    tx: Transaction, calls: Sequence[tuple[MigrationLock | None, MigrationLock | None]]
) -> list[bool]:
    """See `Store.set_migration_lock`."""
    return [_put_one(tx, lock, was) for lock, was in calls]


def _put_one(tx: Transaction, lock: MigrationLock | None, was: MigrationLock | None) -> bool:
    if find(tx) != was:
        return False
    tx.execute("drop_migration_lock")
    if lock is not None:
        tx.execute("put_migration_lock", (lock.phase, lock.peer, lock.place))
    tx.written = tx.notify = tx.notify_others = True
    return True
