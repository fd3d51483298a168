"""How a run comes to its end: by what it returns, or inside a transaction of its own."""

import logging
from collections.abc import Sequence
from typing import Any

from penstock.core import jsontext
from penstock.core.errors import PenstockError, StoreUnavailable, Unreadable
from penstock.core.job import Job
from penstock.core.lifecycle import Done, Failed, Outcome
from penstock.engine import Penstock

_log = logging.getLogger(__name__)
RESULT_LIMIT = 1_000_000
_DONE = Done()
_UNCOMMITTED = Failed("it called context.finish, but that transaction was not committed")


def finished(result: Any) -> Done | Failed:
    """What a handler came to that returned this."""
    if result is None:
        return _DONE
    try:
        encoded = jsontext.encode(result, "its result")
    except Unreadable as error:
        return Failed(f"it ran, but {error}", permanent=True)
    if len(encoded) > RESULT_LIMIT:
        return Failed(
            f"it ran, but its result is {len(encoded)} characters of JSON, more than "
            f"{RESULT_LIMIT}; store large data elsewhere and return a reference",
            permanent=True,
        )
    return Done(encoded)


async def settle_joined(
    penstock: Penstock, ended: Sequence[tuple[Job, Outcome]]
) -> list[Job | None]:
    """What became of jobs whose runs joined transactions of their own; None for one that is lost.

    Without a commit a run has failed, whatever it returned.
    """
    found = {job.id: job for job in await penstock.store.get([job.id for job, _ in ended])}
    return [await _settled(penstock, job, outcome, found.get(job.id)) for job, outcome in ended]


async def _settled(penstock: Penstock, job: Job, outcome: Outcome, found: Job | None) -> Job | None:
    if found and found.token == job.token and found.state.final:
        return found
    failed = _UNCOMMITTED if isinstance(outcome, Done) else outcome
    try:
        (settled,) = await penstock.settle_held([(job, failed)])
    except StoreUnavailable:
        raise
    except PenstockError:  # the row is locked
        _log.warning("job %d ended, but its transaction is still open", job.id)
        return None
    return settled
