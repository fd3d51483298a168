"""The processes that embed: what they are told, and when they start."""

import msgspec

from penstock import State
from penstock.apps.entries import rows
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.operations import OPERATIONS_QUEUE
from penstock.apps.entries.rows import QUEUE
from penstock.apps.entries.settings import Settings
from penstock.apps.pool import Pool

NAME = "entries"
"""What the names of workers begin with."""


class Told(msgspec.Struct, frozen=True):
    """What a process is told."""

    url: str
    folder: str
    settings: Settings


def pool_of(entries: Entries) -> Pool:
    """The processes that embed for one server; one without entries starts none."""
    told = Told(entries.penstock.url, str(entries.shelves.folder), entries.settings)

    async def is_needed() -> bool:
        if not await _has_work(entries):
            return False
        # What is done once at the start.
        await entries.penstock.transact(rows.gather_counts)
        known = {one.name for one in await entries.penstock.workers()}
        await entries.penstock.transact(lambda tx: rows.forget_tallies(tx, known))
        if entries.settings.retry_failed:
            await entries.retry_failed()
        return True

    module = "penstock.apps.entries.child"
    return Pool(entries.penstock, module, told, entries.settings.workers, is_needed, name=NAME)


async def _has_work(entries: Entries) -> bool:
    """Whether there is work, or something to be checked."""
    if any((await entries.counts()).values()) or entries.shelves.folder.exists():
        return True
    return any(
        n
        for (queue, state, _), n in (
            await entries.penstock.count([QUEUE, OPERATIONS_QUEUE])
        ).items()
        if queue in (QUEUE, OPERATIONS_QUEUE)
        if state in (State.PENDING, State.RUNNING)
    )
