"""The tables of entries, and the mirror: what a job is at, its rows are at in the same moment."""

from importlib.resources import files

from penstock import Mirror, Tables
from penstock.apps.entries.rows import QUEUE


def _script(name: str) -> str:
    return files("penstock.apps.entries").joinpath(name).read_text("utf-8")


TABLES = Tables(
    sqlite=tuple(map(_script, ("sqlite.sql", "sqlite_content.sql", "sqlite_failed.sql"))),
    postgres=tuple(map(_script, ("postgres.sql", "postgres_content.sql", "postgres_failed.sql"))),
)

# A renewed lease changes nothing here.
_MIRRORED = """
UPDATE entries_entry SET
    embedding_status = CASE
        WHEN NEW.stage < 3 THEN 'pending' WHEN NEW.stage = 3 THEN 'processing'
        WHEN NEW.stage = 4 THEN 'embedded' ELSE 'failed' END,
    embedding_error = CASE
        WHEN NEW.stage = 4 THEN NULL WHEN NEW.stage > 5 THEN 'its job was cancelled'
        ELSE replace({headline}, 'penstock.apps.entries.embedding.EmbeddingFailed: ', '') END,
    embedding_attempts = NEW.attempt
WHERE job = NEW.id AND (
    NEW.stage <> 3 OR embedding_status <> 'processing' OR embedding_attempts <> NEW.attempt
)
"""
MIRROR = Mirror(
    name="entries_status",
    queue=QUEUE,
    sqlite=_MIRRORED.format(
        headline="substr(NEW.error, 1, instr(NEW.error || char(10), char(10)) - 1)"
    ),
    postgres=_MIRRORED.format(headline="split_part(NEW.error, chr(10), 1)"),
)
