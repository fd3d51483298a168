"""What may be asked for: every argument is checked before anything is stored."""

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from penstock.core import jsontext
from penstock.core.errors import ConfigurationError, InvalidJob, PayloadTooLarge
from penstock.core.job import DEFAULT_LEASE, NewJob, QueueSettings, Scope
from penstock.core.retry import DEFAULT_RETRY, LONGEST, RetryPolicy

PAYLOAD_LIMIT = 1_000_000
NAME_LIMIT = 200
KEY_LIMIT = 1_000
TAGS_LIMIT = 50
MAX_PRIORITY = 10
MOST = 2**63 - 1
"""What every store can count to."""

# Names of tasks and queues are few and checked once; a program that makes up names stays small.
_REMEMBERED_NAMES = 1_000
_UNFINISHED = Scope.UNFINISHED
_SHORTEST = timedelta(milliseconds=1)
# Far from where the calendar ends, in whatever time zone.
_FIRST = datetime(1900, 1, 1, tzinfo=UTC)
_LAST = datetime(9000, 1, 1, tzinfo=UTC)
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class JobChecker:
    """Checks new jobs, in a microsecond each: most of them are alike."""

    def __init__(self, payload_limit: int) -> None:
        self._payload_limit = payload_limit
        self._names: set[str] = set()

    def check(self, job: NewJob) -> None:
        """Raise `InvalidJob` for a job that cannot be stored as asked for."""
        self._check_payload(job)
        check_priority(job.priority)
        if job.task not in self._names or job.queue not in self._names:
            check_name("task", job.task)
            check_name("queue", job.queue)
            if len(self._names) < _REMEMBERED_NAMES:
                self._names.update((job.task, job.queue))
        _check_options(job)

    def _check_payload(self, job: NewJob) -> None:
        payload = job.payload
        if type(payload) is not str:
            check_kind("payload", payload, str)
        # All of it is decoded, in a microsecond: what cannot be read back is not stored. Arguments
        # may be as deep as other values are, each for itself.
        if not isinstance(jsontext.read(payload, "args", jsontext.DEPTH_LIMIT + 1), dict):
            raise InvalidJob(f"payload of task {job.task}: not a JSON object")
        if len(job.payload) > self._payload_limit // 4:  # a character is at most four bytes
            size = len(job.payload.encode())
            if size > self._payload_limit:
                raise PayloadTooLarge(
                    f"arguments of task {job.task}: {size} bytes of JSON, the limit is "
                    f"{self._payload_limit}; store large data elsewhere and pass a reference"
                )


def check_limit(limit: object, least: int = 1) -> None:
    """How many to answer with, or to take, at most."""
    if type(limit) is not int or not least <= limit <= MOST:
        raise ConfigurationError(f"a limit is a whole number from {least} on, not {limit!r:.80}")


def check_jobs(jobs: object) -> None:
    """What `enqueue_many` takes."""
    if not isinstance(jobs, Sequence) or isinstance(jobs, str | bytes):
        raise InvalidJob(f"jobs are a list of NewJob, not {jobs!r:.80}")
    for job in jobs:
        if not isinstance(job, NewJob):
            raise InvalidJob(f"a job is a NewJob, as Task.new makes it, not {job!r:.80}")


def check_priority(priority: object) -> None:
    """How soon a job is claimed."""
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise InvalidJob(f"priority is a whole number from 0 to {MAX_PRIORITY}")


def check_concurrency(n: object) -> None:
    """How many may run at a time; none is what a pause is for."""
    if type(n) is not int or n < 1:
        raise ConfigurationError(
            f"a concurrency is a whole number from 1 on, not {n!r:.80}; "
            "to start nothing, pause the queue"
        )


def check_queue_limits(settings: QueueSettings) -> None:
    """Limits that a queue can keep."""
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
                "a rate is how many may start, 1 or more, within which time: "
                f"(100, timedelta(seconds=1)), not {rate!r:.80}"
            )


def _check_ages(ages: object) -> None:
    if ages == ():
        raise ConfigurationError("promote_after has no age in it; None turns promotion off")
    for age in ages if isinstance(ages, tuple) else (ages,):
        _check_span("promote_after", age)


def _check_span(field: str, span: object) -> None:
    if not (isinstance(span, timedelta) and _SHORTEST <= span <= LONGEST):
        raise ConfigurationError(
            f"{field} is a timedelta from a millisecond to {LONGEST.days} days, not {span!r:.80}"
        )


