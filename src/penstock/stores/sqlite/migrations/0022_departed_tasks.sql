-- Remembers the tasks of workers that have left, for a while.

CREATE TABLE penstock_departed_task (
    name TEXT PRIMARY KEY,
    host TEXT,
    seen_at INTEGER NOT NULL,
    task TEXT NOT NULL
) WITHOUT ROWID;

-- no switch
