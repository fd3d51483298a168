"""Process events from Python, until Ctrl-C.

    pip install -c constraints.txt '.[client]'      # in a clone of the repository
    penstock serve                          # in another terminal
    python examples/http/worker.py

PENSTOCK_URL is the server's address, PENSTOCK_TOKEN a token with the scope work.
"""

import os

from penstock.client import Client, Event


def send(event: Event) -> None:
    """Runs in a thread, several at a time. What it raises is reported, and tried again later.

    An event may come twice, after a crash or a lost connection: the id tells which it is.
    """
    line = f"working on event {event.id}: {event.title} to {event.payload['to']}\n"
    print(line, end="", flush=True)  # whole, also beside those of other threads


with Client(os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8000")) as client:
    client.work(["email"], send, concurrency=4)
print("stopped")
