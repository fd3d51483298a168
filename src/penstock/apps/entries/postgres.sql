CREATE TABLE entries_entry (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- order of insertion, for paging
    id text COLLATE "C" NOT NULL UNIQUE, -- collated as in the index
    type text NOT NULL,
    category text NOT NULL,
    data text NOT NULL, -- JSON
    text text NOT NULL, -- the text to embed
    digest text NOT NULL, -- of type, category and text
    version bigint NOT NULL,
    embedding_status text NOT NULL, -- from the state of the job, by the mirror
    embedding_error text,
    embedding_attempts bigint NOT NULL,
    job bigint NOT NULL, -- the job that embeds this version
    created_at bigint NOT NULL, -- microseconds since 1970
    updated_at bigint NOT NULL
);

CREATE INDEX entries_entry_job ON entries_entry (job);
CREATE INDEX entries_entry_type ON entries_entry (type, category, number);
CREATE INDEX entries_entry_open ON entries_entry (embedding_status, number)
WHERE embedding_status <> 'embedded';

-- Each connection has counters of its own, in the slot of its process, because concurrent transactions
-- would block each other on shared ones. The number of rows is the sum.
CREATE TABLE entries_count (
    slot bigint NOT NULL,
    type text NOT NULL,
    embedding_status text NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (slot, type, embedding_status)
);

-- One trigger call per statement: a hundred thousand rows inserted in one transaction would otherwise
-- leave as many versions of one counter.
CREATE FUNCTION entries_added() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO entries_count AS known
    SELECT pg_backend_pid(), type, embedding_status, count(*) FROM came GROUP BY type, embedding_status
    ON CONFLICT (slot, type, embedding_status) DO UPDATE SET n = known.n + excluded.n;
    RETURN NULL;
END $$;

CREATE FUNCTION entries_removed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO entries_count AS known
    SELECT pg_backend_pid(), type, embedding_status, -count(*) FROM went GROUP BY type, embedding_status
    ON CONFLICT (slot, type, embedding_status) DO UPDATE SET n = known.n + excluded.n;
    RETURN NULL;
END $$;

CREATE FUNCTION entries_changed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO entries_count AS known
    SELECT pg_backend_pid(), type, embedding_status, sum(n) FROM (
        SELECT type, embedding_status, 1 AS n FROM came
        UNION ALL
        SELECT type, embedding_status, -1 FROM went
    ) AS moved
    GROUP BY type, embedding_status HAVING sum(n) <> 0
    ON CONFLICT (slot, type, embedding_status) DO UPDATE SET n = known.n + excluded.n;
    RETURN NULL;
END $$;

CREATE TRIGGER entries_added AFTER INSERT ON entries_entry
REFERENCING NEW TABLE AS came FOR EACH STATEMENT EXECUTE FUNCTION entries_added();

CREATE TRIGGER entries_removed AFTER DELETE ON entries_entry
REFERENCING OLD TABLE AS went FOR EACH STATEMENT EXECUTE FUNCTION entries_removed();

CREATE TRIGGER entries_changed AFTER UPDATE ON entries_entry
REFERENCING OLD TABLE AS went NEW TABLE AS came FOR EACH STATEMENT
EXECUTE FUNCTION entries_changed();

CREATE TABLE entries_fact (
    name text PRIMARY KEY,
    value text NOT NULL
);
