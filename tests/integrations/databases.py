"""A database that a store and the tables of an application share."""

from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy.engine import make_url

from penstock import Penstock, run_sync

SYNCHRONOUS = {"sqlite": "sqlite", "postgres": "postgresql+psycopg"}
ASYNCHRONOUS = {"sqlite": "sqlite+aiosqlite", "postgres": "postgresql+psycopg"}


class Shared(NamedTuple):
    """The addresses of a database: for a Penstock, and for engines of SQLAlchemy."""

    queue: str
    synchronous: str
    asynchronous: str


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    """A store that exists, on each database in turn."""
    if request.param == "sqlite":
        url = where = f"sqlite:///{tmp_path}/shop.db"
    else:
        url = request.getfixturevalue("postgres_url")
        schema = url.rpartition("=")[2]
        server = make_url(request.getfixturevalue("postgres_server"))
        where = server.update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(
            hide_password=False
        )
    app = Penstock(url)
    run_sync(app.count())
    run_sync(app.close())

    def on(drivers: dict[str, str]) -> str:
        address = make_url(where).set(drivername=drivers[request.param])
        return address.render_as_string(hide_password=False)

    return Shared(url, on(SYNCHRONOUS), on(ASYNCHRONOUS))
