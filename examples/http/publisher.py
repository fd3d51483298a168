"""Publish events from Python.

    pip install -c constraints.txt '.[client]'      # in a clone of the repository
    penstock serve                          # in another terminal
    python examples/http/publisher.py

PENSTOCK_URL is the server's address, PENSTOCK_TOKEN a token with the scope publish.
"""

import os

from penstock.client import Client, NewEvent

with Client(os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8000")) as client:
    event = client.publish("Send a welcome", ["email"], {"to": "ada@example.com"})
    print(f"event {event.id} is {event.status}")

    # Many at once are one transaction: all of them, or none.
    names = ["grace", "alan", "edsger"]
    events = client.publish_many(
        [NewEvent("Send news", ["email"], {"to": f"{name}@example.com"}) for name in names]
    )
    print("events", ", ".join(str(event.id) for event in events))
