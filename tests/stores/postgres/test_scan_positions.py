"""Claims continue where they ended while dead tuples are in the way, and only then."""

import pytest

from penstock.stores.postgres import scan_positions
from penstock.stores.postgres.scan_positions import BEGINNING, Positions, ScanPositions

PLACE = (-5, 1_000, 7)


class Watch:
    """Time that passes when a probe takes some."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setattr(scan_positions, "_SLOW", 0.004)  # other tests are never slow
    return Watch()


def measured(watch: Watch, scan: float, *probes: float) -> tuple[ScanPositions, int]:
    """Positions after a scan that took so long, as did the probes, and the number of these."""
    positions, left = ScanPositions(watch), list(probes)

    def probe() -> None:
        watch.now += left.pop(0)

    positions.advance("q", PLACE)
    positions.measure(scan, probe)
    return positions, len(probes) - len(left)


def test_slow_scan_over_dead_tuples_moves_the_beginning_for_a_while(watch: Watch) -> None:
    positions, _ = measured(watch, 0.02, 0.01, 0.01)
    assert positions.of(["q", "other"]) == Positions({"q": PLACE, "other": BEGINNING}, True)
    watch.now += 0.11  # ten times what a scan wastes
    assert positions.of(["q"]) == Positions({"q": BEGINNING}, False)


def test_beginning_is_looked_at_every_two_seconds_however_slow_that_is(watch: Watch) -> None:
    positions, _ = measured(watch, 9.0, 9.0, 9.0)
    watch.now += 1.9
    assert positions.of(["q"]).are_advanced
    watch.now += 0.2
    assert not positions.of(["q"]).are_advanced


@pytest.mark.parametrize("probes", [(0.0005, 0.01), (0.01, 0.0005)])
def test_one_slow_probe_may_be_something_else(watch: Watch, probes: tuple[float, ...]) -> None:
    positions, made = measured(watch, 0.02, *probes)
    assert made == 2
    assert not positions.of(["q"]).are_advanced


def test_quick_scan_is_not_probed(watch: Watch) -> None:
    positions, made = measured(watch, 0.003, 0.01, 0.01)
    assert made == 0
    assert not positions.of(["q"]).are_advanced
