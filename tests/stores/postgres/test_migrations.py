"""Schemas of earlier versions are brought up with what is in them."""

from datetime import timedelta

from penstock.core.job import Queue
from penstock.engine import Penstock, run_sync
from penstock.stores.postgres.connection import MIGRATIONS, address, connect, renamed


def test_queues_stay_paused_and_keep_their_limits(postgres_url: str) -> None:
    where = address(postgres_url)
    filled = """
        INSERT INTO penstock.meta VALUES ('schema', 1);
        INSERT INTO penstock.queue VALUES ('held', true), ('open', false);
        UPDATE penstock.queue SET promote_after = 60000000 WHERE name = 'open';
    """
    with connect(where) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {where.schema}")
        for script in (MIGRATIONS[0][1], filled):
            connection.execute(renamed(script, where.schema).encode(), prepare=False)
    app = Penstock(postgres_url)
    still = Queue(name="open", promote_after=timedelta(minutes=1))
    assert run_sync(app.queues()) == [Queue(name="held", paused=True), still]
    run_sync(app.close())
