"""How a run comes to its end: by what it returns, or inside a transaction of its own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.lifecycle import Done, Failed, Outcome
from penstock.engine import Penstock

if TYPE_CHECKING:
    from penstock.worker.execute import Run

_encode = msgspec.json.Encoder().encode
RESULT_LIMIT = 1_000_000
_DONE = Done()
_UNCOMMITTED = Failed("it called context.finish, but that transaction was not committed")


def finished(result: Any) -> Done | Failed:
    """What a handler came to that returned this."""
    if result is None:
        return _DONE
    try:
        encoded = _encode(result).decode()
        if len(encoded) > RESULT_LIMIT:
            return Failed(
                f"it ran, but its result is {len(encoded)} characters of JSON, more than "
                f"{RESULT_LIMIT}; store large data elsewhere and return a reference",
                permanent=True,
            )
        return Done(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Failed(f"it ran, but its result is not JSON: {error}", permanent=True)


async def unsettled(
    penstock: Penstock, ended: Sequence[tuple["Run", Outcome]]
) -> list[tuple["Run", Outcome]]:
    """Those that have not ended inside a transaction of their own, and what they came to.

    One whose transaction was not committed has failed, whatever it returned.
    """
    joined = [run.job.id for run, _ in ended if run.context.finishing]
    if not joined:
        return list(ended)
    done = {job.id for job in await penstock.store.get(joined) if job.state.final}
    return [
        (run, _UNCOMMITTED if run.context.finishing and isinstance(outcome, Done) else outcome)
        for run, outcome in ended
        if run.job.id not in done
    ]
