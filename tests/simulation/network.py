"""A network between simulated processes: it delays, reorders, duplicates and cuts.

A request travels to the process of a server, is served there, and its reply travels back. Each
way takes a time of its own, so that requests overtake each other.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import IO

from penstock.client.connection import AsgiApp, Message, _messages, _scope
from penstock.client.wire import Reply, Request
from penstock.core.errors import ServerUnreachable
from penstock.testing.simulation.world import Process, World

TIMEOUT = 5.0
"""How long a client waits for an answer, in addition to the time that the server may wait."""
_USUAL_DELAY, _LONG_DELAY = 0.005, 4.0
# A duplicate arrives up to so many seconds after the first.
_LATER = [0.0, 0.01, 1.0, 12.0]
_CUTS = ["before", "waiting", "after"]


class Network:
    """The network of a world. Servers listen on it by name."""

    def __init__(self, world: World) -> None:
        self.process = world.process("network")
        self._world = world
        self._random = random.Random(f"network {world.seed}")
        self._listening: dict[str, tuple[Process, AsgiApp]] = {}
        self._served: dict[Exchange, Process] = {}
        self._unreachable: set[str] = set()
        self._cuts = self._duplicates = 0
        self._is_slow = False

    def listen(self, server: str, process: Process, app: AsgiApp) -> None:
        """Deliver the requests to a server to an application in this process, while it lives."""
        self._listening[server] = process, app
        process.at_end.append(lambda: self._hang_up(process))

    def _hang_up(self, process: Process) -> None:
        """A process has died: its clients lose their connections."""
        for exchange, server in self._served.items():
            if server is process:
                self.later(_reset, exchange)

    def transport(self, process: Process, servers: Sequence[str]) -> "SimulatedTransport":
        """Return the connections of a client; it turns to another server if one fails."""
        first = self._random.randrange(len(servers))
        return SimulatedTransport(self, process, [*servers[first:], *servers[:first]])

    # Faults

    def strike(self, kind: str, server: str, amount: float) -> None:
        """Cut or duplicate so many requests, or be slow or unreachable for so many seconds."""
        match kind:
            case "cut":
                self._cuts += int(amount)
            case "duplicate":
                self._duplicates += int(amount)
            case "delay":
                self._is_slow = True
                self.process.loop.call_later(amount, self._speed_up)
            case "partition":
                self._unreachable.add(server)
                self.process.loop.call_later(amount, self._unreachable.discard, server)

    def heal(self) -> None:
        """From now on, everything arrives, once and soon."""
        self._cuts = self._duplicates = 0
        self._is_slow = False
        self._unreachable.clear()

    def _speed_up(self) -> None:
        self._is_slow = False

    # Requests

    def begin(self, exchange: "Exchange") -> None:
        """Take a request on its way."""
        if self._cuts:
            self._cuts -= 1
            exchange.cut = self._random.choice(_CUTS)
            self._world.tell(f"-- {exchange}: cut {exchange.cut}")
        self.later(self.arrive, exchange)
        if self._duplicates:
            self._duplicates -= 1
            exchange.is_duplicated = True
            self._world.tell(f"-- {exchange}: duplicated")
            self.later(self.arrive, exchange, self._random.choice(_LATER) * self._random.random())

    def later(
        self, call: Callable[["Exchange"], object], exchange: "Exchange", more: float = 0.0
    ) -> None:
        """Do something with an exchange as soon as a message has travelled."""
        usual = self._random.expovariate(1 / _USUAL_DELAY)
        delay = self._random.uniform(0, _LONG_DELAY) if self._is_slow else usual
        self.process.loop.call_later(delay + more, call, exchange)

    def arrive(self, exchange: "Exchange") -> None:
        """A request reaches its server, unless it is cut before."""
        if exchange.server in self._unreachable:
            return  # the client waits until it gives up
        process, app = self._listening.get(exchange.server, (None, None))
        if process is None or app is None or not process.alive:
            exchange.fail("connection refused", arrived=False)
        elif exchange.cut == "before":
            exchange.fail("connection lost")
        else:
            process.start(self._serve(exchange, process, app))
            if exchange.cut == "waiting":
                self.later(_reset, exchange)

    async def _serve(self, exchange: "Exchange", process: Process, app: AsgiApp) -> None:
        """Run in the process of the server."""
        self._served[exchange] = process
        left = exchange.leaving(process)
        messages, reply = _messages(exchange.request), [Reply(500, b"")]

        async def receive() -> Message:
            for message in messages:
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            known = reply[0]
            if message["type"] == "http.response.start":
                headers = {name.decode(): text.decode() for name, text in message["headers"]}
                reply[0] = Reply(message["status"], b"", headers.get("retry-after"))
            else:
                reply[0] = known._replace(content=known.content + message.get("body", b""))

        try:
            await app(_scope(exchange.request), receive, send)
        except Exception as error:  # noqa: BLE001 - the judge is told
            process.runtime.report(f"{exchange}: {error!r}")
        self._served.pop(exchange, None)
        self.later(lambda one: self._answer(one, reply[0]), exchange)

    def _answer(self, exchange: "Exchange", reply: Reply) -> None:
        if exchange.server in self._unreachable:
            return
        if exchange.cut:
            exchange.fail("connection lost")
        else:
            exchange.succeed(reply)


class Exchange:
    """One request of a client, until it has an answer or gives up."""

    def __init__(self, client: Process, server: str, request: Request) -> None:
        self.client = client
        self.server = server
        self.request = request
        self.cut = ""
        self.is_duplicated = False
        self.answer: asyncio.Future[Reply] = client.loop.create_future()
        self._has_left = False
        self._leaving: list[tuple[Process, asyncio.Event]] = []

    def __str__(self) -> str:
        return f"{self.client.name} to {self.server}, {self.request.path}"

    def succeed(self, reply: Reply) -> None:
        self.client.loop.call_soon(self._resolve, reply)

    def fail(self, why: str, *, arrived: bool = True) -> None:
        error = ServerUnreachable(f"{self.server}: {why}", arrived=arrived)
        self.client.loop.call_soon(self._resolve, error)

    def _resolve(self, found: Reply | ServerUnreachable) -> None:
        if self.answer.done():
            return
        if isinstance(found, Reply):
            self.answer.set_result(found)
        else:
            self.answer.set_exception(found)

    def leaving(self, server: Process) -> asyncio.Event:
        """Return what tells a server that its client has left."""
        event = asyncio.Event()
        if self._has_left:
            event.set()
        self._leaving.append((server, event))
        return event

    def leave(self) -> None:
        """The client waits no longer."""
        self._has_left = True
        for server, event in self._leaving:
            server.loop.call_soon(event.set)


def _reset(exchange: Exchange) -> None:
    exchange.fail("connection lost")
    exchange.leave()


class SimulatedTransport:
    """The connections of one client: a `Transport`."""

    def __init__(self, network: Network, process: Process, servers: Sequence[str]) -> None:
        self._network = network
        self._process = process
        self._servers = list(servers)
        self._open: dict[Exchange, None] = {}
        self.copies = 0
        """How many requests were sent; a duplicated one counts twice."""
        process.at_end.append(self._leave_all)

    async def send(self, request: Request) -> Reply:
        exchange = Exchange(self._process, self._servers[0], request)
        self._open[exchange] = None
        self._network.begin(exchange)
        self.copies += 1 + exchange.is_duplicated
        try:
            async with asyncio.timeout(TIMEOUT + request.patience):
                return await exchange.answer
        except TimeoutError:
            self._turn()
            raise ServerUnreachable(f"{exchange.server} did not answer in time") from None
        except ServerUnreachable:
            self._turn()
            raise
        finally:
            del self._open[exchange]
            exchange.answer.cancel()
            self._network.later(Exchange.leave, exchange)

    def _turn(self) -> None:
        """Go on with another server."""
        self._servers.append(self._servers.pop(0))

    def _leave_all(self) -> None:
        for exchange in self._open:
            self._network.later(Exchange.leave, exchange)

    async def fetch(self, request: Request, file: IO[bytes]) -> None:
        raise NotImplementedError

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        raise NotImplementedError

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Do nothing: a request has a connection of its own."""
