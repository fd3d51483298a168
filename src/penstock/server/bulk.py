"""Routes for many jobs at once: those that a filter names, in portions, with a count beforehand."""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.admin import Bulk
from penstock.core.job import JobQuery
from penstock.core.token import Access
from penstock.engine import Penstock
from penstock.http.problems import Problem
from penstock.http.routes import route
from penstock.server.shapes import Filter, Priority, Text

_EXAMPLE = {"filter": {"queue": "mail", "error": "timed out"}, "dry_run": True}
_COUNTS = {"dry_run": True, "matched": 12, "changed": 0, "skipped": 0}


class BulkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs are meant, and whether to change them or only to count them."""

    dry_run: Annotated[bool, Meta(description="Only count; has to be said either way.")]
    filter: Filter = Filter()
    all: Annotated[bool, Meta(description="Needed where the filter names nothing.")] = False

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
    """How many jobs fitted, changed, and did not after all."""

    dry_run: bool
    matched: int
    changed: int
    skipped: int


class BulkRoutes:
    """What the server serves of many jobs at once.

    A call works in portions, each a transaction: if it is interrupted, what it has done stays
    done, and the same call does the rest.
    """

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock

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
        return _answer(
            body,
            await self._penstock.cancel_all(body.query, reason=body.reason, dry_run=body.dry_run),
        )

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
        return _answer(
            body,
            await self._penstock.retry_all(body.query, reason=body.reason, dry_run=body.dry_run),
        )

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
        return _answer(
            body,
            await self._penstock.reprioritise(
                body.query, body.priority, reason=body.reason, dry_run=body.dry_run
            ),
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
        return _answer(body, await self._penstock.delete_all(body.query, dry_run=body.dry_run))


def _answer(body: BulkRequest, bulk: Bulk) -> BulkAnswer:
    return BulkAnswer(
        dry_run=body.dry_run, matched=bulk.matched, changed=bulk.changed, skipped=bulk.skipped
    )
