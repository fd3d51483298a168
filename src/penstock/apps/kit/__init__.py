"""What applications share, and what they use of the packages below them.

An application imports the public modules of `penstock`, `penstock.vectors` and this package.
"""

from penstock.apps.kit.application import Application
from penstock.apps.kit.arguments import NAME_LIMIT, JobName, Name, PathText, has_long_name
from penstock.apps.kit.background import in_background
from penstock.apps.kit.batcher import Batcher
from penstock.apps.kit.collections import Indexes, LazyEmbedder, OpenEmbedder
from penstock.apps.kit.files import PIECE, file_stream
from penstock.apps.kit.locks import Busy, locked
from penstock.apps.kit.manifest import Manifest
from penstock.apps.kit.pages import Offset, Position, records_at
from penstock.apps.kit.processes import Pool, startup_message, stop_with_server, worker_name
from penstock.apps.kit.requirements import Packages, is_package_missing, needs_tables
from penstock.apps.kit.sentences import sentence
from penstock.apps.kit.settings import (
    DATA,
    Count,
    Processes,
    RetryDelay,
    Seconds,
    check_vectors,
)
from penstock.apps.kit.statuses import Statuses
from penstock.core.decode_errors import mismatch
from penstock.core.jsontext import DEPTH_LIMIT, check_depth
from penstock.core.jsontext import encode as encode_json
from penstock.core.jsontext import read as read_json
from penstock.core.redaction import redacted
from penstock.core.secrets import Secrets
from penstock.engine.penstock import enqueue_readable
from penstock.web.bodies import BODY_TIME, Disconnected, Receive, Send, announces_more, header
from penstock.web.problems import RETRY_AFTER, Problem, naming_element_of, wrong_shape
from penstock.web.routes import Answer, Call, Stream, answer_to, route, routes_of

__all__ = [
    "BODY_TIME",
    "DATA",
    "DEPTH_LIMIT",
    "NAME_LIMIT",
    "PIECE",
    "RETRY_AFTER",
    "Answer",
    "Application",
    "Batcher",
    "Busy",
    "Call",
    "Count",
    "Disconnected",
    "Indexes",
    "JobName",
    "LazyEmbedder",
    "Manifest",
    "Name",
    "Offset",
    "OpenEmbedder",
    "Packages",
    "PathText",
    "Pool",
    "Position",
    "Problem",
    "Processes",
    "Receive",
    "RetryDelay",
    "Seconds",
    "Secrets",
    "Send",
    "Statuses",
    "Stream",
    "announces_more",
    "answer_to",
    "check_depth",
    "check_vectors",
    "encode_json",
    "enqueue_readable",
    "file_stream",
    "has_long_name",
    "header",
    "in_background",
    "is_package_missing",
    "locked",
    "mismatch",
    "naming_element_of",
    "needs_tables",
    "read_json",
    "records_at",
    "redacted",
    "route",
    "routes_of",
    "sentence",
    "startup_message",
    "stop_with_server",
    "worker_name",
    "wrong_shape",
]
