"""Events: programs publish them, and others subscribe to tags and process them over HTTP."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from penstock import Penstock
from penstock.apps.events.contents import QUEUE, TASK
from penstock.apps.events.events import Events
from penstock.apps.events.routes import EventRoutes
from penstock.apps.kit import Application, Manifest, routes_of

MANIFEST = Manifest(
    "events",
    "Publish events, subscribe to tags, report outcomes.",
    queues=(QUEUE,),
    route="POST /events",
    tasks={TASK: ""},
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The retry delay and lease of events that do not set their own, in seconds."""

    retry_delay: Annotated[float, msgspec.Meta(ge=0, le=86_400 * 365)] = 300
    """Seconds between two attempts."""
    lease: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] = 30
    """Seconds that a worker that stops responding keeps an event."""


def install(penstock: Penstock, settings: Settings, _data: Path | None = None) -> Application:
    """Return the events application on a Penstock."""
    MANIFEST.register(penstock)
    events = Events(
        penstock,
        retry_delay=settings.retry_delay,
        lease=timedelta(seconds=settings.lease),
    )
    return Application(
        MANIFEST.name,
        MANIFEST.summary,
        list(routes_of(EventRoutes(events))),
        events.running,
        events.answer_waiting,
    )
