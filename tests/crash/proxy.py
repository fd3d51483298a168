"""A proxy on loopback that cuts connections to PostgreSQL: at a commit, or at any message."""

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Sequence
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
# What begins a session; other packets of that form ask for encryption.
_PROTOCOL = b"\0\3"
_CODE = slice(4, 6)
_READY = b"Z"
# Notifications, notices and parameters: these come at any time, and answer nothing.
_UNASKED = b"ANS"


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
        """So many messages of clients from now on, the connection is cut; None for never."""
        self.answer: int | None = None
        """So many messages of the server from now on, the connection is cut; None for never."""
        self.answered = False
        """Whether the server still answers the message that is cut, and nobody hears of it."""
        self.cut: list[bytes] = []
        """The messages before which, or with the answer of which, a connection was cut."""
        self.cuts = 0
        self._counting = threading.Lock()
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

    def cut_answer(self, n: int) -> None:
        """Pass on n messages of the server from now on, then cut both sides."""
        self.answer = n

    def cut_nothing(self) -> None:
        """Pass on everything from now on."""
        self.choose = lambda: None
        self.message = self.answer = None

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
            self._run(self._to_client, link)

    def _to_server(self, link: "_Link") -> None:
        with contextlib.suppress(OSError):
            while said := link.client.recv(65536):
                messages = link.from_client.feed(said)
                if link.established and self._cuts_within(link, messages):
                    return
                whole = b"".join(messages)
                with link.choosing:
                    moment = self.choose() if _commits(whole) else None
                if moment is not None:
                    self.cuts += 1
                    link.cut_at(moment, whole)
                    return
                link.from_server.unframed += link.from_client.take_requests()
                link.server.sendall(whole)
        _cut(link.server)

    def _cuts_within(self, link: "_Link", messages: Sequence[bytes]) -> bool:
        """Count messages; cut if the one that is waited for is among them."""
        with self._counting:
            if self.message is None:
                return False
            if self.message >= len(messages):
                self.message -= len(messages)
                return False
            n, self.message = self.message, None
            self.cuts += 1
            self.cut.append(messages[n])
        # Without one of these, the server does not answer yet.
        moment = AFTER if self.answered and messages[n][:1] in b"QS" else AMID
        with link.choosing:
            link.cut_at(moment, b"".join(messages[: n + self.answered]))
        return True

    def _to_client(self, link: "_Link") -> None:
        with contextlib.suppress(OSError):
            while (said := link.server.recv(65536)) and not link.muted:
                messages = link.from_server.feed(said)
                passed = self._answers_passed(link, messages)
                link.client.sendall(b"".join(messages[:passed]))
                if passed < len(messages):
                    break
        with link.choosing:  # the client learns nothing before that
            _cut(link.client)
        _cut(link.server)

    def _answers_passed(self, link: "_Link", messages: Sequence[bytes]) -> int:
        """Count answers; return how many messages are passed on before the cut, or all."""
        with self._counting:
            for n, message in enumerate(messages):
                if (
                    not link.established
                ):  # this is the handshake, which ends with the first of these
                    link.established = message[:1] == _READY
                elif self.answer is not None and message[:1] not in _UNASKED:
                    if self.answer == 0:
                        self.answer = None
                        self.cuts += 1
                        self.cut.append(message)
                        return n
                    self.answer -= 1
        return len(messages)


class _Messages:
    """Cuts what one side says into messages: a letter, a length, and that many bytes.

    Packets before the session have no letter, and their answers are one letter without a length.
    """

    def __init__(self, *, lettered: bool) -> None:
        self._lettered = lettered
        self._buffer = b""
        self._requests = 0
        self.unframed = 0
        """How many letters without a length come next."""

    def feed(self, said: bytes) -> list[bytes]:
        """Return the messages that are complete."""
        self._buffer += said
        found = []
        while 0 < (size := self._size()) <= len(self._buffer):
            message, self._buffer = self._buffer[:size], self._buffer[size:]
            found.append(message)
            if self.unframed:
                self.unframed -= 1
            elif not self._lettered:
                self._lettered = message[_CODE] == _PROTOCOL
                self._requests += not self._lettered
        return found

    def take_requests(self) -> int:
        """Return how many packets were requests for encryption, since it was last asked."""
        requests, self._requests = self._requests, 0
        return requests

    def _size(self) -> int:
        if self.unframed:
            return 1
        start = int(self._lettered)
        if len(self._buffer) < start + 4:
            return 0
        return start + int.from_bytes(self._buffer[start : start + 4], "big")


class _Link:
    """One client and what speaks to the server for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.choosing = threading.Lock()
        self.from_client = _Messages(lettered=False)
        self.from_server = _Messages(lettered=True)
        self.established = False
        """Whether the handshake is over."""
        self.muted = False

    def cut_at(self, moment: str, said: bytes) -> None:
        if moment == AFTER:
            self.muted = True
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
