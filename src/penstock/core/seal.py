"""Stores between which jobs move: what a store lets happen while they do, and afterwards."""

from enum import StrEnum

import msgspec

from penstock.core.errors import StoreError, StoreMoved, StoreUnavailable


class Passage(StrEnum):
    """What becomes of the jobs of a sealed store."""

    LEAVING = "leaving"
    LEFT = "left"
    ARRIVING = "arriving"


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """Says that jobs move between a store and another: its number (see `Origin`) and its place.

    At no moment are both stores without a seal: a job starts in one of them at most.
    """

    passage: Passage
    peer: int
    place: str


def describe(seal: Seal) -> str:
    """What is going on, in words."""
    match seal.passage:
        case Passage.ARRIVING:
            return f"jobs are on their way here from {seal.place}"
        case Passage.LEAVING:
            return f"the jobs of this store are on their way to {seal.place}"
        case Passage.LEFT:
            return f"the jobs of this store have moved to {seal.place}"


def check_open(seal: Seal | None) -> None:
    """Raise unless jobs may come into a store, start there and move on."""
    if seal is not None:
        raise _refusal(seal)


def check_lasting(seal: Seal | None) -> None:
    """Raise for a store whose jobs leave: what is written there now would stay behind."""
    if seal is not None and seal.passage is not Passage.ARRIVING:
        raise _refusal(seal)


def _refusal(seal: Seal) -> StoreError:
    text = f"{describe(seal)}; nothing was changed"
    match seal.passage:
        case Passage.ARRIVING:
            return StoreUnavailable(f"{text}, try again when 'penstock migrate' has ended")
        case Passage.LEAVING:
            return StoreMoved(f"{text}, use that store when 'penstock migrate' has ended")
        case Passage.LEFT:
            return StoreMoved(f"{text}, use that store")
