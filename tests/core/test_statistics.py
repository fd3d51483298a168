from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.core.statistics import BOUNDS, Spread, bucket_of
from penstock.core.times import span_to_micros

MS = timedelta(milliseconds=1)
durations = st.lists(st.integers(0, 4_000_000_000).map(lambda n: timedelta(microseconds=n)))


def spread(*found: timedelta) -> Spread:
    buckets = [0] * (len(BOUNDS) + 1)
    for one in found:
        buckets[bucket_of(span_to_micros(one)) - 1] += 1
    return Spread(len(found), sum(found, timedelta(0)), tuple(buckets))


def test_bound_belongs_to_its_bucket() -> None:
    for n, bound in enumerate(BOUNDS, 1):
        micros = span_to_micros(bound)
        assert (bucket_of(micros), bucket_of(micros + 1)) == (n, n + 1)
    assert bucket_of(0) == 1


def test_nothing_has_no_quantile() -> None:
    assert Spread().quantile(0.5) is None


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_part_that_is_none_is_refused(p: float) -> None:
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        Spread().quantile(p)


def test_quantile_lies_evenly_inside_its_bucket() -> None:
    found = spread(*[30 * MS] * 10)
    assert (found.quantile(0), found.quantile(0.5), found.quantile(1)) == (
        25 * MS,
        37.5 * MS,
        50 * MS,
    )


def test_quantile_above_the_last_bound_is_that_bound() -> None:
    assert spread(MS, timedelta(hours=3)).quantile(0.95) == timedelta(minutes=30)


@given(durations.filter(bool), st.floats(0, 1))
def test_quantile_is_exact_to_the_bucket(found: list[timedelta], p: float) -> None:
    ranked = sorted(found)
    real = ranked[min(len(ranked) - 1, max(0, -int(-p * len(ranked) // 1) - 1))]
    asked = spread(*found).quantile(p)
    assert asked is not None
    lower, upper = _bucket(real)
    assert lower <= asked <= upper


def _bucket(duration: timedelta) -> tuple[timedelta, timedelta]:
    n = bucket_of(span_to_micros(duration))
    edges = (timedelta(0), *BOUNDS, BOUNDS[-1])
    return edges[n - 1], edges[n]


@given(durations, durations)
def test_spreads_add_up(some: list[timedelta], others: list[timedelta]) -> None:
    assert spread(*some) + spread(*others) == spread(*some, *others)
