"""Pages of jobs, as routes with `limit` and `offset` return them."""

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from penstock.core.query import JobQuery
from penstock.core.restoration import Record
from penstock.engine.penstock import Penstock

Offset = Annotated[int, Meta(ge=0, le=100_000)]
"""How many jobs a page skips; a bound, because they are read and discarded."""
Position = Annotated[int, Meta(ge=1, le=2**63 - 1)]
"""The number of a row that a page starts after."""


async def records_at(penstock: Penstock, query: JobQuery, offset: int) -> list[Record]:
    """Return the jobs of a query, with their logs, after the first `offset`."""
    ids = await penstock.find_ids(replace(query, limit=offset + query.limit))
    return await penstock.archive.records(ids[offset:])
