"""The content of an event, and its conversion to a job and back.

The job of an event has no handler here: its arguments are the title, the description and the
payload, and workers claim it over HTTP by its tags. Any other job in the queue of events reads as
an event as well: its task is the title, and its arguments are the payload.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache

import msgspec
from msgspec import UNSET, Raw

from penstock import Job, NewJob, RetryPolicy
from penstock.apps.events.shapes import NewEvent
from penstock.apps.kit import DEPTH_LIMIT, Problem, read_json
from penstock.errors import Unreadable

QUEUE = "events"
TASK = "events.event"
PAYLOAD_LIMIT = 1_000_000
TAG_LIMIT = 200
TAGS_LIMIT = 50


class Content(msgspec.Struct, frozen=True):
    """The arguments of an event's job."""

    title: str
    description: str | None
    payload: Raw


NULL = Raw(b"null")

_content = msgspec.json.Decoder(Content)
encode = msgspec.json.Encoder().encode


def is_event(job: Job) -> bool:
    """Return whether a job is in the queue of events."""
    return job.queue == QUEUE


def content_of(job: Job) -> Content:
    """Return the content of an event, also of one that was not published here."""
    if job.task == TASK:
        with suppress(msgspec.MsgspecError, RecursionError):
            return _content.decode(job.payload)
    return Content(job.task, None, Raw(job.payload.encode()))


def why_unreadable(job: Job) -> str | None:
    """Return why workers cannot read an event that another program stored; None if they can."""
    try:
        read_json(job.payload, "its payload", DEPTH_LIMIT + 1)
    except Unreadable as error:
        return str(error)
    return None


def tags_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return tags without surrounding blanks and duplicates, in their order."""
    if isinstance(given, str):
        return _tags_of_text(given)
    if any("," in tag for tag in given):
        raise Problem(422, "tags: a tag must not contain a comma", field="tags")
    return _tags_of_parts(given)


@lru_cache(1024)
def _tags_of_text(given: str) -> tuple[str, ...]:
    return _tags_of_parts(given.split(","))


def _tags_of_parts(parts: Sequence[str]) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(tag for part in parts if (tag := part.strip())))
    if not 1 <= len(tags) <= TAGS_LIMIT:
        raise Problem(422, f"tags: give between 1 and {TAGS_LIMIT} tags", field="tags")
    for tag in tags:
        if len(tag) > TAG_LIMIT or not tag.isprintable():
            detail = f"tags: a tag must have at most {TAG_LIMIT} characters, all printable"
            raise Problem(422, detail, field="tags")
    return tags


@lru_cache(256)
def _retry(attempts: int, seconds: float) -> RetryPolicy:
    delay = timedelta(seconds=seconds)
    return RetryPolicy(attempts=attempts, delay=delay, factor=1, max_delay=delay, jitter=0)


def job_of(event: NewEvent, retry_delay: float, lease: timedelta) -> NewJob:
    """Return the job that stores an event; its payload has been checked to be readable."""
    seconds = retry_delay if event.retry_delay is None else event.retry_delay
    return NewJob(
        task=TASK,
        payload=_arguments(event),
        queue=QUEUE,
        priority=event.priority,
        delay=None if event.delay is None else timedelta(seconds=event.delay),
        key=event.key,
        # Other jobs may use the same key for something else.
        dedupe=None if event.dedupe is None else f"{QUEUE}:{event.dedupe}",
        tags=tags_of(event.tags),
        retry=_retry(event.max_retries, seconds),
        lease=lease,
    )


def _arguments(event: NewEvent) -> str:
    payload = NULL if event.payload is UNSET else event.payload
    size = len(payload)
    if size > PAYLOAD_LIMIT:
        raise Problem(413, f"payload: must have at most {PAYLOAD_LIMIT:,} bytes", field="payload")
    try:
        read_json(bytes(payload).decode(), "payload")  # it has not been decoded yet
        return encode(Content(event.title, event.description, payload)).decode()
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not JSON: {error}") from error
