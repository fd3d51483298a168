"""Validation of arguments: everything is checked before anything is stored."""

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from penstock.core import jsontext
from penstock.core.errors import ConfigurationError, InvalidJob, PayloadTooLarge
from penstock.core.job import DEFAULT_LEASE, NewJob, Scope
from penstock.core.queue import QueueSettings
from penstock.core.retry import LONGEST, RetryPolicy
from penstock.core.tasks import FIRST_VERSION, HIGHEST_VERSION

PAYLOAD_LIMIT = 1_000_000
NAME_LIMIT = 200
KEY_LIMIT = 1_000
TAGS_LIMIT = 50
MAX_PRIORITY = 10
LARGEST_INTEGER = 2**63 - 1
"""The largest integer that every store can hold."""

# Tasks and queues have few names, which are checked once. The limit bounds the memory of a program
# that makes up names.
_REMEMBERED_NAMES = 1_000
_UNFINISHED = Scope.UNFINISHED
_SHORTEST = timedelta(milliseconds=1)
# Far from the ends of the calendar, in any time zone.
_FIRST = datetime(1900, 1, 1, tzinfo=UTC)
_LAST = datetime(9000, 1, 1, tzinfo=UTC)
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class JobValidator:
    """Validates new jobs, in about a microsecond each: most are alike."""

    def __init__(self, payload_limit: int) -> None:
        self._payload_limit = payload_limit
        self._names: set[str] = set()
        # Values of the last job that were checked: the next one often has the very same objects.
        self._tags: Collection[str] = ()
        self._lease = DEFAULT_LEASE

    def check(self, job: NewJob) -> None:
        """Raise `InvalidJob` for a job that cannot be stored as requested."""
        payload = job.payload
        if type(payload) is not str:
            check_kind("payload", payload, str)
        # All of it is decoded, in a microsecond, so that nothing is stored that cannot be read
        # back. Each argument may be nested as deeply as any other value.
        if not jsontext.is_object(payload, "args", jsontext.DEPTH_LIMIT + 1):
            raise InvalidJob(f"payload of task {job.task}: not a JSON object")
        self.check_encoded(job)

    def check_encoded(self, job: NewJob) -> None:
        """Check a job whose payload was encoded by its task, and so is known to be readable."""
        if len(job.payload) > self._payload_limit // 4:  # a character has at most four bytes
            self._check_size(job)
        if type(job.priority) is not int or not 0 <= job.priority <= MAX_PRIORITY:
            check_priority(job.priority)
        if job.task not in self._names or job.queue not in self._names:
            check_name("task", job.task)
            check_name("queue", job.queue)
            if len(self._names) < _REMEMBERED_NAMES:
                self._names.update((job.task, job.queue))
        if (
            job.key is not None
            or job.dedupe is not None
            or job.correlation is not None
            or job.tenant is not None
            or job.parent is not None
            or job.after
            or job.supersede
            or job.throttle is not None
            or job.trace is not None
            or job.task_version != FIRST_VERSION
        ):
            _check_relations(job)
        if job.tags is not self._tags:
            check_tags(job.tags)
            self._tags = job.tags
        if type(job.retry) is not RetryPolicy:
            check_kind("retry", job.retry, RetryPolicy)
        if job.scope is not _UNFINISHED:
            check_kind("scope", job.scope, Scope)
        if (
            job.lease is not self._lease
            or job.delay is not None
            or job.run_at is not None
            or job.timeout is not None
        ):
            check_times(job)
            self._lease = job.lease

    def _check_size(self, job: NewJob) -> None:
        size = len(job.payload.encode())
        if size > self._payload_limit:
            raise PayloadTooLarge(
                f"arguments of task {job.task}: {size} bytes of JSON, the limit is "
                f"{self._payload_limit}; store large data elsewhere and pass a reference"
            )


def check_limit(limit: object, least: int = 1) -> None:
    """Check how many items a call may take or return."""
    if type(limit) is not int or not least <= limit <= LARGEST_INTEGER:
        raise ConfigurationError(f"limit must be an integer of at least {least}, not {limit!r:.80}")


def check_jobs(jobs: object) -> None:
    """Check what `enqueue_many` takes."""
    if not isinstance(jobs, Sequence) or isinstance(jobs, str | bytes):
        raise InvalidJob(f"jobs must be a list of NewJob, not {jobs!r:.80}")
    for job in jobs:
        if not isinstance(job, NewJob):
            raise InvalidJob(f"a job must be a NewJob, as Task.new makes it, not {job!r:.80}")


def check_priority(priority: object) -> None:
    """Check a priority."""
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise InvalidJob(f"priority must be an integer from 0 to {MAX_PRIORITY}")


def check_concurrency(n: object) -> None:
    """Check how many jobs may run at a time."""
    if type(n) is not int or n < 1:
        raise ConfigurationError(
            f"concurrency must be an integer of at least 1, not {n!r:.80}; "
            "to start nothing, pause the queue"
        )


def check_queue_limits(settings: QueueSettings) -> None:
    """Check the limits of a queue."""
    if not isinstance(settings.max_pending, msgspec.UnsetType | None):
        check_limit(settings.max_pending, least=0)
    if not isinstance(settings.concurrency, msgspec.UnsetType | None):
        check_concurrency(settings.concurrency)
    if not isinstance(settings.rate, msgspec.UnsetType | None):
        _check_rate(settings.rate)
    if not isinstance(settings.promote_after, msgspec.UnsetType | None):
        _check_ages(settings.promote_after)


