"""The log of a server as it grows, as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from penstock.client import shapes
from penstock.client.connection import Connection
from penstock.client.wire import Request
from penstock.core.errors import ServerUnreachable
from penstock.core.job import LogEntry


class Frame(NamedTuple):
    """A position in the log, and the entry there; None before the first entry and when idle."""

    place: int
    entry: LogEntry | None


async def frames(
    connection: Connection,
    after: int | None = None,
    job_id: int | None = None,
    *,
    silence: float | None = None,
) -> AsyncGenerator[Frame, None]:
    """Yield frames after a position, or from now on; end after `silence` seconds without one."""
    asked = {"after": after, "job": job_id}
    params = {name: value for name, value in asked.items() if value is not None}
    request = Request("GET", "/api/v1/stream", params=params, silence=silence)
    async with connection.stream(request) as lines:
        place, data = 0, ""
        async for text in lines:
            name, _, value = text.partition(": ")
            if name == "id":
                place = int(value)
            elif name == "data":
                data = value
            elif not text:  # the end of a frame
                yield Frame(place, _entry(data) if data else None)
                data = ""


async def endless_frames(
    connection: Connection, after: int | None = None, job_id: int | None = None
) -> AsyncGenerator[Frame, None]:
    """Yield frames for ever; after a broken connection, continue behind the last one."""
    failures = 0
    while True:
        try:
            async with aclosing(frames(connection, after, job_id)) as stream:
                async for frame in stream:
                    after, failures = frame.place, 0
                    yield frame
        except ServerUnreachable:
            if failures >= connection.retries:
                raise
        await connection.pause(connection.scattered_pause(failures))
        failures += 1


def _entry(data: str) -> LogEntry:
    event = msgspec.json.decode(data)
    return shapes.entry(shapes.read(event.get("entry"), shapes.Body))
