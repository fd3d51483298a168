import click
import pytest

from penstock.cli.errors import Exit, is_json, report
from penstock.core.errors import (
    ConfigurationError,
    JobNotFound,
    LeaseLost,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    StoreUnavailable,
    TooManyQueues,
    TransitionRefused,
    UnknownTask,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (click.UsageError("?"), Exit.USAGE),
        (click.BadParameter("?"), Exit.USAGE),
        (ConfigurationError("?"), Exit.USAGE),
        (PayloadTooLarge("?"), Exit.USAGE),
        (JobNotFound("?"), Exit.NOT_FOUND),
        (TransitionRefused("?"), Exit.REFUSED),
        (QueueFull("mail", 1), Exit.REFUSED),
        (TooManyQueues(1), Exit.REFUSED),
        (LeaseLost(1, 2), Exit.REFUSED),
        (UnknownTask("?"), Exit.NOT_FOUND),
        (PenstockError("?"), Exit.REFUSED),
        (StoreUnavailable("?"), Exit.STORE),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (click.Abort(), Exit.INTERRUPTED),
        (ZeroDivisionError(), Exit.UNEXPECTED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_each_error_has_its_exit_code(error: BaseException, code: Exit) -> None:
    assert Exit.of(error) is code


def test_error_of_penstock_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = JobNotFound("there is\n  no job 7.")
    error.add_note("penstock jobs")
    report(error, as_json=False)
    assert capsys.readouterr().err == "penstock: there is no job 7; try: penstock jobs\n"


def test_error_as_json_has_its_text_and_type(capsys: pytest.CaptureFixture[str]) -> None:
    report(JobNotFound("there is no job 7"), as_json=True)
    assert capsys.readouterr().err == '{"error": "there is no job 7", "type": "JobNotFound"}\n'


def test_unexpected_error_shows_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        _ = 1 // 0
    except ZeroDivisionError as error:
        report(error, as_json=False)
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "test_errors.py" in printed


def test_interruption_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    report(click.Abort(), as_json=False)
    assert capsys.readouterr().err == "penstock: interrupted\n"


def test_json_is_recognised_only_as_an_option() -> None:
    assert is_json(["jobs", "--json"])
    assert not is_json(["jobs", "--", "--json"])
    assert not is_json(["jobs"])
