"""How large a store is."""

import msgspec


class StoreSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much room a store takes; what a store does not have is None.

    `wal_bytes` is the log that SQLite writes ahead of its file, or a journal. `dead_rows` are
    rows of PostgreSQL that wait for its vacuum.
    """

    kind: str
    bytes: int | None = None
    wal_bytes: int | None = None
    dead_rows: int | None = None
