"""Mirrors: triggers that keep rows of applications in step with their jobs."""

from collections.abc import Iterator, Sequence

from penstock.core.tables import WATCHED, Mirror, quoted
from penstock.stores.sql.database import Transaction


def install(tx: Transaction, mirrors: Sequence[Mirror]) -> list[None]:
    """See `TableStore.add_mirror`; triggers that are up to date stay."""
    for mirror in mirrors:
        wanted = dict(_triggers(mirror))
        found = dict(tx.execute("triggers", (f"{_prefix(mirror)}_",)).fetchall())
        for name in found.keys() - wanted.keys():
            tx.execute_sql(f"DROP TRIGGER {name}", ())
        for name, text in wanted.items():
            if found.get(name) != text:
                tx.execute_sql(f"DROP TRIGGER IF EXISTS {name}", ())
                tx.execute_sql(text, ())
                tx.written = True
    return [None] * len(mirrors)


def _prefix(mirror: Mirror) -> str:
    return f"penstock_mirror_{mirror.name}"


def _triggers(mirror: Mirror) -> Iterator[tuple[str, str]]:
    queue, columns = quoted(mirror.queue), ", ".join(WATCHED)
    events = {"added": "INSERT", "changed": f"UPDATE OF {columns}"}
    for what, event in events.items():
        yield _trigger(f"{_prefix(mirror)}_{what}", event, f"NEW.queue = {queue}", mirror.sqlite)
    if mirror.removed is not None:
        name = f"{_prefix(mirror)}_removed"
        yield _trigger(name, "DELETE", f"OLD.queue = {queue}", mirror.removed)


def _trigger(name: str, event: str, when: str, statement: str) -> tuple[str, str]:
    statement = statement.strip().rstrip(";")
    text = f"CREATE TRIGGER {name} AFTER {event} ON penstock_job WHEN {when} BEGIN {statement}; END"
    return name, text
