"""The route for the store: how large it is, how fast it answers, what it has refused."""

from collections.abc import Mapping

import msgspec

from penstock.core.lifecycle import Event
from penstock.core.redaction import redacted
from penstock.core.token import Access
from penstock.engine import Penstock
from penstock.http.routes import route
from penstock.stores.observed import Timing


class VerbShape(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one verb of the store, by this process: how many, how long together, failed."""

    verb: str
    calls: int
    seconds: float
    errors: int


class StoreShape(msgspec.Struct, frozen=True, kw_only=True):
    """How the store fares.

    `bytes` is how large it is, `wal_bytes` the log that SQLite writes ahead, `dead_rows` what
    PostgreSQL has not vacuumed yet; null where a store has no such thing. `refused` counts
    writes of workers whose lease was over, since the store was made.
    """

    kind: str
    url: str
    bytes: int | None
    wal_bytes: int | None
    dead_rows: int | None
    refused: int
    expired: int
    newest_log: int
    calls: list[VerbShape]


class StoreRoutes:
    """What the server serves of its store."""

    def __init__(self, penstock: Penstock, timings: Mapping[str, Timing]) -> None:
        self._penstock = penstock
        self._timings = timings

    @route(
        "GET",
        "/api/v1/store",
        Access.READ,
        "See how the store fares",
        answers={200: StoreShape},
    )
    async def store(self) -> StoreShape:
        """Its size, how long its verbs took in this process, and how many writes it refused.

        The cost does not grow with the number of jobs.
        """
        await self._penstock.digest()
        counters = await self._penstock.counters()
        size = await self._penstock.store.size()
        return StoreShape(
            kind=size.kind,
            url=redacted(self._penstock.url),
            bytes=size.bytes,
            wal_bytes=size.wal_bytes,
            dead_rows=size.dead_rows,
            refused=sum(one.counts.get(Event.REFUSED, 0) for one in counters),
            expired=sum(one.counts.get(Event.EXPIRED, 0) for one in counters),
            newest_log=await self._penstock.newest_log(),
            calls=[
                VerbShape(verb=verb, calls=one.calls, seconds=one.seconds, errors=one.errors)
                for verb, one in sorted(dict(self._timings).items())
            ],
        )
