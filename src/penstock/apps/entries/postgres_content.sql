-- Large columns are in a table of their own, because the mirror updates every row twice and would
-- rewrite them each time.
CREATE TABLE entries_content (
    number bigint PRIMARY KEY, -- of the row in entries_entry
    data text NOT NULL, -- JSON
    text text NOT NULL -- the text to embed
);

INSERT INTO entries_content SELECT number, data, text FROM entries_entry;
ALTER TABLE entries_entry DROP COLUMN data;
ALTER TABLE entries_entry DROP COLUMN text;
