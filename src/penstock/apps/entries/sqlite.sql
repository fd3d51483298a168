CREATE TABLE entries_entry (
    number INTEGER PRIMARY KEY, -- order of insertion, for paging
    id TEXT NOT NULL UNIQUE,
    type TEXT NOT NULL,
    category TEXT NOT NULL,
    data TEXT NOT NULL, -- JSON
    text TEXT NOT NULL, -- the text to embed
    digest TEXT NOT NULL, -- of type, category and text
    version INTEGER NOT NULL,
    embedding_status TEXT NOT NULL, -- from the state of the job, by the mirror
    embedding_error TEXT,
    embedding_attempts INTEGER NOT NULL,
    job INTEGER NOT NULL, -- the job that embeds this version
    created_at INTEGER NOT NULL, -- microseconds since 1970
    updated_at INTEGER NOT NULL
) STRICT;

CREATE INDEX entries_entry_job ON entries_entry (job);
CREATE INDEX entries_entry_type ON entries_entry (type, category, number);
CREATE INDEX entries_entry_open ON entries_entry (embedding_status, number)
WHERE embedding_status <> 'embedded';

CREATE TABLE entries_count ( -- maintained by the triggers below
    slot INTEGER NOT NULL,
    type TEXT NOT NULL,
    embedding_status TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (slot, type, embedding_status)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER entries_added AFTER INSERT ON entries_entry BEGIN
    INSERT INTO entries_count VALUES (0, new.type, new.embedding_status, 1)
    ON CONFLICT DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER entries_changed AFTER UPDATE OF type, embedding_status ON entries_entry
WHEN old.type <> new.type OR old.embedding_status <> new.embedding_status BEGIN
    UPDATE entries_count SET n = n - 1
    WHERE slot = 0 AND type = old.type AND embedding_status = old.embedding_status;
    INSERT INTO entries_count VALUES (0, new.type, new.embedding_status, 1)
    ON CONFLICT DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER entries_removed AFTER DELETE ON entries_entry BEGIN
    UPDATE entries_count SET n = n - 1
    WHERE slot = 0 AND type = old.type AND embedding_status = old.embedding_status;
END;

CREATE TABLE entries_fact (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
