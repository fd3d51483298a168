-- Allowed moves become a table, functions and triggers move to `routines.sql`, and the queues
-- of applications are marked as reserved.

CREATE TABLE penstock.stage (
    stage smallint PRIMARY KEY,
    state text NOT NULL
);

CREATE TABLE penstock.transition (
    state text NOT NULL,
    event text NOT NULL,
    next text NOT NULL,
    PRIMARY KEY (state, event, next)
);

-- Until this schema, workers without `queues` knew these by name and left their jobs alone.
INSERT INTO penstock."limit" (kind, name, concurrency) VALUES
('reserved', 'entries', 0),
('reserved', 'entries-operations', 0),
('reserved', 'events', 0),
('reserved', 'indexing', 0),
('reserved', 'ingest', 0),
('reserved', 'notebooks', 0);

-- no switch
