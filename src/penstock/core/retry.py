"""Retry policies: how often and when a failed job runs again."""

from datetime import timedelta

import msgspec

from penstock.core.errors import ConfigurationError

# Powers of a larger one overflow before the delay is capped.
_MAX_FACTOR = 1000


LONGEST = timedelta(days=3650)
"""The longest possible delay."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How many attempts a job has, and the delays between them.

    The delay after attempt `n` is `delay * factor ** (n - 1)`, at most `max_delay`, then increased
    or decreased by a random fraction of up to `jitter`. `factor=1` is a fixed delay.
    """

    attempts: int = 3
    delay: timedelta = timedelta(seconds=5)
    factor: float = 2.0
    max_delay: timedelta = timedelta(hours=1)
    jitter: float = 0.2

    def __post_init__(self) -> None:
        """Reject invalid values."""
        for name in ("delay", "max_delay"):
            if not isinstance(value := getattr(self, name), timedelta):
                raise ConfigurationError(
                    f"the {name} of a retry policy must be a timedelta, such as "
                    f"timedelta(seconds=5), not {value!r:.80}"
                )
        for name, kind in (("attempts", int), ("factor", int | float), ("jitter", int | float)):
            if not isinstance(value := getattr(self, name), kind) or isinstance(value, bool):
                raise ConfigurationError(
                    f"the {name} of a retry policy must be a number, not {value!r:.80}"
                )
        if self.attempts < 1:
            raise ConfigurationError("a retry policy needs at least one attempt")
        if self.delay < timedelta(0) or not timedelta(0) <= self.max_delay <= LONGEST:
            raise ConfigurationError(
                f"a retry delay must not be negative, and at most {LONGEST.days} days"
            )
        if not 1 <= self.factor <= _MAX_FACTOR or not 0 <= self.jitter <= 1:
            raise ConfigurationError(
                f"a retry factor must be from 1 to {_MAX_FACTOR}, and a jitter from 0 to 1"
            )

    def delay_after(self, attempt: int, chance: float) -> timedelta:
        """Return the delay after an attempt; `chance` in [0, 1) determines the jitter."""
        capped = min(
            self.delay.total_seconds() * self.factor ** min(attempt - 1, 64),
            self.max_delay.total_seconds(),
        )
        return timedelta(seconds=capped * (1 + self.jitter * (2 * chance - 1)))


DEFAULT_RETRY = RetryPolicy()
