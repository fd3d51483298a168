"""Clients that reach the store over HTTP, and the server they reach: each is one process.

A client repeats a report until it is answered, as it has to when the server may have died while
answering; an event that it published without an answer is published anew, as another.
"""

import contextlib
import http.client
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec

from penstock.cli.serve import run_server
from penstock.core.job import Job
from penstock.server import process as _imported_before_the_fork  # noqa: F401 - saves a second each
from tests.crash.client import Client
from tests.crash.recording import (
    Asked,
    AskedJob,
    Claimed,
    Refused,
    Settled,
    Told,
    Trouble,
    recorded_run,
    store_url,
)

QUEUE = "events"
TAGS = ("red", "green", "blue")
KEYS = (None, None, None, "k1", "k2")
_ANSWERS = {"taken": (200, 400), "refused": (409,)}


class Unanswered(Exception):
    """The server did not answer: nobody knows what it has done."""


class Held(NamedTuple):
    """An event in a worker's hands, as far as recording it goes."""

    id: int
    token: int
    attempt: int


def free_port() -> int:
    """Return a port for a server that is started again and again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def http_server(app: Client, options: dict[str, Any]) -> None:
    """`penstock serve` on the store, until it is killed."""
    os.environ["PENSTOCK_APPS"] = "events"  # others read, while they start, what a variant hides
    os.environ["PENSTOCK_EVENTS_LEASE"] = str(options["lease"])
    os.environ["PENSTOCK_EVENTS_RETRY_DELAY"] = "0.01"
    run_server.main(
        ["--store", store_url(app.folder), "--port", str(options["port"]), "--workers", "0"],
        standalone_mode=False,
    )


class Caller:
    """One client's connection to the server."""

    def __init__(self, app: Client, port: int) -> None:
        self.app = app
        self._port = port
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, body: Any) -> tuple[int, Any]:
        """The status and the answer; raises `Unanswered`."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            self._connection.request(
                "POST", path, msgspec.json.encode(body), {"Content-Type": "application/json"}
            )
            answer = self._connection.getresponse()
            return answer.status, msgspec.json.decode(answer.read())
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            self.close()
            raise Unanswered from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def insist(self, path: str, body: Any) -> tuple[int, Any]:
        """Ask until there is an answer."""
        while True:
            try:
                return self.ask(path, body)
            except Unanswered:
                time.sleep(0.01)

    def publish(self, events: list[dict[str, Any]]) -> None:
        note, call = self.app.recorder.note, next(self.app.recorder.calls)
        asked = [AskedJob(one["payload"]["mark"], QUEUE, one.get("key"), None) for one in events]
        note(Asked, call=call, jobs=asked)
        status, answer = self.ask("/events/batch", {"events": events})
        if status == 201:
            note(Told, call=call, jobs=[(event["id"], False) for event in answer["events"]])
        else:
            note(Refused, call=call, error=str(answer))

    def pick(self, limit: int, wait: float) -> list[Held]:
        wanted = {
            "tags": TAGS,
            "worker_id": self.app.connection.actor,
            "limit": limit,
            "wait": wait,
        }
        status, answer = self.ask("/events/subscribe", wanted)
        if status != 200:
            self.app.recorder.note(Trouble, error=f"subscribe: {status} {answer}")
            return []
        held = [Held(one["id"], one["token"], one["retry_count"] + 1) for one in answer["events"]]
        if held:
            self.app.recorder.note(Claimed, runs=[(one.id, one.token) for one in held])
        return held

    def report(self, event: Held, *, well: bool) -> None:
        """Report how it ended, as often as necessary."""
        action = "complete" if well else "fail"
        said = {"worker_id": self.app.connection.actor, "token": event.token}
        status, answer = self.insist(f"/events/{event.id}/{action}", said)
        if status in _ANSWERS["taken"] or status in _ANSWERS["refused"]:
            taken = status in _ANSWERS["taken"]
            self.app.recorder.note(Settled, runs=[(event.id, event.token, taken)])
        else:
            self.app.recorder.note(Trouble, error=f"{action}: {status} {answer}")

    def handle(self, event: Held, *, well: bool = True) -> None:
        """Do what an event asks for."""
        with contextlib.suppress(_AsItWasTold), _recorded(self.app, event):
            if self.app.rng.random() < 0.3:
                time.sleep(0.01)
            if not well:
                raise _AsItWasTold


class _AsItWasTold(Exception):
    pass


@contextlib.contextmanager
def _recorded(app: Client, event: Held) -> Iterator[None]:
    with recorded_run(cast("Job", event), app.recorder, app.fence):
        yield


def new_event(app: Client, **fields: Any) -> dict[str, Any]:
    return {
        "title": "t",
        "tags": app.rng.sample(TAGS, app.rng.randint(1, 3)),
        "max_retries": 100,
        "payload": {"mark": app.mark()},
        **fields,
    }


def http_publisher(app: Client, options: dict[str, Any]) -> None:
    """Publishes, one or many at a time, until it is killed."""
    caller = Caller(app, options["port"])
    while True:
        events = []
        for _ in range(app.rng.randint(1, 6)):
            key = app.rng.choice(KEYS)
            events.append(new_event(app, priority=app.rng.randrange(11), key=key))
        try:
            caller.publish(events)
        except Unanswered:
            time.sleep(0.02)
        time.sleep(app.rng.uniform(0, 0.2))


def http_worker(app: Client, options: dict[str, Any]) -> None:
    """Picks, handles and reports, until it is killed."""
    caller = Caller(app, options["port"])
    while True:
        try:
            held = caller.pick(app.rng.randint(1, 8), 0.5)
        except Unanswered:
            time.sleep(0.02)
            continue
        for event in held:
            well = app.rng.random() < 0.85
            caller.handle(event, well=well)
            caller.report(event, well=well)


ROLES = (http_server, http_publisher, http_worker)
