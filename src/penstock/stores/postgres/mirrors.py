"""Mirrors: triggers that keep rows of applications in step with their jobs."""

from collections.abc import Iterator, Sequence

from penstock.core.tables import WATCHED, Mirror, quoted
from penstock.stores.postgres.transaction import PostgresTransaction

# A trigger is created while nobody writes; others must not queue up behind it for long.
_PATIENCE = b"SET LOCAL lock_timeout = '5s'"


def install(tx: PostgresTransaction, mirrors: Sequence[Mirror]) -> list[None]:
    """See `TableStore.add_mirror`; triggers that are up to date stay."""
    for mirror in mirrors:
        _install(tx, mirror)
    return [None] * len(mirrors)


def _install(tx: PostgresTransaction, mirror: Mirror) -> None:
    name = f"mirror_{mirror.name}"
    body = _body(tx.schema, mirror)
    if tx.execute("mirror", (f"{tx.schema}.{name}()",)).fetchone() == (body,):
        return
    tx.run(_PATIENCE)
    for what in ("changed", "removed"):
        tx.run(f"DROP TRIGGER IF EXISTS {name}_{what} ON {tx.schema}.job".encode())
    # Names without a schema are resolved as for the store, whoever changes the job.
    tx.run(
        f"CREATE OR REPLACE FUNCTION {tx.schema}.{name}() RETURNS trigger LANGUAGE plpgsql "
        f"SET search_path = {tx.schema}, public AS $penstock${body}$penstock$".encode()
    )
    for trigger in _triggers(tx.schema, name, mirror):
        tx.run(trigger.encode())


def _triggers(schema: str, name: str, mirror: Mirror) -> Iterator[str]:
    queue, columns = quoted(mirror.queue), ", ".join(WATCHED)
    does = f"EXECUTE FUNCTION {schema}.{name}({queue})"
    yield (
        f"CREATE TRIGGER {name}_changed AFTER INSERT OR UPDATE OF {columns} ON {schema}.job "
        f"FOR EACH ROW WHEN (NEW.queue = {queue}) {does}"
    )
    if mirror.removed is not None:
        yield (
            f"CREATE TRIGGER {name}_removed AFTER DELETE ON {schema}.job "
            f"FOR EACH ROW WHEN (OLD.queue = {queue} AND OLD.stage >= 4) {does}"
        )


def _body(schema: str, mirror: Mirror) -> str:
    """Return the body of the trigger function.

    A finished job that is reset moves to another partition: a delete and an insert.
    """
    lines = [
        f" -- {quoted(mirror.queue)}",
        "BEGIN",
        "IF TG_OP <> 'DELETE' THEN",
        _statement(mirror.postgres),
        f"ELSIF NOT EXISTS (SELECT 1 FROM {schema}.job_active WHERE id = OLD.id) THEN",  # noqa: S608 - our own schema
        "NULL;" if mirror.removed is None else _statement(mirror.removed),
        "END IF;",
        "RETURN NULL;",
        "END ",
    ]
    return "\n".join(lines)


def _statement(text: str) -> str:
    return text.strip().rstrip(";") + ";"
