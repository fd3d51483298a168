"""An app whose handlers call `Context.finish` in child processes; tests and children import it."""

import os
import sqlite3
from contextlib import closing

from penstock import Penstock, context
from tests.worker.support import AT_ONCE

FILE = "PENSTOCK_TEST_FINISHING"

app = Penstock(f"sqlite:///{os.environ.get(FILE, 'nowhere.db')}")


@app.task(isolation="process", retry=AT_ONCE)
def send() -> str:
    """Commit in the second attempt."""
    with closing(sqlite3.connect(os.environ[FILE])) as connection:
        context().finish("sent", connection=connection)
        if context().attempt > 1:
            connection.commit()
    return "returned"
