CREATE TABLE entries_failed ( -- rows that have failed and whose vectors are to be removed
    id text COLLATE "C" PRIMARY KEY
);

CREATE FUNCTION entries_failing() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO entries_failed VALUES (new.id) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE TRIGGER entries_failing AFTER UPDATE OF embedding_status ON entries_entry FOR EACH ROW
WHEN (new.embedding_status = 'failed' AND old.embedding_status <> 'failed')
EXECUTE FUNCTION entries_failing();
