"""The log of a server as it grows: server-sent events, for synchronous code."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from penstock.client import shapes
from penstock.client.line import Line, scattered_pause
from penstock.client.wire import Request
from penstock.core.errors import ServerUnreachable
from penstock.core.job import LogEntry
from penstock.engine import run_sync


class Frame(NamedTuple):
    """How far the log has been read, and the entry that stands there, if it was asked for."""

    place: int
    entry: LogEntry | None


def frames(line: Line, after: int | None, job_id: int | None) -> Iterator[Frame]:
    """Frames for ever; a broken connection goes on behind the last."""
    failures = 0
    while True:
        asked = {"after": after, "job": job_id}
        params = {name: value for name, value in asked.items() if value is not None}
        try:
            with line.lines(Request("GET", "/api/v1/stream", params=params)) as lines:
                for frame in _frames(lines):
                    after, failures = frame.place, 0
                    yield frame
        except ServerUnreachable:
            if failures >= line.retries:
                raise
        run_sync(line.pause(scattered_pause(failures)))
        failures += 1


def _frames(lines: Iterable[str]) -> Iterator[Frame]:
    place, data = 0, ""
    for text in lines:
        name, _, value = text.partition(": ")
        if name == "id":
            place = int(value)
        elif name == "data":
            data = value
        elif not text:  # the end of a frame
            yield Frame(place, _entry(data) if data else None)
            data = ""


def _entry(data: str) -> LogEntry:
    said = msgspec.json.decode(data)
    return shapes.entry(shapes.read(said.get("entry"), shapes.Body))
