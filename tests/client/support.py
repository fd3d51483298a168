"""Real servers for clients: a process that can be stopped, killed and started again."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.client import Client
from tests.environment import SOON


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Server:
    """`penstock serve` on one file and one port, as often as it is started."""

    def __init__(self, folder: Path, token: str | None = None, **settings: str) -> None:
        self.store = f"sqlite:///{folder / 'jobs.db'}"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = token
        self._settings = settings
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock", "serve", "--store", self.store]
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port), "--workers", "0"],
            cwd=self._folder,
            env={**os.environ, **self._settings},
            stdout=subprocess.DEVNULL,
        )

    def until_up(self) -> None:
        """Also where an event loop runs: in a thread."""
        with ThreadPoolExecutor(1) as aside:
            aside.submit(self._ask).result(SOON)

    def _ask(self) -> None:
        with self.client(retries=40) as client:
            client.list(limit=1)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(SOON)
        self._process = None

    def client(self, *, retries: int = 5, worker: str | None = None) -> Client:
        return Client(self.url, token=self.token, retries=retries, worker=worker)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def serving(folder: Path, token: str | None = None, **settings: str) -> Iterator[Server]:
    """A server that answers, and is gone afterwards."""
    server = Server(folder, token, **settings)
    server.start()
    try:
        server.until_up()
        yield server
    finally:
        server.close()


class Proxy:
    """Passes connections on to a server, and swallows the first answers."""

    def __init__(self, port: int, swallowed: int) -> None:
        self._to = port
        self._left = swallowed
        self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._pass_on(near)

    def _pass_on(self, near: socket.socket) -> None:
        """One request and its answer; a connection has no more."""
        with near, socket.create_connection(("127.0.0.1", self._to)) as far:
            far.sendall(_whole(near))
            answer = _whole(far)
            self.requests += 1
            if self._left:
                self._left -= 1
            else:
                near.sendall(answer)

    def close(self) -> None:
        self._listener.close()


def _whole(peer: socket.socket) -> bytes:
    """A whole message: its head, and as much as that announces."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += peer.recv(65_536)
    head, _, body = read.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    while len(body) < length:
        body += peer.recv(65_536)
    return head + b"\r\n\r\n" + body


@contextmanager
def swallowing(server: Server, answers: int) -> Iterator[Proxy]:
    proxy = Proxy(server.port, answers)
    try:
        yield proxy
    finally:
        proxy.close()


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """Something that listens and says the same to everybody; its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    _whole(peer)
                    peer.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
