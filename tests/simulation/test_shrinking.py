"""Failing plans are made short: what does not matter is left out."""

from collections.abc import Sequence

import pytest

from tests.crash.history import Violation
from tests.simulation import shrinking
from tests.simulation.plan import Event, Steer
from tests.simulation.scenario import Result

PLAN = [Steer(float(n), "cancel", 0) for n in range(40)]


def result(plan: Sequence[Event], *promises: int) -> Result:
    violations = [Violation(promise, "") for promise in promises]
    return Result(1, "memory", plan, violations, [], 0, 0, 0)


@pytest.mark.parametrize("needed", [{3}, {0, 39}, {5, 6, 30}, {1, 8, 9, 20, 21, 22, 35, 38}])
def test_only_what_breaks_the_promise_is_left(
    needed: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(scenario: str, seed: int, plan: Sequence[Event]) -> Result:
        times = {int(event.at) for event in plan}
        # Less breaks another promise, which is another failure.
        return result(plan, 2) if needed <= times else result(plan, 5)

    monkeypatch.setattr(shrinking, "play", play)
    found = shrinking.shrink(result(PLAN, 2))
    assert {int(event.at) for event in found.plan} == needed
    assert found.violations == [Violation(2, "")]
