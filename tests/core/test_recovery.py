"""The floor of ids after a store was set back: higher than whatever was assigned meanwhile."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import StoreError
from penstock.core.recovery import HIGHEST_ID, next_floor

START = datetime(2026, 1, 1, tzinfo=UTC)
STEP = 2**40

instants = st.datetimes(datetime(2026, 1, 1), datetime(2150, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - they get one
ids = st.integers(0, 2**50)


@given(ids, instants, ids)
def test_a_floor_is_above_every_known_id(last: int, now: datetime, above: int) -> None:
    assert next_floor(last, now, above) > max(last, above)


@given(ids, instants)
def test_a_floor_leaves_room_below_what_javascript_reads(last: int, now: datetime) -> None:
    assert next_floor(last, now) + STEP <= HIGHEST_ID


@given(st.integers(0, 10**9), st.integers(0, 10**9), instants, st.integers(1, 10**6))
def test_later_floors_of_any_backup_are_higher(
    one: int, other: int, now: datetime, seconds: int
) -> None:
    """Even if the store that continued from the first is lost: the clock goes on."""
    first = next_floor(one, now)
    continued = first + seconds * 60_000  # faster than any store writes
    later = now + timedelta(seconds=seconds)
    assert next_floor(other, later) > continued
    assert next_floor(continued, later) > continued


def test_the_first_floor_is_a_step_of_2_to_the_40_and_the_clock() -> None:
    assert next_floor(17, START) == STEP
    assert next_floor(17, START + timedelta(seconds=3)) == STEP + 3 * 65_536
    assert next_floor(STEP + 5, START) == 2 * STEP


def test_a_clock_that_is_behind_is_made_up_for() -> None:
    last = next_floor(0, START + timedelta(days=900)) + 1_000_000
    assert next_floor(last, START - timedelta(days=9_000)) > last


def test_ids_never_exceed_what_javascript_reads() -> None:
    with pytest.raises(StoreError, match=r"exceed 2\^53"):
        next_floor(HIGHEST_ID - 10, START)
    with pytest.raises(StoreError, match=r"exceed 2\^53"):
        next_floor(0, datetime(9000, 1, 1, tzinfo=UTC))
