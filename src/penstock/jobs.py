"""What calls about jobs take and return, besides what the package itself exports."""

from penstock.core.dependencies import Edge
from penstock.core.explanation import Explanation
from penstock.core.job import JobId, LogEntry, OnFailure, Scope
from penstock.core.key_line import KeyLine
from penstock.core.lifecycle import (
    Event,
    Waiting,
)
from penstock.core.progress import (
    Line,
    Progress,
)
from penstock.core.restoration import Record
from penstock.engine.batch import (
    Batch,
)
from penstock.engine.bulk import (
    Bulk,
    Portion,
)
from penstock.engine.task import (
    AppFactory,
    Verdict,
)

__all__ = [
    "AppFactory",
    "Batch",
    "Bulk",
    "Edge",
    "Event",
    "Explanation",
    "JobId",
    "KeyLine",
    "Line",
    "LogEntry",
    "OnFailure",
    "Portion",
    "Progress",
    "Record",
    "Scope",
    "Verdict",
    "Waiting",
]
