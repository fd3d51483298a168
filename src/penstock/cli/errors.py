"""Errors as one line each, and the table of exit codes."""

import contextlib
import json
import logging
import os
import sys
import traceback
from enum import IntEnum
from typing import NoReturn, Self

import click

from penstock.core.errors import (
    ConfigurationError,
    InvalidJob,
    JobNotFound,
    PenstockError,
    ScheduleNotFound,
    StoreError,
    TokenNotFound,
    UnknownTask,
)
from penstock.core.redaction import redacted_within


class QueueNotFound(PenstockError, LookupError):
    """No queue of that name has jobs or settings."""


class Exit(IntEnum):
    """The exit codes, each with its meaning and its errors."""

    meaning: str
    errors: tuple[type[Exception], ...]

    def __new__(cls, code: int, meaning: str, *errors: type[Exception]) -> Self:
        """Create a code with its meaning and its errors."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.errors = errors
        return member

    OK = 0, "success; a worker was stopped gracefully"
    UNEXPECTED = 1, "unexpected error"
    USAGE = 2, "the command line or a setting is wrong", ConfigurationError, InvalidJob
    NOT_FOUND = (
        3,
        "no such job, queue, schedule, task or token",
        JobNotFound,
        UnknownTask,
        QueueNotFound,
        ScheduleNotFound,
        TokenNotFound,
    )
    REFUSED = (
        4,
        "refused: state of a job, full queue, name already taken, token",
        PenstockError,
    )
    STORE = 5, "the store is missing or unusable, or the server does not answer", StoreError
    NOT_DRAINED = 6, "drain timed out, or the remaining jobs are in paused queues"
    ABANDONED = 7, "a worker exited while jobs were still running after their grace"
    PROBLEMS = 8, "verify found promises that do not hold"
    TO_MIGRATE = 9, "migrate-schema: something is left to apply or to switch"
    INTERRUPTED = 130, "stopped immediately by Ctrl-C (SIGINT)"
    TERMINATED = 143, "stopped immediately by SIGTERM"

    @classmethod
    def of(cls, error: BaseException) -> "Exit":
        """Return the code for an error: that of its nearest class in the table."""
        if isinstance(error, click.UsageError) or _is_about_a_file(error):
            return cls.USAGE
        if isinstance(error, click.Abort | KeyboardInterrupt):
            return cls.INTERRUPTED
        codes = {kind: member for member in cls for kind in member.errors}
        return next((codes[kind] for kind in type(error).__mro__ if kind in codes), cls.UNEXPECTED)


def report(error: BaseException, *, as_json: bool) -> None:
    """Print an error on stderr, with the first of its notes as what to try next."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        error = KeyboardInterrupt("interrupted")
    elif _is_about_a_file(error):
        assert isinstance(error, OSError)  # noqa: S101 - as just checked
        error = click.UsageError(f"{error.filename!s:.200} cannot be used: {error.strerror}")
    elif not as_json and not isinstance(error, PenstockError | click.ClickException):
        text = "".join(traceback.format_exception(error))
        click.echo(redacted_within(text), err=True, nl=False)
        return
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    message = redacted_within(" ".join(message.split()).removesuffix("."))
    step = _next_step(error)
    if as_json:
        kind = type(error).__name__
        fields = {"error": message, "type": kind, **({"try": step} if step else {})}
        click.echo(json.dumps(fields), err=True)
    else:
        end = " " if message.endswith("?") else "; "
        click.echo(f"penstock: {message}" + (f"{end}try: {step}" if step else ""), err=True)


def warn(text: str, *, as_json: bool) -> None:
    """Print a warning on stderr."""
    if as_json:
        click.echo(json.dumps({"warning": text}), err=True)
    else:
        click.echo(f"penstock: warning: {text}", err=True)


def _is_about_a_file(error: BaseException) -> bool:
    """Whether the operating system refused access to a file."""
    return isinstance(error, OSError) and error.filename is not None and bool(error.strerror)


def _next_step(error: BaseException) -> str | None:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{error.ctx.command_path} --help"
    return next(iter(getattr(error, "__notes__", ())), None)


def is_json(args: list[str]) -> bool:
    """Whether a command line asks for JSON, even if it cannot be parsed."""
    options = args[: args.index("--")] if "--" in args else args
    return "--json" in options


def leave(code: int) -> NoReturn:
    """End the process immediately, whatever its threads do, after flushing the log."""
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
