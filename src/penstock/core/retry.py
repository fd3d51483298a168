"""When a failed attempt is tried again."""

from datetime import timedelta

import msgspec

from penstock.core.errors import ConfigurationError

# Powers of a larger one overflow before the delay is capped.
_MAX_FACTOR = 1000


LONGEST = timedelta(days=3650)
"""The longest time that anything may be put off."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How often a job runs in all, and how long it rests between two attempts.

    The delay after attempt `n` is `delay * factor ** (n - 1)`, at most `max_delay`, lengthened
    or shortened by a random share of up to `jitter`. `factor=1` is a fixed delay.
    """

    attempts: int = 3
    delay: timedelta = timedelta(seconds=5)
    factor: float = 2.0
    max_delay: timedelta = timedelta(hours=1)
    jitter: float = 0.2

    def __post_init__(self) -> None:
        """Refuse a policy that could never be followed."""
        for name in ("delay", "max_delay"):
            if not isinstance(value := getattr(self, name), timedelta):
                raise ConfigurationError(
                    f"a retry's {name} is a timedelta, not {value!r:.80}: timedelta(seconds=5)"
                )
        for name, kind in (("attempts", int), ("factor", int | float), ("jitter", int | float)):
            if not isinstance(value := getattr(self, name), kind) or isinstance(value, bool):
                raise ConfigurationError(f"a retry's {name} is a number, not {value!r:.80}")
        if self.attempts < 1:
            raise ConfigurationError("a retry policy needs at least one attempt")
        if self.delay < timedelta(0) or not timedelta(0) <= self.max_delay <= LONGEST:
            raise ConfigurationError(
                f"a retry delay is not negative, and at most {LONGEST.days} days"
            )
        if not 1 <= self.factor <= _MAX_FACTOR or not 0 <= self.jitter <= 1:
            raise ConfigurationError(
                f"a retry factor is from 1 to {_MAX_FACTOR}, a jitter from 0 to 1"
            )

    def delay_after(self, attempt: int, chance: float) -> timedelta:
        """The rest after that attempt; `chance` in [0, 1) picks the point within the jitter."""
        capped = min(
            self.delay.total_seconds() * self.factor ** min(attempt - 1, 64),
            self.max_delay.total_seconds(),
        )
        return timedelta(seconds=capped * (1 + self.jitter * (2 * chance - 1)))


DEFAULT_RETRY = RetryPolicy()
