"""Logging of long-running processes to stderr, as text or as one JSON object per line."""

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

FORMAT = "PENSTOCK_LOG_FORMAT"
"""The variable that tells child processes the format of the log."""
_LEVEL = "PENSTOCK_CHILD_LOG_LEVEL"

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Attributes of every record; others are extras: `context().logger` adds job_id, task, attempt.
_COMMON = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

_log = logging.getLogger("penstock")


def set_up_logging(*, as_json: bool, level: int = logging.INFO, text: str = _TEXT) -> None:
    """Log to stderr, unless the program has configured logging itself.

    With JSON, warnings and uncaught exceptions are logged as well, so that every line is an object.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler])
    if as_json:
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread
        sys.unraisablehook = _log_unraisable


def reset_logging() -> None:
    """Forget the handlers of the process that forked this one: a program may set up its own."""
    for handler in logging.root.handlers[:]:
        logging.root.removeHandler(handler)


def set_up_child_logging(level: int = logging.WARNING) -> None:
    """Log in the format of the process that started this one."""
    text = "%(levelname)s %(name)s: %(message)s"
    level = max(level, int(os.environ.get(_LEVEL, level)))
    set_up_logging(as_json=os.environ.get(FORMAT) == "json", level=level, text=text)


def child_environment() -> Mapping[str, str]:
    """Return the variables that make a child process log in the same format."""
    is_json = any(isinstance(one.formatter, JsonFormatter) for one in logging.root.handlers)
    return {FORMAT: "json" if is_json else "text", _LEVEL: str(logging.root.level)}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with its extras."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        fields: dict[str, Any] = {
            "at": at[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _COMMON and name not in fields:
                fields[name] = value
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        elif record.exc_text:
            fields["error"] = record.exc_text
        return json.dumps(fields, default=str)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    _log.critical("uncaught exception", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(given: threading.ExceptHookArgs) -> None:
    name = "?" if given.thread is None else given.thread.name
    error = given.exc_value or given.exc_type()
    exc_info = (given.exc_type, error, given.exc_traceback)
    _log.critical("uncaught exception in thread %s", name, exc_info=exc_info)


def _log_unraisable(given: "sys.UnraisableHookArgs") -> None:
    error = given.exc_value or given.exc_type()
    exc_info = (given.exc_type, error, given.exc_traceback)
    _log.error("exception ignored in %r", given.object, exc_info=exc_info)