def _check_rate(rate: object) -> None:
    match rate:
        case (int(n), timedelta() as window) if type(n) is int and n >= 1:
            _check_span("the window of a rate", window)
        case _:
            raise ConfigurationError(
                "rate must be a number of starts, at least 1, and a time: "
                f"(100, timedelta(seconds=1)), not {rate!r:.80}"
            )


def _check_ages(ages: object) -> None:
    if ages == ():
        raise ConfigurationError("promote_after is empty; None turns promotion off")
    for age in ages if isinstance(ages, tuple) else (ages,):
        _check_span("promote_after", age)


def _check_span(field: str, span: object) -> None:
    if not (isinstance(span, timedelta) and _SHORTEST <= span <= LONGEST):
        raise ConfigurationError(
            f"{field} must be a timedelta from a millisecond to {LONGEST.days} days, "
            f"not {span!r:.80}"
        )


def check_expiry(span: object) -> None:
    """Check how long an access token is valid."""
    _check_span("expires_in", span)


def check_places(jobs: Sequence[NewJob]) -> None:
    """Check that jobs follow earlier jobs of the same call."""
    for place, job in enumerate(jobs):
        if not all(0 <= before < place for before in job.follows):
            raise InvalidJob(f"job {place} of the call waits for a job that does not precede it")


def check_kind(field: str, value: object, kind: type) -> None:
    """Check the type of a value."""
    if not isinstance(value, kind):
        raise InvalidJob(f"{field} must be a {kind.__name__}, not {value!r:.80}")


def check_name(field: str, name: object) -> None:
    """Check a name that people read."""
    if not (isinstance(name, str) and 0 < len(name) <= NAME_LIMIT and name.isprintable()):
        raise InvalidJob(
            f"{field} must have 1 to {NAME_LIMIT} printable characters, not {name!r:.80}"
        )


def check_identifier(field: str, name: object) -> None:
    """Check a name that becomes part of SQL."""
    if not (isinstance(name, str) and _IDENTIFIER.fullmatch(name)):
        raise ConfigurationError(
            f"{field} must be a name of lower-case letters, digits and underscores, "
            f"not {name!r:.80}"
        )


def check_key(field: str, key: object) -> None:
    """Check a text that only programs read."""
    if not (isinstance(key, str) and 0 < len(key) <= KEY_LIMIT and "\0" not in key):
        raise InvalidJob(
            f"{field} must have 1 to {KEY_LIMIT} characters and no NUL, not {key!r:.80}"
        )
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise InvalidJob(f"{field} is not valid text: {error}") from error


def check_tags(tags: Collection[str]) -> None:
    """Check the tags of a job."""
    if len(tags) > TAGS_LIMIT:
        raise InvalidJob(f"a job has at most {TAGS_LIMIT} tags")
    for tag in tags:
        check_name("tag", tag)


def check_duration(field: str, span: timedelta) -> None:
    """Check a time that must be positive."""
    check_kind(field, span, timedelta)
    if not timedelta(0) < span <= LONGEST:
        raise InvalidJob(f"{field} must be positive and at most {LONGEST.days} days")


def check_times(job: NewJob) -> None:
    """Check the durations and instants of a job."""
    for name, span in (("delay", job.delay), ("lease", job.lease), ("timeout", job.timeout)):
        if span is not None:
            check_kind(name, span, timedelta)
            if not timedelta(0) <= span <= LONGEST or (name != "delay" and not span):
                sign = "not be negative, and" if name == "delay" else "be positive and"
                raise InvalidJob(f"{name} must {sign} at most {LONGEST.days} days")
    if job.run_at is not None:
        check_kind("run_at", job.run_at, datetime)
        if job.delay is not None:
            raise InvalidJob("give delay or run_at, not both")
        if job.run_at.tzinfo is None:
            raise InvalidJob("run_at needs a time zone: datetime.now(UTC) + …")
        if not _FIRST <= job.run_at <= _LAST:
            raise InvalidJob(f"run_at must be in the years {_FIRST.year} to {_LAST.year - 1}")


def check_aliases(task: str, aliases: Collection[str]) -> tuple[str, ...]:
    """Return the former names of a task; raises `ConfigurationError` for what is not a list."""
    if isinstance(aliases, str):
        raise ConfigurationError(f"task {task}: aliases must be a list of names, not a string")
    for alias in aliases:
        check_name("alias", alias)
    return tuple(dict.fromkeys(alias for alias in aliases if alias != task))


def check_version(version: object) -> None:
    """Raise `InvalidJob` unless this is the version of a task."""
    if type(version) is not int or not FIRST_VERSION <= version <= HIGHEST_VERSION:
        raise InvalidJob(f"task_version must be an integer of at least 1, not {version!r:.80}")


def is_trace(text: object) -> bool:
    """Return whether a value is a W3C traceparent."""
    return isinstance(text, str) and _TRACE.fullmatch(text) is not None


def _check_relations(job: NewJob) -> None:
    for field in ("key", "dedupe", "correlation", "tenant", "throttle"):
        if (text := getattr(job, field)) is not None:
            check_key(field, text)
    if job.trace is not None and not is_trace(job.trace):
        raise InvalidJob(
            f"trace must be a W3C traceparent, such as 00-…-…-01, not {job.trace!r:.80}"
        )
    check_version(job.task_version)
    if job.parent is not None:
        check_kind("parent", job.parent, int)
    for needed in job.after:
        check_kind("after", needed, int)
    if job.supersede and job.key is None:
        raise InvalidJob("supersede replaces pending jobs of a key: give the job a key")
