"""What a long-running process logs, to stderr: lines for people, or one JSON object each."""

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
"""The variable by which a process tells its children how to log."""

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# What every record has; all else was given along: `context().logger` adds job_id, task, attempt.
_COMMON = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

_log = logging.getLogger("penstock")


def set_up_logging(*, as_json: bool, level: int = logging.INFO, text: str = _TEXT) -> None:
    """Log to stderr, unless the app has set up its own logging.

    As JSON, warnings and uncaught exceptions are logged as well, so that every line is an object.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler])
    if as_json:
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread
        sys.unraisablehook = _log_unraisable


def set_up_child_logging(level: int = logging.WARNING) -> None:
    """Log as the process does that started this one."""
    text = "%(levelname)s %(name)s: %(message)s"
    set_up_logging(as_json=os.environ.get(FORMAT) == "json", level=level, text=text)


def child_environment() -> Mapping[str, str]:
    """Return the variables that let a child process log as this one does."""
    is_json = any(isinstance(one.formatter, JsonFormatter) for one in logging.root.handlers)
    return {FORMAT: "json" if is_json else "text"}


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, with all that was given along."""

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
