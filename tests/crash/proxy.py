"""A proxy on loopback that cuts connections to PostgreSQL at the moment of a commit."""

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from penstock.stores.postgres.pipeline import NAME

BEFORE = "before"
"""The server never hears of the commit."""
AMID = "amid"
"""The server hears of it, and the client is gone when it is done."""
AFTER = "after"
"""The server has answered, and the client never hears of it."""
MOMENTS = (BEFORE, AMID, AFTER)

_COMMIT = b"COMMIT\0"
# The end of a transaction that is sent in one round trip.
_SYNC = b"S\0\0\0\x04"


class Proxy:
    """Passes on what clients and a server say; `with` ends it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = parts.hostname, parts.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        user = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{user}@{place}"))
        self.choose: Callable[[], str | None] = lambda: None
        """Asked at each commit: at which moment to cut, None not to."""
        self.message: int | None = None
        """So many messages from now on, the connection is cut; None for never."""
        self.answered = False
        """Whether the server still answers the message that is cut, and nobody hears of it."""
        self.cuts = 0
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def cut_once(self, moment: str) -> None:
        """Cut the next commit of any client."""
        left = [moment]
        self.choose = lambda: left.pop() if left else None

    def cut_often(self, rng: random.Random, share: float) -> None:
        """Cut this share of all commits."""
        self.choose = lambda: rng.choice(MOMENTS) if rng.random() < share else None

    def cut_message(self, n: int, *, answered: bool) -> None:
        """Cut before the n-th message of a client from now on; or lose its answer."""
        self.message, self.answered = n, answered

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # Wakes the thread that accepts, which a plain close would not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # nobody comes any more
        self._listener.close()
        for one in self._sockets:
            _cut(one)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _run(self, do: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=do, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            try:
                server = socket.create_connection(self._server)
            except OSError:
                _cut(client)
                continue
            self._sockets.append(server)
            link = _Link(client, server)
            self._run(self._to_server, link)
            self._run(link.to_client)

    def _to_server(self, link: "_Link") -> None:
        with contextlib.suppress(OSError):
            while said := link.client.recv(65536):
                if self.message is not None and self._cuts_within(link, said):
                    return
                with link.choosing:
                    moment = self.choose() if _commits(said) else None
                if moment is not None:
                    self.cuts += 1
                    link.cut_at(moment, said)
                    return
                link.server.sendall(said)
        _cut(link.server)

    def _cuts_within(self, link: "_Link", said: bytes) -> bool:
        """Count messages; cut if the one that is waited for is among them."""
        assert self.message is not None
        messages = list(_messages(said))
        if self.message >= len(messages):
            self.message -= len(messages)
            return False
        found, self.message = messages[self.message], None
        # Without one of these, the server does not answer yet.
        moment = AFTER if self.answered and said[found.start : found.start + 1] in b"QS" else AMID
        end = found.stop if self.answered else found.start
        self.cuts += 1
        with link.choosing:
            link.cut_at(moment, said[:end])
        return True


def _messages(said: bytes) -> Iterator[slice]:
    """Where the messages of the protocol are: a letter, a length, and that many bytes."""
    start = 0
    while start + 5 <= len(said):
        end = start + 1 + int.from_bytes(said[start + 1 : start + 5], "big")
        yield slice(start, end)
        start = end


class _Link:
    """One client and what speaks to the server for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.choosing = threading.Lock()
        self._muted = False

    def to_client(self) -> None:
        with contextlib.suppress(OSError):
            while (said := self.server.recv(65536)) and not self._muted:
                self.client.sendall(said)
        with self.choosing:  # the client learns nothing before that
            _cut(self.client)
        _cut(self.server)

    def cut_at(self, moment: str, said: bytes) -> None:
        if moment == AFTER:
            self._muted = True
            self.server.sendall(said)
            return  # the answer ends it
        _cut(self.client)
        if moment == AMID:
            self.server.sendall(said)
        _cut(self.server)


def _commits(said: bytes) -> bool:
    return said.endswith(_COMMIT) or (said.endswith(_SYNC) and NAME.encode() in said)


def _cut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
