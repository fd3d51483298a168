CREATE TABLE entries_entry (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- in the order of their coming, for pages
    id text COLLATE "C" NOT NULL UNIQUE, -- sorted as the index sorts it
    type text NOT NULL,
    category text NOT NULL,
    data text NOT NULL, -- JSON
    text text NOT NULL, -- what is embedded of it
    digest text NOT NULL, -- of type, category and text
    version bigint NOT NULL,
    embedding_status text NOT NULL, -- that of the job, kept by the mirror
    embedding_error text,
    embedding_attempts bigint NOT NULL,
    job bigint NOT NULL, -- that embeds this version
    created_at bigint NOT NULL, -- microseconds since 1970
    updated_at bigint NOT NULL
);

CREATE INDEX entries_entry_job ON entries_entry (job);
CREATE INDEX entries_entry_type ON entries_entry (type, category, number);
CREATE INDEX entries_entry_open ON entries_entry (embedding_status, number)
WHERE embedding_status <> 'embedded';

-- Each connection counts for itself, in the slot of its process: transactions that are open at the
-- same time would wait for each other otherwise. What there is, is the sum.
CREATE TABLE entries_count (
    slot bigint NOT NULL,
    type text NOT NULL,
    embedding_status text NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (slot, type, embedding_status)
);

CREATE FUNCTION entries_counted() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO entries_count AS known
        VALUES (pg_backend_pid(), OLD.type, OLD.embedding_status, -1)
        ON CONFLICT (slot, type, embedding_status) DO UPDATE SET n = known.n - 1;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO entries_count AS known
        VALUES (pg_backend_pid(), NEW.type, NEW.embedding_status, 1)
        ON CONFLICT (slot, type, embedding_status) DO UPDATE SET n = known.n + 1;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER entries_added AFTER INSERT OR DELETE ON entries_entry
FOR EACH ROW EXECUTE FUNCTION entries_counted();

CREATE TRIGGER entries_changed AFTER UPDATE OF type, embedding_status ON entries_entry
FOR EACH ROW WHEN (OLD.type <> NEW.type OR OLD.embedding_status <> NEW.embedding_status)
EXECUTE FUNCTION entries_counted();

CREATE TABLE entries_fact (
    name text PRIMARY KEY,
    value text NOT NULL
);
