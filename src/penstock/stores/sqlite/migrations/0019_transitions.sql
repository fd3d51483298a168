-- Allowed moves become a table, views and triggers move to `routines.sql`, and the queues
-- of applications are marked as reserved.

CREATE TABLE penstock_stage (
    stage INTEGER PRIMARY KEY,
    state TEXT NOT NULL
);

CREATE TABLE penstock_transition (
    state TEXT NOT NULL,
    event TEXT NOT NULL,
    next TEXT NOT NULL,
    PRIMARY KEY (state, event, next)
) WITHOUT ROWID;

-- Until this schema, workers without `queues` knew these by name and left their jobs alone.
INSERT INTO penstock_limit (kind, name, concurrency) VALUES
('reserved', 'entries', 0),
('reserved', 'entries-operations', 0),
('reserved', 'events', 0),
('reserved', 'indexing', 0),
('reserved', 'ingest', 0),
('reserved', 'notebooks', 0);

-- no switch
