"""Queries for jobs: which ones to list, count or change in bulk."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import force_setattr

from penstock.core.errors import ConfigurationError, InvalidJob
from penstock.core.job import Job, JobId, as_tuple
from penstock.core.lifecycle import State

Tally = Mapping[State, int]
"""How many jobs match a query, by state."""


class JobQuery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which jobs to list; every field narrows the result. Pages by id: pass the last id as `after`.

    `tags` matches jobs with at least one of them. `error` is a substring of the job's error,
    `text` a substring of its task, key, tags, tenant, arguments or error; tags and arguments are
    searched as the JSON they are stored as. `since` and `before` select by age: jobs that ended at
    or after, or before, that instant; for unfinished jobs, the time of their enqueueing counts.
    `until` is the last id to include, in the direction of paging.
    """

    states: frozenset[State] | None = None
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    correlation: str | None = None
    tenant: str | None = None
    parent: JobId | None = None
    cancel_requested: bool | None = None
    error: str | None = None
    text: str | None = None
    since: datetime | None = None
    before: datetime | None = None
    after: JobId | None = None
    until: JobId | None = None
    newest_first: bool = True
    limit: int = 100

    if TYPE_CHECKING:
        # `states` and `tags` accept any collection; __post_init__ converts them.
        def __init__(
            self,
            *,
            states: Collection[State] | None = None,
            queue: str | None = None,
            task: str | None = None,
            key: str | None = None,
            tags: Collection[str] = (),
            correlation: str | None = None,
            tenant: str | None = None,
            parent: int | None = None,
            cancel_requested: bool | None = None,
            error: str | None = None,
            text: str | None = None,
            since: datetime | None = None,
            before: datetime | None = None,
            after: int | None = None,
            until: int | None = None,
            newest_first: bool = True,
            limit: int = 100,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Reject values that no job can be compared with."""
        if self.states is not None and type(self.states) is not frozenset:
            force_setattr(self, "states", _states(self.states))
        if type(self.tags) is not tuple:
            try:
                tags = as_tuple("tags", self.tags)
            except InvalidJob as error:
                raise ConfigurationError(str(error)) from None
            force_setattr(self, "tags", tags)
        for name in ("error", "text"):
            value = getattr(self, name)
            if value is not None and type(value) is not str:
                raise ConfigurationError(f"{name} must be a text to search for, not {value!r:.80}")
        for name in ("since", "before"):
            value = getattr(self, name)
            if value is not None and getattr(value, "tzinfo", None) is None:
                raise ConfigurationError(
                    f"{name} must be a datetime with a time zone, such as datetime.now(UTC) - …, "
                    f"not {value!r:.80}"
                )


def _states(value: object) -> frozenset[State]:
    try:
        if isinstance(value, Collection) and not isinstance(value, str | bytes):
            return frozenset(map(State, value))
    except ValueError:
        pass
    raise ConfigurationError(
        f"states must be a collection of states, such as [State.FAILED], not {value!r:.80}"
    )


def matches(job: Job, query: JobQuery) -> bool:
    """Return whether a query selects this job, regardless of paging."""
    return (
        (query.states is None or job.state in query.states)
        and (query.queue is None or job.queue == query.queue)
        and (query.task is None or job.task == query.task)
        and (query.key is None or job.key == query.key)
        and (not query.tags or not set(query.tags).isdisjoint(job.tags))
        and (query.correlation is None or job.correlation == query.correlation)
        and (query.tenant is None or job.tenant == query.tenant)
        and (query.parent is None or job.parent == query.parent)
        and (query.cancel_requested is None or job.cancel_requested == query.cancel_requested)
        and (query.error is None or (job.error is not None and query.error in job.error))
        and (query.since is None or (job.finished_at or job.enqueued_at) >= query.since)
        and (query.before is None or (job.finished_at or job.enqueued_at) < query.before)
        and (query.text is None or _contains(job, query.text))
    )


def _contains(job: Job, text: str) -> bool:
    return (
        text in job.task
        or (job.key is not None and text in job.key)
        or (job.tenant is not None and text in job.tenant)
        or (job.error is not None and text in job.error)
        or (bool(job.tags) and text in msgspec.json.encode(job.tags).decode())
        or text in job.payload
    )
