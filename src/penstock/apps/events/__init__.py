"""Events: one process publishes, others subscribe to tags and work them off over HTTP."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from penstock import Penstock
from penstock.apps import Application
from penstock.apps.events.events import Events
from penstock.apps.events.routes import EventRoutes
from penstock.http.routes import routes_of


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How events are retried and leased, unless an event says otherwise. In seconds."""

    retry_delay: Annotated[float, msgspec.Meta(ge=0, le=86_400 * 365)] = 300
    lease: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] = 30


def install(penstock: Penstock, settings: Settings, _data: Path | None = None) -> Application:
    """The event API on a Penstock."""
    events = Events(
        penstock,
        retry_delay=settings.retry_delay,
        lease=timedelta(seconds=settings.lease),
    )
    return Application(
        "events",
        "Publish events, subscribe to tags, report what came of them.",
        list(routes_of(EventRoutes(events))),
        events.running,
        events.let_go,
    )
