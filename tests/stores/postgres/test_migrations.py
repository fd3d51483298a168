"""Schemas of earlier versions are brought up with what is in them."""

from penstock.core.job import Queue
from penstock.engine import Penstock, run_sync
from penstock.stores.postgres.connection import MIGRATIONS, address, connect, renamed


def test_queue_that_was_paused_stays_paused(postgres_url: str) -> None:
    where = address(postgres_url)
    filled = """
        INSERT INTO penstock.meta VALUES ('schema', 1);
        INSERT INTO penstock.queue VALUES ('held', true), ('open', false);
    """
    with connect(where) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {where.schema}")
        for script in (MIGRATIONS[0][1], filled):
            connection.execute(renamed(script, where.schema).encode(), prepare=False)
    app = Penstock(postgres_url)
    assert run_sync(app.queues()) == [Queue(name="held", paused=True), Queue(name="open")]
    run_sync(app.close())
