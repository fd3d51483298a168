"""The outcome of a handler, from what it returned or raised."""

import traceback
from datetime import timedelta
from typing import Any

from penstock.core import jsontext
from penstock.core.errors import Cancel, InvalidJob, Snooze, Unreadable
from penstock.core.lifecycle import Cancelled, Done, Failed, Outcome, Snoozed
from penstock.engine.task import Task

RESULT_LIMIT = 1_000_000
_ERROR_LIMIT = 20_000
_SUMMARY_LIMIT = 500
_DONE = Done()


def returned(result: Any) -> Done | Failed:
    """Return the outcome of a handler that returned `result`.

    A result that cannot be stored is a permanent failure: another run would repeat its effects for
    nothing.
    """
    if result is None:
        return _DONE
    try:
        encoded = jsontext.encode(result, "its result")
    except Unreadable as error:
        return Failed(f"it ran, but {error}", permanent=True)
    if len(encoded) > RESULT_LIMIT:
        return Failed(
            f"it ran, but its result is {len(encoded)} characters of JSON, more than "
            f"{RESULT_LIMIT}; store large data elsewhere and return a reference",
            permanent=True,
        )
    return Done(encoded)


def raised(error: BaseException, task: Task[..., Any]) -> Outcome:
    """Return the outcome of a handler of `task` that raised `error`."""
    match error:
        case Snooze(delay=timedelta()):
            return Snoozed(error.delay, str(error.reason))
        case Cancel():
            return Cancelled(str(error.reason))
        case InvalidJob():  # the stored arguments do not match the handler, and never will
            return Failed(str(error), permanent=True)
        case _:
            return Failed(describe(error), permanent=isinstance(error, task.permanent))


def describe(error: BaseException) -> str:
    """Return an error as text: type and message in the first line, then the traceback."""
    summary = traceback.format_exception_only(error)[0].strip().split("\n")[0]
    text = "".join(traceback.format_exception(error)).strip()
    if len(text) > _ERROR_LIMIT:
        text = "…" + text[-_ERROR_LIMIT:]
    return f"{summary[:_SUMMARY_LIMIT]}\n\n{text}"
