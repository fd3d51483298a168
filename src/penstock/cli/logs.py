"""What a long-running command logs, to stderr: lines for people, or one JSON object each."""

import json
import logging
from datetime import UTC, datetime

from penstock.cli.output import plain

# What every record has; all else was given along: `context().logger` adds job_id, task, attempt.
_COMMON = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


def set_up_logging(*, as_json: bool) -> None:
    """Log to stderr, unless the app has set up its own logging."""
    handler = logging.StreamHandler()
    if as_json:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, with all that was given along."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = {
            "at": plain(datetime.fromtimestamp(record.created, UTC)),
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
