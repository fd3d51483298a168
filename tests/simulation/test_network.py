"""The simulated network: what becomes of a request, and what its client learns."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.client.connection import Message
from penstock.client.wire import Reply, Request
from penstock.core.errors import ServerUnreachable
from penstock.testing.simulation.world import Process, World
from tests.simulation.network import TIMEOUT, Network, SimulatedTransport

REQUEST = Request("POST", "/numbers", body=[1])


class Server:
    """An application that counts its requests."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Message, receive: object, send: object) -> None:
        self.paths.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"ok"})  # type: ignore[operator]


class Site:
    """A client and a server, which has a network to itself."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.network = Network(world)
        self.app = Server()
        self.server, self.client = world.process("server"), world.process("client")
        self.network.listen("server", self.server, self.app)
        self.transport: SimulatedTransport = self.network.transport(self.client, ["server"])

    def send(self, path: str = "/numbers") -> Reply:
        task = self.client.start(self.transport.send(REQUEST._replace(path=path)))
        return self.world.wait(task, limit=60)

    def fails(self) -> ServerUnreachable:
        with pytest.raises(ServerUnreachable) as failed:
            self.send()
        return failed.value

    def pass_time(self, seconds: float) -> None:
        self.world.run(lambda: False, limit=seconds)


@pytest.fixture(params=range(4))
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    world = World(request.param)
    with closing(world):
        idle: Process = world.process("clock")
        idle.loop.call_later(1000, lambda: None)  # so that time passes when nothing happens
        yield Site(world)


def test_request_is_served_once_and_answered(site: Site) -> None:
    assert site.send() == Reply(200, b"ok")
    assert site.app.paths == ["/numbers"]


def test_client_of_a_cut_request_does_not_learn_whether_it_was_served(site: Site) -> None:
    served = set()
    for _ in range(12):
        site.network.strike("cut", "server", 1)
        assert site.fails().arrived
        site.pass_time(1)
        served.add(len(site.app.paths))
        site.app.paths.clear()
    assert served == {0, 1}


def test_duplicate_is_served_twice_and_answered_once(site: Site) -> None:
    site.network.strike("duplicate", "server", 1)
    assert site.send().status == 200
    site.pass_time(20)
    assert site.app.paths == ["/numbers"] * 2
    assert site.transport.copies == 2


def test_nothing_reaches_a_dead_server(site: Site) -> None:
    site.world.kill(site.server)
    assert not site.fails().arrived


def test_partition_makes_clients_wait_in_vain_until_it_ends(site: Site) -> None:
    site.network.strike("partition", "server", 3)
    before = site.world.now
    assert site.fails().arrived
    assert site.world.now - before == pytest.approx(TIMEOUT, abs=0.1)
    assert site.app.paths == []
    assert site.send().status == 200


def test_server_that_dies_loses_its_clients_at_once(site: Site) -> None:
    async def never(*_: object) -> None:
        await site.server.loop.create_future()

    site.network.listen("server", site.server, never)
    site.client.loop.call_later(1, site.world.kill, site.server)
    assert site.fails().arrived
    assert site.world.now < TIMEOUT


def test_requests_overtake_each_other(site: Site) -> None:
    site.network.strike("delay", "server", 30)
    tasks = [
        site.client.start(site.transport.send(REQUEST._replace(path=f"/{n}"))) for n in range(8)
    ]
    site.pass_time(20)
    assert all(task.done() for task in tasks)
    for task in tasks:
        task.exception()  # some may have waited too long
    assert sorted(site.app.paths) == [f"/{n}" for n in range(8)] != site.app.paths
