from collections.abc import Iterator

import pytest

from penstock.client import Client
from tests.client.support import Server, serving


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests that leave it running; each uses tags of its own."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client(worker="w:1") as one:
        yield one
