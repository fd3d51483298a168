-- The tables of a new store. A store made earlier gets them by the numbered scripts in
-- `migrations/`; a test shows that both are the same. Functions and triggers are in `routines.sql`.
--
-- Everything is in one schema, `penstock` unless the URL names another.
-- Times are microseconds since 1970, UTC; durations are microseconds. Days are days since 1970.

-- Single numbers.
CREATE TABLE penstock.meta (
    name text PRIMARY KEY,
    value bigint NOT NULL
);
INSERT INTO penstock.meta VALUES
    -- identifies this store when its jobs are imported into another
    ('source', ('x' || left(replace(gen_random_uuid()::text, '-', ''), 15))::bit(60)::bigint),
    -- the highest version of a schedule: never given twice, even after the schedule is removed
    ('last_schedule', 0),
    -- the newest log entries that the statistics and the totals include
    ('digested', 0), ('folded', 0),
    -- how many queues there are, and how many of the first ones get a line of their own
    ('queues', 0), ('own_lines', 32),
    -- how many queues may have counters of their own; 0 where nobody has set it
    ('series', 0);

CREATE SEQUENCE penstock.job_id;
-- Numbers the entries of the log. A change of totals has the number of a log entry written with
-- it, or a number of its own.
CREATE SEQUENCE penstock.log_id;

-- Queues and their settings. `paused_until` is 0 for a queue that is not paused and the largest
-- number for one that is paused indefinitely. `promote_after` is microseconds, or a JSON list.
CREATE TABLE penstock.queue (
    name text COLLATE "C" PRIMARY KEY,
    max_pending bigint,
    concurrency bigint,
    rate bigint,
    rate_window bigint,
    promote_after text,
    paused_until bigint NOT NULL DEFAULT 0,
    -- Looking into a queue of its own costs every claim one lookup, so only the first queues of a
    -- store have a line of their own, and those that are configured, paused or used with tenants.
    -- The ready jobs of all others are merged into one line, in the order in which they start.
    -- 0: own line; 1: merged; 2: own line, while some of its jobs are still merged
    merged smallint NOT NULL DEFAULT 0,
    -- whether the number of queues in `meta` includes it: a transaction of another program does
    -- not write that number, because others would have to wait for it
    counted boolean NOT NULL DEFAULT true
);
CREATE INDEX queue_own ON penstock.queue (name) WHERE merged <> 1;
CREATE INDEX queue_merged ON penstock.queue (name) WHERE merged = 1;
CREATE INDEX queue_leaving ON penstock.queue (name) WHERE merged = 2;
CREATE INDEX queue_special ON penstock.queue (name)
WHERE concurrency IS NOT NULL OR rate IS NOT NULL OR promote_after IS NOT NULL;
CREATE INDEX queue_limited ON penstock.queue (name) WHERE concurrency IS NOT NULL;
CREATE INDEX queue_rated ON penstock.queue (name) WHERE rate IS NOT NULL;
CREATE INDEX queue_paused ON penstock.queue (paused_until) WHERE paused_until > 0;
CREATE INDEX queue_uncounted ON penstock.queue (name) WHERE NOT counted;

-- One row per job, partitioned by `shelf`: 0 holds the unfinished jobs; each day has a partition
-- for the jobs that failed on it and one for those that ended otherwise, which is dropped as a
-- whole when the retention of all its jobs is over. A claim never meets finished jobs.
CREATE TABLE penstock.job (
    id bigint NOT NULL,
    version bigint NOT NULL,
    token bigint NOT NULL DEFAULT 0,
    run_at bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    lease_time bigint NOT NULL,
    started_at bigint,
    expires_at bigint,
    finished_at bigint,
    shelf integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    -- how many jobs it waits for
    needs integer NOT NULL DEFAULT 0,
    -- see the table `stage`
    stage smallint NOT NULL,
    priority smallint NOT NULL,
    -- whether any job waits for it
    awaited boolean NOT NULL DEFAULT false,
    -- it was added inside a transaction of another program and is not yet linked to other jobs
    arriving boolean NOT NULL DEFAULT false,
    cancel_requested boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    worker text COLLATE "C",
    body text NOT NULL,
    timeout bigint,
    key text COLLATE "C",
    dedupe text COLLATE "C",
    scope text,
    tags text,
    retry text,
    correlation text COLLATE "C",
    tenant text COLLATE "C",
    parent bigint,
    throttle text COLLATE "C",
    -- what a claim found to hold this ready job, a limit or a task that it did not know; only
    -- claims set and clear it
    held text COLLATE "C",
    -- the W3C traceparent of the enqueueing program
    trace text,
    error text,
    result text,
    merged boolean NOT NULL DEFAULT false,
    -- the version of the task that enqueued it; NULL for the first
    task_version integer,
    PRIMARY KEY (id, shelf)
) PARTITION BY LIST (shelf);
CREATE INDEX job_correlation ON penstock.job (correlation, id) WHERE correlation IS NOT NULL;
CREATE INDEX job_parent ON penstock.job (parent, id) WHERE parent IS NOT NULL;

-- The unfinished jobs.
CREATE TABLE penstock.job_active PARTITION OF penstock.job (CHECK (stage < 4)) FOR VALUES IN (0)
WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0
);

-- Each index holds only the rows its query is about, so that the cost of a claim does not grow
-- with scheduled or blocked jobs. A ready job is in exactly one of these four: the line of its
-- queue, its tenant's share of it, the merged line, or those that are held.
CREATE INDEX job_ready ON penstock.job_active (queue, (-priority), run_at, id)
WHERE stage = 0 AND tenant IS NULL AND held IS NULL;
CREATE INDEX job_share ON penstock.job_active (queue, (-priority), tenant, run_at, id)
WHERE stage = 0 AND tenant IS NOT NULL AND held IS NULL;
CREATE INDEX job_merged ON penstock.job_active ((-priority), run_at, id)
WHERE stage = 0 AND merged AND held IS NULL;
-- All merged queues count as one here, with the name ''.
CREATE INDEX job_held ON penstock.job_active (
    held, (coalesce(tenant, '')), (CASE WHEN merged THEN '' ELSE queue END), priority, run_at, id
)
WHERE stage = 0 AND held IS NOT NULL;
CREATE INDEX job_member ON penstock.job_active (queue) WHERE merged;
CREATE INDEX job_stranger ON penstock.job_active (tenant) WHERE merged AND tenant IS NOT NULL;
-- Whether a queue has ready jobs with a throttle, and how many jobs of a throttle run.
CREATE INDEX job_throttled ON penstock.job_active (queue)
WHERE stage = 0 AND throttle IS NOT NULL AND held IS NULL;
CREATE INDEX job_throttle ON penstock.job_active (throttle)
WHERE stage = 3 AND throttle IS NOT NULL;
CREATE INDEX job_scheduled ON penstock.job_active (run_at) WHERE stage = 1;
-- By id, not by deadline: renewing a lease then writes no new entry into any index.
CREATE INDEX job_running ON penstock.job_active (id) WHERE stage = 3;
CREATE INDEX job_cancelling ON penstock.job_active (id) WHERE stage = 3 AND cancel_requested;
CREATE INDEX job_key ON penstock.job_active (key, stage, id) WHERE key IS NOT NULL;
-- At most one job per key that may run, and one pending job per dedupe key, whatever goes wrong
-- elsewhere.
CREATE UNIQUE INDEX job_head ON penstock.job_active (key) WHERE key IS NOT NULL AND stage <> 2;
CREATE UNIQUE INDEX job_dedupe ON penstock.job_active (dedupe)
WHERE dedupe IS NOT NULL AND stage < 3 AND NOT arriving;
CREATE INDEX job_dedupe_arriving ON penstock.job_active (dedupe)
WHERE dedupe IS NOT NULL AND stage < 3 AND arriving;
CREATE INDEX job_dedupe_running ON penstock.job_active (dedupe)
WHERE dedupe IS NOT NULL AND stage = 3;

-- The numbers of `job.stage`: pending is 0 ready, 1 scheduled, 2 blocked. Written by the program,
-- as is `transition`.
CREATE TABLE penstock.stage (
    stage smallint PRIMARY KEY,
    state text NOT NULL
);

-- The moves that the life of a job allows: `TRANSITIONS` in `core/lifecycle.py`, which SQL that
-- decides by itself looks up here.
CREATE TABLE penstock.transition (
    state text NOT NULL,
    event text NOT NULL,
    next text NOT NULL,
    PRIMARY KEY (state, event, next)
);

-- Dependencies: `job_id` waits for `needed` until the edge is resolved.
CREATE TABLE penstock.edge (
    needed bigint NOT NULL,
    job_id bigint NOT NULL,
    on_failure text NOT NULL,
    resolved boolean NOT NULL,
    PRIMARY KEY (needed, job_id)
);
CREATE INDEX edge_job ON penstock.edge (job_id);
CREATE INDEX edge_open ON penstock.edge (job_id) WHERE NOT resolved;

-- Jobs that were added or finished inside a transaction of another program. After it has
-- committed, the next transaction that has the queue alone writes what that means for other jobs.
-- `needed` is JSON: pairs of a job that a new one waits for and the stage it was found in. `state`
-- is that of a job which ended, NULL for one that is done.
CREATE TABLE penstock.arrival (
    job_id bigint PRIMARY KEY,
    ended boolean NOT NULL,
    actor text NOT NULL,
    key text COLLATE "C",
    needed text,
    on_failure text,
    state text
);

-- External inserts: rows that other programs have added to an application's table and that have
-- no job yet. Penstock deletes these rows before it looks at jobs, and a trigger of the application
-- on that adds the jobs, by `call_add_all`. A program that adds a row here has called `enter`, so
-- that the migration lock is set only when all such transactions are over.
CREATE TABLE penstock.newcomer (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text NOT NULL,
    row_id text NOT NULL,
    at bigint NOT NULL
)
WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- Finds jobs by tag, in every state.
CREATE TABLE penstock.tag (
    tag text COLLATE "C" NOT NULL,
    job_id bigint NOT NULL,
    PRIMARY KEY (tag, job_id)
);

-- Claims ready jobs by tag; the tenant is '' for jobs without one. Triggers keep it current.
CREATE TABLE penstock.ready_tag (
    queue text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    run_at bigint NOT NULL,
    job_id bigint NOT NULL,
    merged boolean NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX ready_tag_order
ON penstock.ready_tag (queue, tag, (-priority), tenant, run_at, job_id);
CREATE INDEX ready_tag_merged ON penstock.ready_tag (tag, (-priority), run_at, job_id) WHERE merged;

-- How many jobs each queue has per stage: the sums so far, and the changes since. Transactions only
-- add changes, so that none waits for another's row.
CREATE TABLE penstock.total (
    queue text COLLATE "C" NOT NULL,
    stage smallint NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (queue, stage)
);
CREATE TABLE penstock.delta (
    id bigint NOT NULL,
    n bigint NOT NULL,
    stage smallint NOT NULL,
    queue text COLLATE "C" NOT NULL
);
CREATE INDEX delta_id ON penstock.delta (id);

-- The audit log, partitioned by the day on which an entry was written. `previous` chains the
-- entries of one job from the newest (the job's version) to the oldest. `detail` is JSON that a
-- worker adds. `taken_over`: the entry came with an imported job, and statistics leave it out.
CREATE TABLE penstock.log (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    previous bigint,
    at bigint NOT NULL,
    token bigint,
    duration bigint,
    day integer NOT NULL,
    event text NOT NULL,
    state text NOT NULL,
    queue text COLLATE "C" NOT NULL,
    actor text NOT NULL,
    reason text,
    error text,
    detail text,
    taken_over boolean,
    PRIMARY KEY (id, day)
) PARTITION BY LIST (day);

-- The last transaction that each client sent in one round trip: a number of the client's own, which
-- tells it whether the transaction committed if the connection is lost meanwhile.
CREATE TABLE penstock.receipt (
    client bigint PRIMARY KEY,
    number bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
)
WITH (fillfactor = 50);

-- Limits on running jobs. `kind` is 'task', 'throttle' with a prefix as its name, 'queues' for how
-- many queues there may be, or 'reserved' for a queue that only workers which name it may take.
CREATE TABLE penstock."limit" (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    concurrency bigint NOT NULL,
    PRIMARY KEY (kind, name)
);

-- The starts that count towards a queue's rate, as JSON.
CREATE TABLE penstock.rate (
    queue text COLLATE "C" PRIMARY KEY,
    starts text NOT NULL
);

-- The tenant that was served last, per queue and priority level.
CREATE TABLE penstock.turn (
    queue text COLLATE "C" NOT NULL,
    level integer NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, level)
);

-- What running jobs report: progress, a checkpoint, log lines. Numbers are JSON, so that they come
-- back as they were given.
CREATE TABLE penstock.progress (
    job_id bigint PRIMARY KEY,
    done text NOT NULL,
    total text,
    note text,
    at bigint NOT NULL,
    started_at bigint NOT NULL,
    start text NOT NULL
);
CREATE TABLE penstock.checkpoint (
    job_id bigint PRIMARY KEY,
    body text NOT NULL
);
-- The lines of one job are numbered without gaps.
CREATE TABLE penstock.line (
    job_id bigint NOT NULL,
    id bigint NOT NULL,
    at bigint NOT NULL,
    level text NOT NULL,
    text text NOT NULL,
    attempt integer NOT NULL,
    PRIMARY KEY (job_id, id)
);

-- Periodic jobs. `job` is the template of each run, as JSON.
CREATE TABLE penstock.schedule (
    name text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    next_at bigint,
    last_at bigint,
    last_job bigint,
    paused boolean NOT NULL,
    declared boolean NOT NULL,
    task text COLLATE "C" NOT NULL,
    job text NOT NULL,
    cron text,
    every bigint,
    timezone text NOT NULL,
    missed text NOT NULL,
    overlap boolean NOT NULL
);
CREATE INDEX schedule_next ON penstock.schedule (next_at) WHERE NOT paused;

-- Jobs that were imported from other stores. Outlives the jobs, so that importing the same file
-- twice does not run them again.
CREATE TABLE penstock.origin (
    source bigint NOT NULL,
    original bigint NOT NULL,
    job_id bigint NOT NULL,
    PRIMARY KEY (source, original)
);

-- The migration lock: one row while jobs move between this store and another, and after they have
-- left. `passage` is the phase, `peer` the other store's source, `place` its URL.
CREATE TABLE penstock.seal (
    passage text NOT NULL,
    peer bigint NOT NULL,
    place text NOT NULL
);

-- Access tokens of the server. Only digests are stored; `scopes` is JSON.
CREATE TABLE penstock.token (
    name text COLLATE "C" PRIMARY KEY,
    digest text NOT NULL,
    scopes text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint
);

-- The worker registry. `queues` (NULL: all) and `tags` are JSON. `draining`: the worker was asked
-- to finish what it has and to claim no more.
CREATE TABLE penstock.worker (
    name text COLLATE "C" PRIMARY KEY,
    host text,
    pid bigint,
    queues text,
    tags text NOT NULL,
    concurrency bigint,
    started_at bigint,
    seen_at bigint NOT NULL,
    draining bigint NOT NULL DEFAULT 0,
    -- the schema that its program knows
    schema_version bigint,
    -- the tasks that it runs, as JSON; NULL if it does not say
    tasks text
);

-- The tasks of workers that have left, each as its last worker announced it, as JSON.
CREATE TABLE penstock.departed_task (
    name text COLLATE "C" PRIMARY KEY,
    host text,
    seen_at bigint NOT NULL,
    task text NOT NULL
);

-- Statistics: sums of the log per minute (since 1970), and of all time. The queue '' is all queues
-- together in the first, and all queues without counters of their own in the second. Bucket 0 is
-- for entries without a duration.
CREATE TABLE penstock.history (
    minute bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    event text COLLATE "C" NOT NULL,
    bucket integer NOT NULL,
    n bigint NOT NULL,
    micros bigint NOT NULL,
    PRIMARY KEY (minute, queue, event, bucket)
);
CREATE INDEX history_queue ON penstock.history (queue, minute);
CREATE TABLE penstock.counter (
    queue text COLLATE "C" NOT NULL,
    event text COLLATE "C" NOT NULL,
    bucket integer NOT NULL,
    n bigint NOT NULL,
    micros bigint NOT NULL,
    PRIMARY KEY (queue, event, bucket)
);
-- The queues that have counters of their own.
CREATE TABLE penstock.series (queue text COLLATE "C" PRIMARY KEY);

-- The server empties an unlogged table when it crashes, and only then. Transaction numbers whose
-- records had not reached the disk are given out again after a crash: see `PostgresWriter`.
CREATE UNLOGGED TABLE penstock.life (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    number bigint NOT NULL
);
