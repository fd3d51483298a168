-- Everything is named penstock_*, because the file may also hold an application's own tables.
-- Times are microseconds since 1970, UTC; durations are microseconds.

CREATE TABLE penstock_meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

-- The highest ids that retention has removed: an id is never given twice.
INSERT INTO penstock_meta VALUES ('last_job', 0), ('last_log', 0);

CREATE TABLE penstock_queue (
    name TEXT PRIMARY KEY,
    paused INTEGER NOT NULL DEFAULT 0,
    max_pending INTEGER
) WITHOUT ROWID;

-- What changes comes first: SQLite reads a row from its start.
CREATE TABLE penstock_job (
    id INTEGER PRIMARY KEY,
    -- pending: 0 ready, 1 scheduled, 2 blocked; 3 running;
    -- final: 4 done, 5 failed, 6 cancelled, 7 superseded
    stage INTEGER NOT NULL,
    version INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    run_at INTEGER NOT NULL,
    started_at INTEGER,
    expires_at INTEGER,
    finished_at INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    -- how many jobs it waits for, and whether anyone waits for its end
    needs INTEGER NOT NULL DEFAULT 0,
    awaited INTEGER NOT NULL DEFAULT 0,
    worker TEXT,
    queue TEXT NOT NULL,
    task TEXT NOT NULL,
    priority INTEGER NOT NULL,
    enqueued_at INTEGER NOT NULL,
    lease_time INTEGER NOT NULL,
    timeout INTEGER,
    key TEXT,
    dedupe TEXT,
    scope TEXT,
    tags TEXT,
    retry TEXT,
    correlation TEXT,
    tenant TEXT,
    parent INTEGER,
    error TEXT,
    result TEXT
);

-- Each index holds only the rows its question is about, so that a claim's cost does not grow
-- with jobs that are scheduled, blocked or finished.
CREATE INDEX penstock_job_ready ON penstock_job (queue, priority DESC, run_at, id)
WHERE stage = 0;
CREATE INDEX penstock_job_scheduled ON penstock_job (run_at) WHERE stage = 1;
CREATE INDEX penstock_job_leased ON penstock_job (expires_at) WHERE stage = 3;
CREATE INDEX penstock_job_cancelling ON penstock_job (id)
WHERE stage = 3 AND cancel_requested = 1;
CREATE INDEX penstock_job_key ON penstock_job (key, stage, id)
WHERE key IS NOT NULL AND stage < 4;
CREATE UNIQUE INDEX penstock_job_dedupe ON penstock_job (dedupe)
WHERE dedupe IS NOT NULL AND stage < 3;
CREATE INDEX penstock_job_dedupe_running ON penstock_job (dedupe)
WHERE dedupe IS NOT NULL AND stage = 3;
CREATE INDEX penstock_job_correlation ON penstock_job (correlation, id)
WHERE correlation IS NOT NULL;
CREATE INDEX penstock_job_parent ON penstock_job (parent, id) WHERE parent IS NOT NULL;
CREATE INDEX penstock_job_finished ON penstock_job (stage, finished_at) WHERE stage >= 4;

-- The arguments never change and stand apart: every transition rewrites the job's row, and the
-- pages it lies on.
CREATE TABLE penstock_payload (
    job_id INTEGER PRIMARY KEY,
    body TEXT NOT NULL
);

-- Who waits for whom; resolved when the needed job has ended.
CREATE TABLE penstock_edge (
    needed INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    on_failure TEXT NOT NULL,
    resolved INTEGER NOT NULL,
    PRIMARY KEY (needed, job_id)
) WITHOUT ROWID;
CREATE INDEX penstock_edge_job ON penstock_edge (job_id);
CREATE INDEX penstock_edge_open ON penstock_edge (job_id) WHERE NOT resolved;

-- Finding jobs by tag, in whatever state.
CREATE TABLE penstock_tag (
    tag TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    PRIMARY KEY (tag, job_id)
) WITHOUT ROWID;

-- Claiming ready jobs by tag. Kept by triggers, so that no path can forget it.
CREATE TABLE penstock_ready_tag (
    queue TEXT NOT NULL,
    tag TEXT NOT NULL,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    PRIMARY KEY (queue, tag, priority DESC, run_at, job_id)
) WITHOUT ROWID;

CREATE TRIGGER penstock_tags_added AFTER INSERT ON penstock_job
WHEN NEW.tags IS NOT NULL
BEGIN
    INSERT OR IGNORE INTO penstock_tag
    SELECT value, NEW.id FROM json_each(NEW.tags);
    INSERT OR IGNORE INTO penstock_ready_tag
    SELECT NEW.queue, value, NEW.priority, NEW.run_at, NEW.id
    FROM json_each(NEW.tags) WHERE NEW.stage = 0;
END;

CREATE TRIGGER penstock_tags_ready AFTER UPDATE OF stage ON penstock_job
WHEN NEW.tags IS NOT NULL AND NEW.stage = 0
BEGIN
    INSERT OR IGNORE INTO penstock_ready_tag
    SELECT NEW.queue, value, NEW.priority, NEW.run_at, NEW.id FROM json_each(NEW.tags);
END;

CREATE TRIGGER penstock_tags_taken BEFORE UPDATE OF stage ON penstock_job
WHEN OLD.tags IS NOT NULL AND OLD.stage = 0
BEGIN
    DELETE FROM penstock_ready_tag
    WHERE queue = OLD.queue AND tag IN (SELECT value FROM json_each(OLD.tags))
    AND priority = OLD.priority AND run_at = OLD.run_at AND job_id = OLD.id;
END;

CREATE TRIGGER penstock_tags_removed AFTER DELETE ON penstock_job
WHEN OLD.tags IS NOT NULL
BEGIN
    DELETE FROM penstock_tag
    WHERE tag IN (SELECT value FROM json_each(OLD.tags)) AND job_id = OLD.id;
END;

-- Kept in the transactions that change a job's stage, so that nothing ever counts rows.
CREATE TABLE penstock_total (
    queue TEXT NOT NULL,
    stage INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (queue, stage)
) WITHOUT ROWID;

-- The audit. `previous` chains the entries of one job, newest (the job's version) to oldest,
-- which is cheaper to keep than an index and shows a missing entry as a broken chain.
CREATE TABLE penstock_log (
    id INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL,
    previous INTEGER,
    at INTEGER NOT NULL,
    event TEXT NOT NULL,
    state TEXT NOT NULL,
    actor TEXT NOT NULL,
    token INTEGER,
    duration INTEGER,
    reason TEXT,
    error TEXT
);
