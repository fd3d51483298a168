-- The catalogue of a search index. Rows never change: a new version of an item is a new row with a
-- higher number, and numbers are never reused. A replica of the vectors therefore only needs to
-- know how far it has read `item` and `removed`.

CREATE TABLE item ( -- narrow, because filters scan it
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    path TEXT NOT NULL,
    type TEXT NOT NULL,
    metadata TEXT NOT NULL
) STRICT;

CREATE INDEX item_path ON item (path);

CREATE TABLE body (
    number INTEGER PRIMARY KEY,
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    vector BLOB NOT NULL -- 32-bit floats, little-endian
) STRICT;

-- Written by the catalogue, many rows per statement.
CREATE VIRTUAL TABLE words USING fts5 (
    title, text, content = 'body', content_rowid = 'number', tokenize = 'porter unicode61'
);

CREATE TABLE removed (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL
) STRICT;

CREATE TABLE fact (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL -- JSON
) STRICT;