def check_expiry(span: object) -> None:
    """How long an access token is good for."""
    _check_span("expires_in", span)


def check_places(jobs: Sequence[NewJob]) -> None:
    """Jobs of one call follow those before them."""
    for place, job in enumerate(jobs):
        if not all(0 <= before < place for before in job.follows):
            raise InvalidJob(f"job {place} of the call follows one that is not before it")


def check_kind(field: str, value: object, kind: type) -> None:
    """A value of the kind that the field asks for."""
    if not isinstance(value, kind):
        raise InvalidJob(f"{field} is a {kind.__name__}, not {value!r:.80}")


def check_name(field: str, name: object) -> None:
    """A name that people read."""
    if not (isinstance(name, str) and 0 < len(name) <= NAME_LIMIT and name.isprintable()):
        raise InvalidJob(f"{field} is 1 to {NAME_LIMIT} printable characters, not {name!r:.80}")


def check_identifier(field: str, name: object) -> None:
    """A name that stands in SQL."""
    if not (isinstance(name, str) and _IDENTIFIER.fullmatch(name)):
        raise ConfigurationError(
            f"{field} is a name of small letters, digits and underscores, not {name!r:.80}"
        )


def check_key(field: str, key: object) -> None:
    """A text that only programs read."""
    if not (isinstance(key, str) and 0 < len(key) <= KEY_LIMIT and "\0" not in key):
        raise InvalidJob(f"{field} is 1 to {KEY_LIMIT} characters without NUL, not {key!r:.80}")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise InvalidJob(f"{field} is not valid text: {error}") from error


def check_tags(tags: Collection[str]) -> None:
    """Tags are names."""
    if len(tags) > TAGS_LIMIT:
        raise InvalidJob(f"a job has at most {TAGS_LIMIT} tags")
    for tag in tags:
        check_name("tag", tag)


def check_duration(field: str, span: timedelta) -> None:
    """A time that is longer than nothing."""
    check_kind(field, span, timedelta)
    if not timedelta(0) < span <= LONGEST:
        raise InvalidJob(f"{field} is longer than nothing, and at most {LONGEST.days} days")


def check_times(job: NewJob) -> None:
    """Delays, limits and instants within reason."""
    for name, span in (("delay", job.delay), ("lease", job.lease), ("timeout", job.timeout)):
        if span is not None:
            check_kind(name, span, timedelta)
            if not timedelta(0) <= span <= LONGEST or (name != "delay" and not span):
                least = "not negative" if name == "delay" else "longer than nothing"
                raise InvalidJob(f"{name} is {least}, and at most {LONGEST.days} days")
    if job.run_at is not None:
        check_kind("run_at", job.run_at, datetime)
        if job.delay is not None:
            raise InvalidJob("give delay or run_at, not both")
        if job.run_at.tzinfo is None:
            raise InvalidJob("run_at needs a time zone: datetime.now(UTC) + …")
        if not _FIRST <= job.run_at <= _LAST:
            raise InvalidJob(f"run_at is in the years from {_FIRST.year} to {_LAST.year - 1}")


def _check_options(job: NewJob) -> None:
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
    ):
        _check_relations(job)
    if job.tags:
        check_tags(job.tags)
    if job.retry is not DEFAULT_RETRY:
        check_kind("retry", job.retry, RetryPolicy)
    if job.scope is not _UNFINISHED:
        check_kind("scope", job.scope, Scope)
    if (
        job.lease is not DEFAULT_LEASE
        or job.delay is not None
        or job.run_at is not None
        or job.timeout is not None
    ):
        check_times(job)


def is_trace(text: object) -> bool:
    """Whether it is a W3C traceparent."""
    return isinstance(text, str) and _TRACE.fullmatch(text) is not None


def _check_relations(job: NewJob) -> None:
    for field in ("key", "dedupe", "correlation", "tenant", "throttle"):
        if (text := getattr(job, field)) is not None:
            check_key(field, text)
    if job.trace is not None and not is_trace(job.trace):
        raise InvalidJob(f"trace is a W3C traceparent, such as 00-…-…-01, not {job.trace!r:.80}")
    if job.parent is not None:
        check_kind("parent", job.parent, int)
    for needed in job.after:
        check_kind("after", needed, int)
    if job.supersede and job.key is None:
        raise InvalidJob("supersede replaces pending jobs of a key: give the job a key")
