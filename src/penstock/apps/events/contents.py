"""An event as a job.

It is one without a handler here: its arguments hold the title, the description and the payload,
and outside workers claim it by its tags. Whatever else is enqueued in the queue of the events reads
as one, too: its task is the title, its arguments are the payload.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache

import msgspec
from msgspec import UNSET, Raw

from penstock import Job, NewJob, RetryPolicy
from penstock.apps.events.shapes import NewEvent
from penstock.core.errors import Unreadable
from penstock.core.jsontext import DEPTH_LIMIT, read
from penstock.http.problems import Problem

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
    """Whether workers of the event API may get this job."""
    return job.queue == QUEUE


def content_of(job: Job) -> Content:
    """What an event says; also one that was not published here."""
    if job.task == TASK:
        with suppress(msgspec.MsgspecError, RecursionError):
            return _content.decode(job.payload)
    return Content(job.task, None, Raw(job.payload.encode()))


def why_unreadable(job: Job) -> str | None:
    """Why no worker could read an event, as another program may have stored it; None if it can."""
    try:
        read(job.payload, "its payload", DEPTH_LIMIT + 1)
    except Unreadable as error:
        return str(error)
    return None


def tags_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Exact tokens: trimmed, each once, in their order."""
    if isinstance(given, str):
        return _tags_of_text(given)
    if any("," in tag for tag in given):
        raise Problem(422, "tags: a tag has no comma in it", field="tags")
    return _tags_of_parts(given)


@lru_cache(1024)
def _tags_of_text(given: str) -> tuple[str, ...]:
    return _tags_of_parts(given.split(","))


def _tags_of_parts(parts: Sequence[str]) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(tag for part in parts if (tag := part.strip())))
    if not 1 <= len(tags) <= TAGS_LIMIT:
        raise Problem(422, f"tags: name one to {TAGS_LIMIT} tags", field="tags")
    for tag in tags:
        if len(tag) > TAG_LIMIT or not tag.isprintable():
            detail = f"tags: a tag is up to {TAG_LIMIT} printable characters"
            raise Problem(422, detail, field="tags")
    return tags


@lru_cache(256)
def _retry(attempts: int, seconds: float) -> RetryPolicy:
    delay = timedelta(seconds=seconds)
    return RetryPolicy(attempts=attempts, delay=delay, factor=1, max_delay=delay, jitter=0)


def job_of(event: NewEvent, retry_delay: float, lease: timedelta) -> NewJob:
    """The job that an event is kept as."""
    seconds = retry_delay if event.retry_delay is None else event.retry_delay
    return NewJob(
        task=TASK,
        payload=_arguments(event),
        queue=QUEUE,
        priority=event.priority,
        delay=None if event.delay is None else timedelta(seconds=event.delay),
        key=event.key,
        # Jobs that are no events may have the same keys for something else.
        dedupe=None if event.dedupe is None else f"{QUEUE}:{event.dedupe}",
        tags=tags_of(event.tags),
        retry=_retry(event.max_retries, seconds),
        lease=lease,
    )


def _arguments(event: NewEvent) -> str:
    payload = NULL if event.payload is UNSET else event.payload
    size = len(payload)
    if size > PAYLOAD_LIMIT:
        raise Problem(413, f"payload: more than {PAYLOAD_LIMIT:,} bytes", field="payload")
    try:
        read(bytes(payload).decode(), "payload")  # nobody has looked into it yet
        return encode(Content(event.title, event.description, payload)).decode()
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not JSON: {error}") from error
