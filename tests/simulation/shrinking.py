"""Makes a failing plan short: leaves events out as long as the same promise stays broken."""

from collections.abc import Callable, Sequence

from tests.simulation.plan import Event
from tests.simulation.scenario import Result, play

_MOST_ATTEMPTS = 200


def shrink(failing: Result, tell: Callable[[str], None] = lambda _: None) -> Result:
    """Return a result with a plan as short as could be found."""
    promises = {violation.promise for violation in failing.violations}
    best, attempts = failing, 0
    size = max(1, len(best.plan) // 2)
    while attempts < _MOST_ATTEMPTS:
        shorter = None
        for start in range(0, len(best.plan), size):
            attempts += 1
            found = _play(best, [*best.plan[:start], *best.plan[start + size :]])
            if promises & {violation.promise for violation in found.violations}:
                shorter = found
                break
            if attempts >= _MOST_ATTEMPTS:
                break
        if shorter is not None:
            best = shorter
            size = min(size, max(1, len(best.plan) // 2))
            tell(f"{len(best.plan)} events are enough")
        elif size == 1:
            break
        else:
            size //= 2
    return best


def _play(result: Result, plan: Sequence[Event]) -> Result:
    return play(result.scenario, result.seed, plan)
