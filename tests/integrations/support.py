"""What tests of the integrations share: an application that is served in a thread."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.environment import SOON


class _Listener(uvicorn.Server):
    """Tells when it answers."""

    def __init__(self, config: uvicorn.Config, answers: "Future[None]") -> None:
        super().__init__(config)
        self._answers = answers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._answers.set_result(None)


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[str]:
    """Serve an ASGI application, with its lifespan, inside the block; yields its address."""
    bound = socket.create_server(("127.0.0.1", 0))
    settings = {"log_level": "error", "timeout_graceful_shutdown": 1, "lifespan": "on", **options}
    answers: Future[None] = Future()
    listener = _Listener(uvicorn.Config(app, **settings), answers)
    thread = threading.Thread(target=lambda: asyncio.run(listener.serve([bound])))
    thread.start()
    try:
        answers.result(SOON)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        listener.should_exit = True
        thread.join(SOON)
        bound.close()
        assert not thread.is_alive()
