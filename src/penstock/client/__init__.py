"""Clients of a server over HTTP: publish and handle events. Needs `penstock[client]`."""

from penstock.client.client import AsyncClient, Client
from penstock.client.remote import RemotePenstock
from penstock.client.values import Action, Event, EventPage, Hold, NewEvent, Report
from penstock.client.worker import EventWorker

__all__ = [
    "Action",
    "AsyncClient",
    "Client",
    "Event",
    "EventPage",
    "EventWorker",
    "Hold",
    "NewEvent",
    "RemotePenstock",
    "Report",
]
