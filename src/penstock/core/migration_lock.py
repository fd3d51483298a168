"""The migration lock: what a store refuses while its jobs move to or from another one."""

from enum import StrEnum

import msgspec

from penstock.core.errors import StoreError, StoreMoved, StoreUnavailable


class MigrationPhase(StrEnum):
    """What happens to the jobs of a locked store."""

    LEAVING = "leaving"
    LEFT = "left"
    ARRIVING = "arriving"


class MigrationLock(msgspec.Struct, frozen=True, kw_only=True, rename={"phase": "passage"}):
    """A store's record that jobs move between it and another store, the `peer`.

    `peer` is the identity of the other store (see `Origin.source`), `place` its URL. At every
    moment of a migration at least one of the two stores is locked, so that a job can start in only
    one of them.
    """

    phase: MigrationPhase
    peer: int
    place: str


def describe(lock: MigrationLock) -> str:
    """Describe a migration in words."""
    match lock.phase:
        case MigrationPhase.ARRIVING:
            return f"jobs are on their way here from {lock.place}"
        case MigrationPhase.LEAVING:
            return f"the jobs of this store are on their way to {lock.place}"
        case MigrationPhase.LEFT:
            return f"the jobs of this store have moved to {lock.place}"


def check_open(lock: MigrationLock | None) -> None:
    """Raise if no job may be added, started or moved on in a store with this lock."""
    if lock is not None:
        raise _refusal(lock)


def check_lasting(lock: MigrationLock | None) -> None:
    """Raise if the jobs of a store leave or have left: what is written now would stay behind."""
    if lock is not None and lock.phase is not MigrationPhase.ARRIVING:
        raise _refusal(lock)


def _refusal(lock: MigrationLock) -> StoreError:
    text = f"{describe(lock)}; nothing was changed"
    match lock.phase:
        case MigrationPhase.ARRIVING:
            return StoreUnavailable(f"{text}; try again when 'penstock migrate' has ended")
        case MigrationPhase.LEAVING:
            return StoreMoved(f"{text}; use that store when 'penstock migrate' has ended")
        case MigrationPhase.LEFT:
            return StoreMoved(f"{text}; use that store")
