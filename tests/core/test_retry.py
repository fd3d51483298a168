from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.core.retry import DEFAULT_RETRY, RetryPolicy

SECOND = timedelta(seconds=1)
TICK = timedelta(microseconds=1)

policies = st.builds(
    RetryPolicy,
    attempts=st.integers(1, 1000),
    delay=st.timedeltas(timedelta(0), timedelta(days=400)),
    factor=st.floats(1, 1000),
    max_delay=st.timedeltas(timedelta(0), timedelta(days=400)),
    jitter=st.floats(0, 1),
)
attempts = st.integers(1, 100_000)
chances = st.floats(0, 1, exclude_max=True)


def test_default_rests_five_seconds_then_ten_and_so_on() -> None:
    assert DEFAULT_RETRY.attempts == 3
    assert [DEFAULT_RETRY.delay_after(n, 0.5) for n in (1, 2, 3)] == [
        5 * SECOND,
        10 * SECOND,
        20 * SECOND,
    ]


def test_factor_of_one_is_a_fixed_delay() -> None:
    policy = RetryPolicy(delay=7 * SECOND, factor=1, jitter=0)
    assert {policy.delay_after(n, 0.9) for n in range(1, 100)} == {7 * SECOND}


def test_chance_picks_the_point_within_the_jitter() -> None:
    policy = RetryPolicy(delay=10 * SECOND, jitter=0.2)
    assert [policy.delay_after(1, chance) for chance in (0, 0.25, 0.5, 0.75)] == [
        8 * SECOND,
        9 * SECOND,
        10 * SECOND,
        11 * SECOND,
    ]


def test_delay_is_capped_before_the_jitter() -> None:
    policy = RetryPolicy(delay=SECOND, factor=10, max_delay=50 * SECOND, jitter=0.1)
    assert [policy.delay_after(n, 0.5) for n in (1, 2, 3, 4)] == [
        SECOND,
        10 * SECOND,
        50 * SECOND,
        50 * SECOND,
    ]
    assert policy.delay_after(9, 0) == 45 * SECOND


@given(policies, attempts, chances)
def test_delay_stays_within_the_jitter_around_the_capped_delay(
    policy: RetryPolicy, attempt: int, chance: float
) -> None:
    delay = policy.delay_after(attempt, chance)
    assert timedelta(0) <= delay <= policy.max_delay * (1 + policy.jitter) + TICK
    lowest = min(policy.delay, policy.max_delay) * (1 - policy.jitter)
    assert delay >= lowest - TICK


@given(policies, attempts, chances)
def test_delay_never_shrinks_from_attempt_to_attempt(
    policy: RetryPolicy, attempt: int, chance: float
) -> None:
    assert policy.delay_after(attempt, chance) <= policy.delay_after(attempt + 1, chance)


@given(policies, attempts, chances, chances)
def test_delay_grows_with_chance(
    policy: RetryPolicy, attempt: int, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert policy.delay_after(attempt, low) <= policy.delay_after(attempt, high)


@given(policies)
def test_first_delay_without_jitter_is_the_delay(policy: RetryPolicy) -> None:
    plain = msgspec.structs.replace(policy, jitter=0)
    assert abs(plain.delay_after(1, 0.3) - min(policy.delay, policy.max_delay)) <= TICK


@given(policies)
def test_policy_survives_json(policy: RetryPolicy) -> None:
    assert msgspec.json.decode(msgspec.json.encode(policy), type=RetryPolicy) == policy


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"delay": -SECOND},
        {"max_delay": -SECOND},
        {"factor": 0.5},
        {"factor": 1001},
        {"factor": float("inf")},
        {"factor": float("nan")},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
    ],
)
def test_policy_that_cannot_be_followed_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RetryPolicy(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"delay": 5}, {"max_delay": 5.0}, {"attempts": "3"}, {"attempts": 1.5}, {"factor": "2"},
     {"jitter": None}, {"attempts": True}],
)  # fmt: skip
def test_policy_of_the_wrong_kind_is_refused_with_its_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigurationError, match=f"the {next(iter(wrong))} of a retry policy must be a"
    ):
        RetryPolicy(**wrong)
