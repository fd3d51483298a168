"""Routes for many jobs at once: those that a filter names, in portions, with a count beforehand."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from penstock.admin import Bulk, Portion, Trail
from penstock.core.job import JobQuery
from penstock.core.token import Access
from penstock.engine import Penstock
from penstock.http.problems import Problem
from penstock.http.routes import route
from penstock.server.shapes import Filter, Id, Priority, Text

_EXAMPLE = {"filter": {"queue": "mail", "error": "timed out"}, "dry_run": True}
_COUNTS = {
    "dry_run": True,
    "matched": 12,
    "changed": 0,
    "skipped": 0,
    "after": None,
    "up_to": 3_107,
}


# Calls in parts that are under way, as far as what they have found is kept: a few MB each.
_TRAILS = 4
_LIMIT = "Do no more than so many of those that fit; the answer's `after` says where to go on."
_AFTER = "With a limit: go on behind this job, as the last answer said."
_UP_TO = "With a limit: leave newer jobs alone; as the first answer said."


class BulkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs are meant, and whether to change them or only to count them."""

    dry_run: Annotated[bool, Meta(description="Only count; has to be said either way.")]
    filter: Filter = Filter()
    all: Annotated[bool, Meta(description="Needed where the filter names nothing.")] = False
    limit: Annotated[int, Meta(ge=1, le=100_000, description=_LIMIT)] | None = None
    after: Annotated[Id, Meta(description=_AFTER)] | None = None
    up_to: Annotated[Id, Meta(description=_UP_TO)] | None = None

    @property
    def portion(self) -> Portion | None:
        """The part of the work that is asked for; None for all of it."""
        if self.limit is not None:
            return Portion(limit=self.limit, after=self.after, up_to=self.up_to)
        for name in ("after", "up_to"):
            if getattr(self, name) is not None:
                raise Problem(422, f"{name}: is for a call with a limit", field=name)
        return None

    @property
    def query(self) -> JobQuery:
        """The query for these jobs; a filter that was forgotten is no filter."""
        if self.filter == Filter() and not self.all:
            raise Problem(
                422, 'filter: it names nothing; to mean every job, send "all": true', field="filter"
            )
        return self.filter.query


class BulkReasonRequest(BulkRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs are meant, and why."""

    reason: Text | None = None


class BulkPriorityRequest(BulkReasonRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs are meant, and the priority that they get."""

    priority: Priority


class BulkAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs fitted, changed, and did not after all.

    `after` is where a call with a `limit` goes on, null at the end; `up_to` is the newest job that
    there was.
    """

    dry_run: bool
    matched: int
    changed: int
    skipped: int
    after: int | None
    up_to: int


class BulkRoutes:
    """What the server serves of many jobs at once.

    A call works in portions, each a transaction: if it is interrupted, what it has done stays
    done, and the same call does the rest.
    """

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock
        self._trails: dict[tuple[str, JobQuery], Trail] = {}

    @route(
        "POST",
        "/api/v1/jobs/bulk/cancel",
        Access.ADMIN,
        "Cancel many jobs",
        answers={200: BulkAnswer},
        examples={"body": _EXAMPLE, "200": _COUNTS},
    )
    async def cancel_all(self, body: BulkReasonRequest) -> BulkAnswer:
        """End the pending jobs that fit, and ask the running ones to stop."""
        return await self._done(body, self._penstock.cancel_all, reason=body.reason)

    @route(
        "POST",
        "/api/v1/jobs/bulk/retry",
        Access.ADMIN,
        "Run many jobs again",
        answers={200: BulkAnswer},
        examples={"body": _EXAMPLE, "200": _COUNTS},
    )
    async def retry_all(self, body: BulkReasonRequest) -> BulkAnswer:
        """Run the failed jobs that fit again, with all their attempts.

        Cancelled and waiting ones only if the filter's `state` names them.
        """
        return await self._done(body, self._penstock.retry_all, reason=body.reason)

    @route(
        "POST",
        "/api/v1/jobs/bulk/reprioritise",
        Access.ADMIN,
        "Change the priority of many jobs",
        answers={200: BulkAnswer},
        examples={"body": {**_EXAMPLE, "priority": 9}, "200": _COUNTS},
    )
    async def reprioritise_all(self, body: BulkPriorityRequest) -> BulkAnswer:
        """Give the pending jobs that fit another priority."""
        return await self._done(
            body, self._penstock.reprioritise, priority=body.priority, reason=body.reason
        )

    @route(
        "POST",
        "/api/v1/jobs/bulk/delete",
        Access.ADMIN,
        "Remove many finished jobs",
        answers={200: BulkAnswer},
        examples={"body": _EXAMPLE, "200": _COUNTS},
    )
    async def delete_all(self, body: BulkRequest) -> BulkAnswer:
        """Remove the finished jobs that fit, with their log."""
        return await self._done(body, self._penstock.delete_all)

    async def _done(
        self, body: BulkRequest, act: Callable[..., Awaitable[Bulk]], **how: Any
    ) -> BulkAnswer:
        query, portion = body.query, body.portion
        newest = (await self._penstock.store.origin()).last_job
        key = act.__name__, query
        if portion is not None:
            # Taken out meanwhile: two callers of the same do not share it.
            portion = replace(portion, trail=self._trails.pop(key, None) or Trail())
        bulk = await act(query, dry_run=body.dry_run, portion=portion, **how)
        if portion is not None and portion.trail is not None and bulk.after is not None:
            self._trails[key] = portion.trail
            while len(self._trails) > _TRAILS:
                del self._trails[next(iter(self._trails))]
        return BulkAnswer(
            dry_run=body.dry_run,
            matched=bulk.matched,
            changed=bulk.changed,
            skipped=bulk.skipped,
            after=bulk.after,
            up_to=newest if body.up_to is None else min(newest, body.up_to),
        )
