"""Routes for bulk actions: on all jobs that match a filter, with a dry run that counts them."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from penstock.core.query import JobQuery
from penstock.core.tokens import Access
from penstock.engine.bulk import Bulk, Portion, Selection, Trail
from penstock.engine.penstock import Penstock
from penstock.server.requests import Filter, Id, Priority, Text
from penstock.web.problems import Problem
from penstock.web.routes import route

_EXAMPLE = {"filter": {"queue": "mail", "error": "timed out"}, "dry_run": True}
_COUNTS = {
    "dry_run": True,
    "matched": 12,
    "changed": 0,
    "skipped": 0,
    "after": None,
    "up_to": 3_107,
}


# How many actions in portions keep what they have found between two calls: a few MB each.
_TRAILS = 4
_LIMIT = "Change at most this many matching jobs; `after` of the answer says where to continue."
_AFTER = "With a limit: continue after this job, as in the last answer."
_UP_TO = "With a limit: leave newer jobs alone, as in the first answer."


class BulkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects jobs, and says whether to change them or only to count them."""

    dry_run: Annotated[
        bool, Meta(description="Only count the jobs; required, so that nothing changes by mistake.")
    ]
    filter: Filter = Filter()
    all: Annotated[bool, Meta(description="Required to select every job with an empty filter.")] = (
        False
    )
    limit: Annotated[int, Meta(ge=1, le=100_000, description=_LIMIT)] | None = None
    after: Annotated[Id, Meta(description=_AFTER)] | None = None
    up_to: Annotated[Id, Meta(description=_UP_TO)] | None = None

    @property
    def portion(self) -> Portion | None:
        """The portion of the work that is requested; None for all of it."""
        if self.limit is not None:
            return Portion(limit=self.limit, after=self.after, up_to=self.up_to)
        for name in ("after", "up_to"):
            if getattr(self, name) is not None:
                raise Problem(422, f"{name}: requires a limit", field=name)
        return None

    @property
    def query(self) -> JobQuery:
        """The query for these jobs; a forgotten filter does not select everything."""
        if self.filter == Filter() and not self.all:
            raise Problem(
                422, 'filter: is empty; to select every job, send "all": true', field="filter"
            )
        return self.filter.query


class BulkReasonRequest(BulkRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects jobs, with the reason for the action."""

    reason: Text | None = None


class BulkPriorityRequest(BulkReasonRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects jobs, and gives them a priority."""

    priority: Priority


class BulkAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs matched, how many changed, and how many could not be changed after all.

    `after` is where the next call with a `limit` continues, null at the end; `up_to` is the newest
    job at the time of the call.
    """

    dry_run: bool
    matched: int
    changed: int
    skipped: int
    after: int | None
    up_to: int


class BulkRoutes:
    """Bulk actions.

    An action works in portions, each a transaction. If it is interrupted, what it has done stays
    done, and repeating the call does the rest.
    """

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock
        self._trails: dict[tuple[str, JobQuery], Trail] = {}

    @route(
        "POST",
        "/api/v1/jobs/bulk/cancel",
        Access.ADMIN,
        examples={"body": _EXAMPLE, "200": _COUNTS},
    )
    async def cancel_all(self, body: BulkReasonRequest) -> BulkAnswer:
        """Cancel many jobs.

        Matching pending jobs end at once; running ones are asked to stop.
        """
        return await self._act(body, Selection.cancel, reason=body.reason)

    @route(
        "POST", "/api/v1/jobs/bulk/retry", Access.ADMIN, examples={"body": _EXAMPLE, "200": _COUNTS}
    )
    async def retry_all(self, body: BulkReasonRequest) -> BulkAnswer:
        """Retry many jobs.

        Runs matching failed jobs again, with all their attempts.

        Cancelled and waiting jobs are included only if `state` of the filter names them.
        """
        return await self._act(body, Selection.retry, reason=body.reason)

    @route(
        "POST",
        "/api/v1/jobs/bulk/reprioritise",
        Access.ADMIN,
        examples={"body": {**_EXAMPLE, "priority": 9}, "200": _COUNTS},
    )
    async def reprioritise_all(self, body: BulkPriorityRequest) -> BulkAnswer:
        """Change the priority of many jobs.

        Applies to matching pending jobs.
        """
        return await self._act(
            body, Selection.reprioritise, priority=body.priority, reason=body.reason
        )

    @route(
        "POST",
        "/api/v1/jobs/bulk/delete",
        Access.ADMIN,
        examples={"body": _EXAMPLE, "200": _COUNTS},
    )
    async def delete_all(self, body: BulkRequest) -> BulkAnswer:
        """Delete many finished jobs.

        Deletes matching finished jobs with their logs.
        """
        return await self._act(body, Selection.delete)

    async def _act(
        self, body: BulkRequest, act: Callable[..., Awaitable[Bulk]], **how: Any
    ) -> BulkAnswer:
        query, portion = body.query, body.portion
        newest = (await self._penstock.store.origin()).last_job
        key = act.__name__, query
        if portion is not None:
            # Taken out during the call, so that two callers do not share it.
            portion = replace(portion, trail=self._trails.pop(key, None) or Trail())
        bulk = await act(self._penstock.bulk(query), dry_run=body.dry_run, portion=portion, **how)
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
