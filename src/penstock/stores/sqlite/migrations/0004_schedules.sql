-- Jobs that are enqueued again and again. `job` is JSON: what each run is made of.
CREATE TABLE penstock_schedule (
    name TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    next_at INTEGER,
    last_at INTEGER,
    last_job INTEGER,
    paused INTEGER NOT NULL,
    declared INTEGER NOT NULL,
    task TEXT NOT NULL,
    job TEXT NOT NULL,
    cron TEXT,
    every INTEGER,
    timezone TEXT NOT NULL,
    missed TEXT NOT NULL,
    overlap INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX penstock_schedule_next ON penstock_schedule (next_at) WHERE paused = 0;

-- The highest version of a schedule: never given twice, also when one is removed and comes back.
INSERT INTO penstock_meta VALUES ('last_schedule', 0);
