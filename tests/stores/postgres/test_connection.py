"""URLs with several hosts: the primary is chosen, and errors show no password."""

import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock import Penstock, StoreUnavailable, run_sync
from penstock.stores.postgres.connection import address, connect


@pytest.fixture
def closed() -> Iterator[list[int]]:
    """Two ports on which nobody listens."""
    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    yield [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()


def asked_for(monkeypatch: pytest.MonkeyPatch, url: str) -> object:
    """The session that the driver is asked for; that of the URL is not asked for again."""
    given: dict[str, Any] = {}

    def note(_: str, **settings: Any) -> None:
        given.update(settings)
        raise psycopg.OperationalError

    monkeypatch.setattr(psycopg, "connect", note)
    with pytest.raises(psycopg.OperationalError):
        connect(address(url))
    return given.get("target_session_attrs")


@pytest.mark.parametrize(
    ("url", "session"),
    [
        ("postgresql://a:1,b:2/jobs", "read-write"),
        ("postgresql:///jobs?host=a,b", "read-write"),
        ("postgresql://a:1,b:2/jobs?target_session_attrs=any", None),
        ("postgresql://a/jobs", None),
    ],
)
def test_of_several_hosts_the_primary_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, url: str, session: str | None
) -> None:
    assert asked_for(monkeypatch, url) == session


def test_hosts_stay_as_they_are_and_the_name_has_no_password() -> None:
    found = address("postgresql://me:se%2Ccret@a:1,[::1]:2/jobs?schema=x&sslmode=require")
    parts = psycopg.conninfo.conninfo_to_dict(found.conninfo)
    assert (parts["host"], parts["port"], parts["password"]) == ("a,::1", "1,2", "se,cret")
    assert found.name == "postgresql://me:***@a:1,[::1]:2/jobs, schema x"


def test_host_may_be_a_parameter_such_as_the_folder_of_a_socket() -> None:
    found = address("postgresql:///jobs?host=/run/postgresql&schema=x")
    parts = psycopg.conninfo.conninfo_to_dict(found.conninfo)
    assert (parts["host"], parts["dbname"]) == ("/run/postgresql", "jobs")


def test_hosts_that_do_not_answer_can_be_tried_again(closed: list[int]) -> None:
    first, second = closed
    app = Penstock(f"postgresql://me:Qx7@127.0.0.1:{first},127.0.0.1:{second}/jobs")
    with pytest.raises(StoreUnavailable) as caught:
        run_sync(app.count())
    assert "Qx7" not in str(caught.value)


def test_host_that_does_not_answer_is_passed_over(postgres_url: str, closed: list[int]) -> None:
    user, _, rest = postgres_url.partition("@")
    app = Penstock(f"{user}@127.0.0.1:{closed[0]},{rest}")
    assert run_sync(app.count()) == {}
    run_sync(app.close())
