-- What running jobs say about themselves. Apart from the jobs' rows, which every transition
-- rewrites, and empty for jobs that say nothing.

CREATE TABLE penstock_progress (
    job_id INTEGER PRIMARY KEY,
    done NUMERIC NOT NULL,
    total NUMERIC,
    note TEXT,
    at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    start NUMERIC NOT NULL
);

CREATE TABLE penstock_checkpoint (
    job_id INTEGER PRIMARY KEY,
    body TEXT NOT NULL
);

-- Ids number the lines of one job without a gap, so that the oldest are found without counting.
CREATE TABLE penstock_line (
    job_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    at INTEGER NOT NULL,
    level TEXT NOT NULL,
    text TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (job_id, id)
) WITHOUT ROWID;

-- Whatever removes a job removes its notes.
CREATE TRIGGER penstock_notes_removed AFTER DELETE ON penstock_job
BEGIN
    DELETE FROM penstock_progress WHERE job_id = OLD.id;
    DELETE FROM penstock_checkpoint WHERE job_id = OLD.id;
    DELETE FROM penstock_line WHERE job_id = OLD.id;
END;
