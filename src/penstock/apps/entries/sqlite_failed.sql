CREATE TABLE entries_failed ( -- rows that have failed and whose vectors are to be removed
    id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TRIGGER entries_failing AFTER UPDATE OF embedding_status ON entries_entry
WHEN new.embedding_status = 'failed' AND old.embedding_status <> 'failed' BEGIN
    INSERT INTO entries_failed VALUES (new.id) ON CONFLICT DO NOTHING;
END;
