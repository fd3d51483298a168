"""Errors of applications as answers."""

import pytest

from penstock.apps.kit import Problem, Statuses


class Refused(Exception):
    """The base of the errors in these tests."""


class Missing(Refused):
    """A further class without a status of its own."""


class Later(Refused):
    """An error that may pass."""


class Wrong(Exception):
    """An error that names a field."""

    field = "payload.path"


STATUSES = Statuses({Refused: 409, Later: 503, Wrong: 422}, transient=(Later,))


@pytest.mark.parametrize(
    ("error", "status", "headers", "body"),
    [
        (Refused("no"), 409, {}, {"detail": "no"}),
        (Missing("none"), 409, {}, {"detail": "none"}),
        (Later("busy"), 503, {"Retry-After": "1"}, {"detail": "busy"}),
        (Wrong("a path"), 422, {}, {"detail": "a path", "field": "payload.path"}),
    ],
)
def test_error_is_answered_with_the_status_of_its_nearest_class(
    error: Exception, status: int, headers: dict[str, str], body: dict[str, str]
) -> None:
    with pytest.raises(Problem) as raised, STATUSES.answering():
        raise error
    assert (raised.value.status, raised.value.headers, raised.value.body) == (status, headers, body)
    assert raised.value.__cause__ is error


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(ValueError, match="else"), STATUSES.answering():
        raise ValueError("something else")


def test_status_by_the_name_of_a_class() -> None:
    assert (STATUSES.named("Later"), STATUSES.named("Unknown")) == (503, 500)
