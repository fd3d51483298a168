"""An event as a job.

It is one without a handler here: its arguments hold the title, the description and the payload,
and outside workers claim it by its tags. Whatever else is enqueued in the queue of the events reads
as one, too: its task is the title, its arguments are the payload.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache

import msgspec
from msgspec import UNSET, Raw

from penstock import Job, NewJob, RetryPolicy
from penstock.apps.events.shapes import NewEvent
from penstock.http.problems import Problem

QUEUE = "events"
TASK = "events.event"
PAYLOAD_LIMIT = 1_000_000
DEPTH_LIMIT = 200
"""Levels that a payload may be nested: whoever reads it later needs room on the stack for them."""
TAG_LIMIT = 200
TAGS_LIMIT = 50

_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS = re.compile(rb"[\[\]{}]")


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
        with suppress(msgspec.ValidationError):
            return _content.decode(job.payload)
    return Content(job.task, None, Raw(job.payload.encode()))


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
    if size > DEPTH_LIMIT and _depth(bytes(payload)) > DEPTH_LIMIT:
        raise Problem(422, f"payload: nested more than {DEPTH_LIMIT} levels deep", field="payload")
    try:
        return encode(Content(event.title, event.description, payload)).decode()
    except UnicodeDecodeError as error:  # a payload is stored as it came, so nobody looked yet
        raise Problem(400, f"the body is not JSON: {error}") from error


def _depth(payload: bytes) -> int:
    """How deeply a payload is nested; for nearly all, no more than it has brackets."""
    brackets = payload.count(b"[") + payload.count(b"{")
    if brackets <= DEPTH_LIMIT:
        return brackets
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_TEXTS.sub(b"", payload)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest
