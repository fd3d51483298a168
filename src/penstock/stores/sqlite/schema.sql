-- The tables of a new store. A store made earlier gets them by the numbered scripts in
-- `migrations/`; a test shows that both are the same. Views and triggers are in `routines.sql`.
--
-- Every name begins with penstock_, because the file may also hold an application's own tables.
-- Times are microseconds since 1970, UTC; durations are microseconds.

-- Single numbers.
CREATE TABLE penstock_meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO penstock_meta VALUES
    -- the highest ids that retention has removed: no id is given twice
    ('last_job', 0), ('last_log', 0),
    -- the highest version of a schedule: never given twice, even after the schedule is removed
    ('last_schedule', 0),
    -- identifies this store when its jobs are imported into another
    ('source', random() & 0x7fffffffffffffff),
    -- the newest log entry that the statistics include
    ('digested', 0),
    -- how many queues there are, and how many of the first ones get a line of their own
    ('queues', 0), ('own_lines', 32),
    -- rises whenever a queue or a limit is configured
    ('configured', 0),
    -- how many queues may have counters of their own; 0 where nobody has set it
    ('series', 0);

-- Queues and their settings. `paused_until` is 0 for a queue that is not paused and the largest
-- number for one that is paused indefinitely. `promote_after` is microseconds, or a JSON list.
CREATE TABLE penstock_queue (
    name TEXT PRIMARY KEY,
    max_pending INTEGER,
    concurrency INTEGER,
    rate INTEGER,
    rate_window INTEGER,
    promote_after INTEGER,
    paused_until INTEGER NOT NULL DEFAULT 0,
    -- Looking into a queue of its own costs every claim one lookup, so only the first queues of a
    -- store have a line of their own, and those that are configured, paused or used with tenants.
    -- The ready jobs of all others are merged into one line, in the order in which they start.
    -- 0: own line; 1: merged; 2: own line, while some of its jobs are still merged
    merged INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX penstock_queue_own ON penstock_queue (name) WHERE merged <> 1;
CREATE INDEX penstock_queue_leaving ON penstock_queue (name) WHERE merged = 2;
CREATE INDEX penstock_queue_limited ON penstock_queue (name) WHERE concurrency IS NOT NULL;
CREATE INDEX penstock_queue_rated ON penstock_queue (name) WHERE rate IS NOT NULL;
CREATE INDEX penstock_queue_paused ON penstock_queue (paused_until) WHERE paused_until > 0;

-- One row per job. Columns that change come first: SQLite reads a row from its start.
CREATE TABLE penstock_job (
    id INTEGER PRIMARY KEY,
    -- see penstock_stage
    stage INTEGER NOT NULL,
    version INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    run_at INTEGER NOT NULL,
    started_at INTEGER,
    expires_at INTEGER,
    finished_at INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    -- how many jobs it waits for, and whether any job waits for it
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
    result TEXT,
    throttle TEXT,
    -- what a claim found to hold this ready job, a limit or a task that it did not know; only
    -- claims set and clear it
    held TEXT,
    -- the W3C traceparent of the enqueueing program
    trace TEXT,
    merged INTEGER NOT NULL DEFAULT 0,
    -- the version of the task that enqueued it; NULL for the first
    task_version INTEGER
);

-- Each index holds only the rows its query is about, so that the cost of a claim does not grow
-- with scheduled, blocked or finished jobs. A ready job is in exactly one of these four: the
-- line of its queue, its tenant's share of it, the merged line, or those that are held.
CREATE INDEX penstock_job_ready ON penstock_job (queue, priority DESC, run_at, id)
WHERE stage = 0 AND tenant IS NULL AND held IS NULL;
CREATE INDEX penstock_job_share ON penstock_job (queue, priority DESC, tenant, run_at, id)
WHERE stage = 0 AND tenant IS NOT NULL AND held IS NULL;
CREATE INDEX penstock_job_merged ON penstock_job (priority DESC, run_at, id)
WHERE stage = 0 AND merged AND held IS NULL;
-- All merged queues count as one here, with the name ''.
CREATE INDEX penstock_job_held ON penstock_job (
    held, ifnull(tenant, ''), CASE WHEN merged THEN '' ELSE queue END, priority, run_at, id
)
WHERE stage = 0 AND held IS NOT NULL;
CREATE INDEX penstock_job_member ON penstock_job (queue) WHERE merged AND stage < 4;
-- Whether a queue has ready jobs with a throttle, and how many jobs of a throttle run.
CREATE INDEX penstock_job_throttled ON penstock_job (queue)
WHERE stage = 0 AND throttle IS NOT NULL AND held IS NULL;
CREATE INDEX penstock_job_throttle ON penstock_job (throttle)
WHERE stage = 3 AND throttle IS NOT NULL;
CREATE INDEX penstock_job_scheduled ON penstock_job (run_at) WHERE stage = 1;
CREATE INDEX penstock_job_leased ON penstock_job (expires_at) WHERE stage = 3;
CREATE INDEX penstock_job_cancelling ON penstock_job (id)
WHERE stage = 3 AND cancel_requested = 1;
CREATE INDEX penstock_job_key ON penstock_job (key, stage, id)
WHERE key IS NOT NULL AND stage < 4;
-- At most one pending job per dedupe key, whatever goes wrong elsewhere.
CREATE UNIQUE INDEX penstock_job_dedupe ON penstock_job (dedupe)
WHERE dedupe IS NOT NULL AND stage < 3;
CREATE INDEX penstock_job_dedupe_running ON penstock_job (dedupe)
WHERE dedupe IS NOT NULL AND stage = 3;
CREATE INDEX penstock_job_correlation ON penstock_job (correlation, id)
WHERE correlation IS NOT NULL;
CREATE INDEX penstock_job_parent ON penstock_job (parent, id) WHERE parent IS NOT NULL;
CREATE INDEX penstock_job_finished ON penstock_job (stage, finished_at) WHERE stage >= 4;

-- The arguments of jobs. They never change, and are kept apart because every transition rewrites
-- the row of the job and the pages it is on.
CREATE TABLE penstock_payload (
    job_id INTEGER PRIMARY KEY,
    body TEXT NOT NULL
);

-- The numbers of `penstock_job.stage`: pending is 0 ready, 1 scheduled, 2 blocked. Written by the
-- program, as is penstock_transition.
CREATE TABLE penstock_stage (
    stage INTEGER PRIMARY KEY,
    state TEXT NOT NULL
);

-- The moves that the life of a job allows: `TRANSITIONS` in `core/lifecycle.py`, which SQL that
-- decides by itself looks up here.
CREATE TABLE penstock_transition (
    state TEXT NOT NULL,
    event TEXT NOT NULL,
    next TEXT NOT NULL,
    PRIMARY KEY (state, event, next)
) WITHOUT ROWID;

-- Dependencies: `job_id` waits for `needed` until the edge is resolved.
CREATE TABLE penstock_edge (
    needed INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    on_failure TEXT NOT NULL,
    resolved INTEGER NOT NULL,
    PRIMARY KEY (needed, job_id)
) WITHOUT ROWID;
CREATE INDEX penstock_edge_job ON penstock_edge (job_id);
CREATE INDEX penstock_edge_open ON penstock_edge (job_id) WHERE NOT resolved;

-- Finds jobs by tag, in every state.
CREATE TABLE penstock_tag (
    tag TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    PRIMARY KEY (tag, job_id)
) WITHOUT ROWID;

-- Claims ready jobs by tag. The tenant is '' for jobs without one. Triggers keep it current when
-- a job moves; statements that add jobs write it themselves, for many jobs at once: a trigger for
-- each row took two thirds of the time of adding jobs with two tags.
CREATE TABLE penstock_ready_tag (
    queue TEXT NOT NULL,
    tag TEXT NOT NULL,
    priority INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    run_at INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    merged INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, tag, priority DESC, tenant, run_at, job_id)
) WITHOUT ROWID;
CREATE INDEX penstock_ready_tag_merged ON penstock_ready_tag (tag, priority DESC, run_at, job_id)
WHERE merged;

-- How many jobs each queue has per stage. Written in the transactions that change a stage, so
-- that nothing ever counts rows.
CREATE TABLE penstock_total (
    queue TEXT NOT NULL,
    stage INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (queue, stage)
) WITHOUT ROWID;

-- The audit log. `previous` chains the entries of one job from the newest (the job's version) to
-- the oldest: cheaper to keep than an index, and a missing entry shows as a broken chain.
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
    error TEXT,
    -- JSON that a worker adds to the entry
    detail TEXT,
    -- the entry came with an imported job: it happened elsewhere, and statistics leave it out
    taken_over INTEGER
);

-- Limits on running jobs. `kind` is 'task', 'throttle' with a prefix as its name, 'queues' for how
-- many queues there may be, or 'reserved' for a queue that only workers which name it may take.
CREATE TABLE penstock_limit (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- The starts that count towards a queue's rate, as JSON.
CREATE TABLE penstock_rate (
    queue TEXT PRIMARY KEY,
    starts TEXT NOT NULL
) WITHOUT ROWID;

-- The tenant that was served last, per queue and priority level.
CREATE TABLE penstock_turn (
    queue TEXT NOT NULL,
    level INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    PRIMARY KEY (queue, level)
) WITHOUT ROWID;

-- What running jobs report: progress, a checkpoint, log lines. Kept apart from the rows of the
-- jobs, which every transition rewrites.
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
-- The lines of one job are numbered without gaps, so that the oldest are found without counting.
CREATE TABLE penstock_line (
    job_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    at INTEGER NOT NULL,
    level TEXT NOT NULL,
    text TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (job_id, id)
) WITHOUT ROWID;

-- Periodic jobs. `job` is the template of each run, as JSON.
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

-- Jobs that were imported from other stores. Outlives the jobs, so that importing the same file
-- twice does not run them again.
CREATE TABLE penstock_origin (
    source INTEGER NOT NULL,
    original INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    PRIMARY KEY (source, original)
) WITHOUT ROWID;

-- The migration lock: one row while jobs move between this store and another, and after they have
-- left. `passage` is the phase, `peer` the other store's source, `place` its URL.
CREATE TABLE penstock_seal (
    passage TEXT NOT NULL,
    peer INTEGER NOT NULL,
    place TEXT NOT NULL
);

-- Access tokens of the server. Only digests are stored; `scopes` is JSON.
CREATE TABLE penstock_token (
    name TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) WITHOUT ROWID;

-- The worker registry. `queues` (NULL: all) and `tags` are JSON. `draining`: the worker was asked
-- to finish what it has and to claim no more.
CREATE TABLE penstock_worker (
    name TEXT PRIMARY KEY,
    host TEXT,
    pid INTEGER,
    queues TEXT,
    tags TEXT NOT NULL,
    concurrency INTEGER,
    started_at INTEGER,
    seen_at INTEGER NOT NULL,
    draining INTEGER NOT NULL DEFAULT 0,
    -- the schema that its program knows
    schema_version INTEGER,
    -- the tasks that it runs, as JSON; NULL if it does not say
    tasks TEXT
) WITHOUT ROWID;

-- The tasks of workers that have left, each as its last worker announced it, as JSON.
CREATE TABLE penstock_departed_task (
    name TEXT PRIMARY KEY,
    host TEXT,
    seen_at INTEGER NOT NULL,
    task TEXT NOT NULL
) WITHOUT ROWID;

-- Statistics: sums of the log per minute (since 1970), and of all time. The queue '' is all queues
-- together in the first, and all queues without counters of their own in the second. Bucket 0 is
-- for entries without a duration.
CREATE TABLE penstock_history (
    minute INTEGER NOT NULL,
    queue TEXT NOT NULL,
    event TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    n INTEGER NOT NULL,
    micros INTEGER NOT NULL,
    PRIMARY KEY (minute, queue, event, bucket)
) WITHOUT ROWID;
CREATE INDEX penstock_history_queue ON penstock_history (queue, minute);
CREATE TABLE penstock_counter (
    queue TEXT NOT NULL,
    event TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    n INTEGER NOT NULL,
    micros INTEGER NOT NULL,
    PRIMARY KEY (queue, event, bucket)
) WITHOUT ROWID;
-- The queues that have counters of their own.
CREATE TABLE penstock_series (queue TEXT PRIMARY KEY) WITHOUT ROWID;

-- Jobs that SQL verbs have finished and that others wait for. The next claim writes what that
-- means for those, with the code that every store shares.
CREATE TABLE penstock_arrival (
    job_id INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    actor TEXT NOT NULL
);

-- External inserts: rows that other programs have added to an application's table and that have
-- no job yet. Penstock deletes these rows, in their order, before it looks at jobs, and a trigger
-- of the application on that adds the job. A row with `at_once` is deleted by the insert itself,
-- so that the statement fails if its job is refused.
CREATE TABLE penstock_newcomer (
    id INTEGER PRIMARY KEY,
    source TEXT NOT NULL,
    row_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    at_once INTEGER NOT NULL DEFAULT 0
);
