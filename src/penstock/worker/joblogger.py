"""The logger of a run: its lines are kept with the job, and go on to the program's logging."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from penstock.core.job import Job
from penstock.core.note import Line, kept_text
from penstock.worker.notebook import Book

_logger = logging.getLogger("penstock.task")
_formatter = logging.Formatter("%(message)s")


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs as `penstock.task`, with the job's id, task and attempt in every record."""

    def __init__(self, job: Job, notebook: Book | None) -> None:
        super().__init__(_logger, {"job_id": job.id, "task": job.task, "attempt": job.attempt})
        self._job = job
        self._notebook = notebook

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Keep a line with the job, from `INFO` on or where the logging wants it; and log it."""
        if self._notebook is not None and (level >= logging.INFO or self.isEnabledFor(level)):
            text = _text(level, msg, args, kwargs)
            name = logging.getLevelName(level)
            line = Line(0, self._notebook.now(), name, kept_text(text), self._job.attempt)
            self._notebook.keep_line(self._job, line)
        # The caller is one frame further away than the adapter believes.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *args, **kwargs)


def _text(level: int, msg: object, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """The message as logging would write it, with a traceback where one is asked for."""
    error = options.get("exc_info")
    if isinstance(error, BaseException):
        error = (type(error), error, error.__traceback__)
    elif error and not isinstance(error, tuple):
        error = sys.exc_info()
    record = logging.LogRecord(_logger.name, level, "", 0, msg, args, error or None)
    try:
        return _formatter.format(record)
    except (TypeError, ValueError, KeyError):  # logging tells of it by itself
        return str(msg)
