"""Errors of an application as HTTP statuses."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.web.problems import RETRY_AFTER, Problem


class Statuses:
    """The status of each class of errors; an error has that of its nearest class.

    Errors in `transient` are answered with `Retry-After`. An error may have a `field`, the part of
    the request that it is about.
    """

    def __init__(
        self,
        statuses: Mapping[type[Exception], int],
        *,
        transient: tuple[type[Exception], ...] = (),
    ) -> None:
        self._statuses = dict(statuses)
        self._by_name = {kind.__name__: status for kind, status in statuses.items()}
        self._transient = transient

    def problem(self, error: Exception) -> Problem:
        """Return the answer to an error; raises `KeyError` for one without a status."""
        kind = next((one for one in type(error).__mro__ if one in self._statuses), type(error))
        headers = RETRY_AFTER if isinstance(error, self._transient) else None
        field: str | None = getattr(error, "field", None)
        return Problem(self._statuses[kind], str(error), field=field, headers=headers)

    def named(self, name: str) -> int:
        """Return the status of errors whose class has this name, as a failed job knows it."""
        return self._by_name.get(name, 500)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Raise the errors that have a status as `Problem`s, inside the block."""
        try:
            yield
        except tuple(self._statuses) as error:
            raise self.problem(error) from error
