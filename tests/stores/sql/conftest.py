import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import postgres as server
from tests.stores.sql.databases import Database, Postgres, Sqlite


@pytest.fixture(params=["sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Database]]:
    """Makes databases without a store in them."""
    made: list[Database] = []

    def one() -> Database:
        if request.param == "sqlite":
            made.append(Sqlite(tmp_path / f"{len(made)}.db"))
        else:
            url = request.getfixturevalue("postgres_server")
            connection = request.getfixturevalue("postgres_connection")
            schema = f"t_schema_{len(made)}_{zlib.crc32(str(tmp_path).encode()):x}"
            made.append(Postgres(server.within(url, schema) + "&migrate=auto", connection))
        return made[-1]

    yield one
    for database in made:
        if isinstance(database, Postgres):
            server.drop_schema(database.connection, database.schema)


@pytest.fixture
def database(make: Callable[[], Database]) -> Database:
    return make()
