-- Everything stands in one schema, `penstock` unless the URL names another.
-- Times are microseconds since 1970, UTC; durations are microseconds. Days are days since 1970.

CREATE TABLE penstock.meta (
    name text PRIMARY KEY,
    value bigint NOT NULL
);

-- `source` is a number of its own for every store: what jobs come from, when another takes them
-- over. `digested` and `folded` are the newest entries that are in the sums and in the totals.
INSERT INTO penstock.meta VALUES
    ('source', ('x' || left(replace(gen_random_uuid()::text, '-', ''), 15))::bit(60)::bigint),
    ('last_schedule', 0),
    ('digested', 0),
    ('folded', 0);

CREATE SEQUENCE penstock.job_id;
-- Numbers entries of the log. Changes of totals have the number of an entry that was written with
-- them, or a number of their own.
CREATE SEQUENCE penstock.log_id;

CREATE TABLE penstock.queue (
    name text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    max_pending bigint,
    concurrency bigint,
    rate bigint,
    rate_window bigint,
    promote_after bigint
);

-- Unfinished jobs stand on shelf 0. A finished one stands on the shelf of the day on which it
-- ended, those that failed apart: a shelf is a table of its own, and is dropped as a whole when
-- the time of all its jobs is over. A claim never meets what is finished.
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
    -- how many jobs it waits for, and whether anyone waits for its end
    needs integer NOT NULL DEFAULT 0,
    -- pending: 0 ready, 1 scheduled, 2 blocked; 3 running;
    -- final: 4 done, 5 failed, 6 cancelled, 7 superseded
    stage smallint NOT NULL,
    priority smallint NOT NULL,
    awaited boolean NOT NULL DEFAULT false,
    -- it came inside a transaction of somebody else, and is not yet linked to other jobs
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
    -- the limit that a ready job was found to be held by; only a claim sets and clears it
    held text COLLATE "C",
    trace text,
    error text,
    result text,
    PRIMARY KEY (id, shelf)
) PARTITION BY LIST (shelf);

CREATE INDEX job_correlation ON penstock.job (correlation, id) WHERE correlation IS NOT NULL;
CREATE INDEX job_parent ON penstock.job (parent, id) WHERE parent IS NOT NULL;

CREATE TABLE penstock.job_active PARTITION OF penstock.job (CHECK (stage < 4)) FOR VALUES IN (0)
WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0
);

-- Each index holds only the rows its question is about, so that a claim's cost does not grow
-- with jobs that are scheduled or blocked. A ready job stands in one of three: in the common one,
-- in its tenant's share, or apart because a limit holds it.
CREATE INDEX job_ready ON penstock.job_active (queue, (-priority), run_at, id)
WHERE stage = 0 AND tenant IS NULL AND held IS NULL;
CREATE INDEX job_share ON penstock.job_active (queue, (-priority), tenant, run_at, id)
WHERE stage = 0 AND tenant IS NOT NULL AND held IS NULL;
CREATE INDEX job_held
ON penstock.job_active (held, (coalesce(tenant, '')), queue, priority, run_at, id)
WHERE stage = 0 AND held IS NOT NULL;
CREATE INDEX job_throttled ON penstock.job_active (queue)
WHERE stage = 0 AND throttle IS NOT NULL AND held IS NULL;
CREATE INDEX job_throttle ON penstock.job_active (throttle)
WHERE stage = 3 AND throttle IS NOT NULL;
CREATE INDEX job_scheduled ON penstock.job_active (run_at) WHERE stage = 1;
-- By id: a lease is renewed in place, without a new entry in any index.
CREATE INDEX job_running ON penstock.job_active (id) WHERE stage = 3;
CREATE INDEX job_cancelling ON penstock.job_active (id) WHERE stage = 3 AND cancel_requested;
CREATE INDEX job_key ON penstock.job_active (key, stage, id) WHERE key IS NOT NULL;
-- Whatever goes wrong elsewhere: never two of a key that could run.
CREATE UNIQUE INDEX job_head ON penstock.job_active (key) WHERE key IS NOT NULL AND stage <> 2;
CREATE UNIQUE INDEX job_dedupe ON penstock.job_active (dedupe)
WHERE dedupe IS NOT NULL AND stage < 3 AND NOT arriving;
CREATE INDEX job_dedupe_arriving ON penstock.job_active (dedupe)
WHERE dedupe IS NOT NULL AND stage < 3 AND arriving;
CREATE INDEX job_dedupe_running ON penstock.job_active (dedupe)
WHERE dedupe IS NOT NULL AND stage = 3;

-- Who waits for whom; resolved when the needed job has ended.
CREATE TABLE penstock.edge (
    needed bigint NOT NULL,
    job_id bigint NOT NULL,
    on_failure text NOT NULL,
    resolved boolean NOT NULL,
    PRIMARY KEY (needed, job_id)
);
CREATE INDEX edge_job ON penstock.edge (job_id);
CREATE INDEX edge_open ON penstock.edge (job_id) WHERE NOT resolved;

-- Jobs that came or ended inside a transaction of somebody else. What that means for other jobs
-- is written when it has committed, by whoever has the queue alone next. `needed` is JSON: pairs of
-- a job that a new one waits for and the stage in which that was found.
CREATE TABLE penstock.arrival (
    job_id bigint PRIMARY KEY,
    ended boolean NOT NULL,
    actor text NOT NULL,
    key text COLLATE "C",
    needed text,
    on_failure text
);

-- Finding jobs by tag, in whatever state.
CREATE TABLE penstock.tag (
    tag text COLLATE "C" NOT NULL,
    job_id bigint NOT NULL,
    PRIMARY KEY (tag, job_id)
);

-- Claiming ready jobs by tag; the tenant is '' for jobs without one.
CREATE TABLE penstock.ready_tag (
    queue text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    run_at bigint NOT NULL,
    job_id bigint NOT NULL
);
CREATE UNIQUE INDEX ready_tag_order
ON penstock.ready_tag (queue, tag, (-priority), tenant, run_at, job_id);

-- They follow the job, whatever moves it.
CREATE FUNCTION penstock.follow_tags() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.stage = 0 THEN
        DELETE FROM penstock.ready_tag AS r USING (
            SELECT d.tid FROM json_array_elements_text(OLD.tags::json) AS w (tag)
            CROSS JOIN LATERAL (
                SELECT ctid AS tid FROM penstock.ready_tag
                WHERE queue = OLD.queue AND tag = w.tag AND -priority = -OLD.priority
                AND tenant = coalesce(OLD.tenant, '') AND run_at = OLD.run_at AND job_id = OLD.id
                OFFSET 0
            ) AS d
        ) AS t
        WHERE r.ctid = t.tid;
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.stage = 0 THEN
        INSERT INTO penstock.ready_tag (queue, tag, priority, tenant, run_at, job_id)
        SELECT NEW.queue, t, NEW.priority, coalesce(NEW.tenant, ''), NEW.run_at, NEW.id
        FROM json_array_elements_text(NEW.tags::json) AS t
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER tags_added AFTER INSERT ON penstock.job_active
FOR EACH ROW WHEN (NEW.tags IS NOT NULL AND NEW.stage = 0)
EXECUTE FUNCTION penstock.follow_tags();

CREATE TRIGGER tags_changed AFTER UPDATE OF stage, priority, run_at ON penstock.job_active
FOR EACH ROW WHEN (NEW.tags IS NOT NULL AND (OLD.stage = 0 OR NEW.stage = 0))
EXECUTE FUNCTION penstock.follow_tags();

CREATE TRIGGER tags_gone AFTER DELETE ON penstock.job_active
FOR EACH ROW WHEN (OLD.tags IS NOT NULL AND OLD.stage = 0)
EXECUTE FUNCTION penstock.follow_tags();

-- How many jobs there are per queue and stage, as far as it was added up, and what came since.
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

-- The audit, by the day on which an entry was written. `previous` chains the entries of one job,
-- newest (the job's version) to oldest. `taken_over`: it happened elsewhere, and is not counted.
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

CREATE TABLE penstock."limit" (
    kind text COLLATE "C" NOT NULL, -- 'task', or 'throttle' with a prefix as its name
    name text COLLATE "C" NOT NULL,
    concurrency bigint NOT NULL,
    PRIMARY KEY (kind, name)
);

-- The starts that a queue's rate still counts, as JSON.
CREATE TABLE penstock.rate (
    queue text COLLATE "C" PRIMARY KEY,
    starts text NOT NULL
);

-- Which tenant was served last, per queue and level.
CREATE TABLE penstock.turn (
    queue text COLLATE "C" NOT NULL,
    level integer NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, level)
);

-- What running jobs say about themselves. Numbers are JSON, so that they come back as they came.
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
-- Ids number the lines of one job without a gap.
CREATE TABLE penstock.line (
    job_id bigint NOT NULL,
    id bigint NOT NULL,
    at bigint NOT NULL,
    level text NOT NULL,
    text text NOT NULL,
    attempt integer NOT NULL,
    PRIMARY KEY (job_id, id)
);

-- Jobs that are enqueued again and again. `job` is JSON: what each run is made of.
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

-- Which jobs were taken over from other stores. Outlives the jobs.
CREATE TABLE penstock.origin (
    source bigint NOT NULL,
    original bigint NOT NULL,
    job_id bigint NOT NULL,
    PRIMARY KEY (source, original)
);

-- One row while jobs move between this store and another, and after they have left.
CREATE TABLE penstock.seal (
    passage text NOT NULL,
    peer bigint NOT NULL,
    place text NOT NULL
);

-- Who may reach the store from outside. The secret itself is stored nowhere; `scopes` is JSON.
CREATE TABLE penstock.token (
    name text COLLATE "C" PRIMARY KEY,
    digest text NOT NULL,
    scopes text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint
);

-- What workers say of themselves. `queues` (NULL: all) and `tags` are JSON.
CREATE TABLE penstock.worker (
    name text COLLATE "C" PRIMARY KEY,
    host text,
    pid bigint,
    queues text,
    tags text NOT NULL,
    concurrency bigint,
    started_at bigint,
    seen_at bigint NOT NULL
);

-- Sums of the log, per minute and for ever. Bucket 0 is for entries without a duration.
CREATE TABLE penstock.history (
    minute bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    event text COLLATE "C" NOT NULL,
    bucket integer NOT NULL,
    n bigint NOT NULL,
    micros bigint NOT NULL,
    PRIMARY KEY (minute, queue, event, bucket)
);
CREATE TABLE penstock.counter (
    queue text COLLATE "C" NOT NULL,
    event text COLLATE "C" NOT NULL,
    bucket integer NOT NULL,
    n bigint NOT NULL,
    micros bigint NOT NULL,
    PRIMARY KEY (queue, event, bucket)
);

-- The server empties this table when it crashes, and only then. Numbers of transactions whose
-- records had not reached the disk are given out again after that: see `PostgresWriter`.
CREATE UNLOGGED TABLE penstock.life (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    number bigint NOT NULL
);

-- A number that the server keeps until it crashes; 0 on one that only follows another.
CREATE FUNCTION penstock.life() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN 0;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM penstock.life) THEN
        INSERT INTO penstock.life (number)
        VALUES (('x' || left(replace(gen_random_uuid()::text, '-', ''), 15))::bit(60)::bigint)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN (SELECT number FROM penstock.life);
END $$;

-- The clock that decides.
CREATE FUNCTION penstock.now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- The newest entry of the log, whoever wrote it, and whether that has committed or not.
CREATE FUNCTION penstock.newest() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT last_value - (NOT is_called)::integer FROM penstock.log_id
$$;

-- Begins to write. The lock tells readers of the log that all entries of this transaction will be
-- newer than the newest is now. Mode 1 shares the queue with others, mode 2 has it alone.
CREATE FUNCTION penstock.enter(mode integer) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF mode = 1 THEN
        PERFORM pg_advisory_xact_lock_shared('penstock.job'::regclass::oid::integer, 0);
    ELSIF mode = 2 THEN
        PERFORM pg_advisory_xact_lock('penstock.job'::regclass::oid::integer, 0);
    END IF;
    PERFORM pg_advisory_xact_lock_shared(
        'penstock.log'::regclass::oid::integer, (penstock.newest() & 2147483647)::integer
    );
    RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
END $$;

-- Up to which entry the log is complete: no transaction that is under way will add one below.
-- The newest is asked for first: who enters after that will be above it.
CREATE FUNCTION penstock.complete() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    newest bigint := penstock.newest();
    behind bigint;
BEGIN
    -- Only the low bits stand in the lock; who has entered meanwhile seems to be far behind.
    SELECT max(distance) INTO behind
    FROM pg_locks CROSS JOIN LATERAL (SELECT (newest - objid::bigint) & 2147483647 AS distance) AS d
    WHERE distance < 1073741824 AND locktype = 'advisory' AND objsubid = 2 AND granted
    AND classid = 'penstock.log'::regclass::oid
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
    RETURN newest - coalesce(behind, 0);
END $$;

-- Tables for what is written on a day. Attaching them keeps nobody from writing.
CREATE FUNCTION penstock.make_room(today integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    part text;
BEGIN
    PERFORM pg_advisory_xact_lock('penstock.meta'::regclass::oid::integer, 1);
    part := format('penstock.log_%s', today);
    IF to_regclass(part) IS NULL THEN
        EXECUTE format('CREATE TABLE %s (LIKE penstock.log)', part);
        EXECUTE format('ALTER TABLE penstock.log ATTACH PARTITION %s FOR VALUES IN (%s)', part, today);
    END IF;
    part := format('penstock.job_%s_ended', today);
    IF to_regclass(part) IS NULL THEN
        EXECUTE format('CREATE TABLE %s (LIKE penstock.job, CHECK (stage IN (4, 6, 7)))', part);
        EXECUTE format(
            'ALTER TABLE penstock.job ATTACH PARTITION %s FOR VALUES IN (%s)', part, 2 * today
        );
    END IF;
    part := format('penstock.job_%s_failed', today);
    IF to_regclass(part) IS NULL THEN
        EXECUTE format('CREATE TABLE %s (LIKE penstock.job, CHECK (stage = 5))', part);
        EXECUTE format(
            'ALTER TABLE penstock.job ATTACH PARTITION %s FOR VALUES IN (%s)', part, 2 * today + 1
        );
    END IF;
END $$;

-- The two ways into the queue from a transaction of somebody else, on whatever connection: text in
-- and text out is understood by every driver. Such a transaction may stay open for minutes, so that
-- it must hold nothing that ours wait for: it shares the queue with nobody, writes rows of its own,
-- and leaves to others what its jobs mean for theirs. What cannot be done is said in the answer: an
-- error would spoil all that the caller has done before.

-- Whether a call is part of the transaction in which the caller asked for its number, in this store.
CREATE FUNCTION penstock.refused(call json) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN call ->> 'source' <> (SELECT value::text FROM penstock.meta WHERE name = 'source')
        THEN 'elsewhere'
        WHEN call ->> 'transaction' <> pg_current_xact_id()::text THEN 'autocommit'
    END
$$;

-- Whether jobs are leaving or arriving. Who seals waits for those that have entered before.
CREATE FUNCTION penstock.sealed() RETURNS json LANGUAGE sql VOLATILE AS $$
    SELECT json_build_object('sealed', json_build_array(passage, peer, place)) FROM penstock.seal
$$;

-- Who keeps a job with this dedupe key from being pending.
CREATE FUNCTION penstock.holder_of(wanted text, by text) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT id FROM penstock.job_active
    WHERE dedupe = wanted AND dedupe IS NOT NULL AND stage < 3 AND NOT arriving
    UNION ALL
    SELECT id FROM penstock.job_active
    WHERE dedupe = wanted AND dedupe IS NOT NULL AND stage < 3 AND arriving
    UNION ALL
    SELECT id FROM penstock.job_active
    WHERE dedupe = wanted AND dedupe IS NOT NULL AND stage = 3 AND 'unfinished' IN (by, scope)
    LIMIT 1
$$;

-- Writes one new job; its stage. Jobs that have to do with others wait until they are linked.
CREATE FUNCTION penstock.add_one(
    new_id bigint, entry bigint, at bigint, due bigint, by text, new json, needed text
) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    related boolean := new ->> 'key' IS NOT NULL OR new ->> 'dedupe' IS NOT NULL
        OR needed IS NOT NULL;
    new_stage integer := CASE WHEN related THEN 2 ELSE (due > at)::integer END;
BEGIN
    INSERT INTO penstock.job_active (
        id, version, enqueued_at, stage, run_at, arriving, queue, task, priority, lease_time, body,
        timeout, key, dedupe, scope, tags, retry, correlation, tenant, parent, throttle, trace
    )
    VALUES (
        new_id, entry, at, new_stage, due, related, new ->> 'queue', new ->> 'task',
        (new ->> 'priority')::smallint, (new ->> 'lease_time')::bigint, new ->> 'body',
        (new ->> 'timeout')::bigint, new ->> 'key', new ->> 'dedupe', new ->> 'scope',
        new ->> 'tags', new ->> 'retry', new ->> 'correlation', new ->> 'tenant',
        (new ->> 'parent')::bigint, new ->> 'throttle', new ->> 'trace'
    );
    INSERT INTO penstock.log (id, job_id, at, day, event, state, queue, actor)
    VALUES (entry, new_id, at, at / 86400000000, 'enqueued', 'pending', new ->> 'queue', by);
    INSERT INTO penstock.delta (id, queue, stage, n)
    VALUES (entry, new ->> 'queue', new_stage, 1);
    IF new ->> 'tags' IS NOT NULL THEN
        INSERT INTO penstock.tag (tag, job_id)
        SELECT DISTINCT t, new_id FROM json_array_elements_text((new ->> 'tags')::json) AS t;
    END IF;
    IF related THEN
        INSERT INTO penstock.arrival (job_id, ended, actor, key, needed, on_failure)
        VALUES (new_id, false, by, new ->> 'key', needed, new ->> 'on_failure');
    END IF;
    RETURN new_stage;
END $$;

-- What a new job waits for, as pairs of an id and a stage; NULL for nothing. `before` has the jobs
-- that were given with it.
CREATE FUNCTION penstock.needed_by(new json, before bigint[]) RETURNS text
LANGUAGE sql VOLATILE AS $$
    SELECT json_agg(json_build_array(w.id, j.stage))::text FROM (
        SELECT value::bigint AS id FROM json_array_elements_text(new -> 'after')
        UNION
        SELECT before[value::integer + 1] FROM json_array_elements_text(new -> 'follows')
    ) AS w
    CROSS JOIN LATERAL (SELECT stage FROM penstock.job WHERE id = w.id OFFSET 0) AS j
$$;

-- Adds jobs, all or none. By the committed length of a queue: transactions that are open at the
-- same time may pass a limit together.
CREATE FUNCTION penstock.add_within(call text) RETURNS text LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    asked json := call::json;
    answer json := json_build_object('refused', penstock.refused(asked));
    at bigint;
    due bigint;
    new json;
    this bigint;
    entry bigint;
    stage integer;
    jobs bigint[] := '{}';
    stored json[] := '{}';
BEGIN
    IF answer ->> 'refused' IS NOT NULL THEN
        RETURN answer;
    END IF;
    -- One after the other among those of this kind, as a unique index would have it.
    PERFORM pg_advisory_xact_lock('penstock.arrival'::regclass::oid::integer, d.hash)
    FROM (
        SELECT DISTINCT hashtext(value ->> 'dedupe') AS hash
        FROM json_array_elements(asked -> 'jobs')
        WHERE value ->> 'dedupe' IS NOT NULL ORDER BY hash
    ) AS d;
    SELECT a.id INTO this
    FROM json_array_elements(asked -> 'jobs') AS n
    CROSS JOIN LATERAL (
        SELECT value::bigint AS id FROM json_array_elements_text(n -> 'after')
    ) AS a
    WHERE NOT EXISTS (SELECT 1 FROM penstock.job AS j WHERE j.id = a.id OFFSET 0)
    ORDER BY a.id LIMIT 1;
    IF this IS NOT NULL THEN
        RETURN json_build_object('missing', this);
    END IF;
    at := penstock.enter(0);
    at := coalesce((asked ->> 'now')::bigint, at);
    answer := penstock.sealed();
    IF answer IS NOT NULL THEN
        RETURN answer;
    END IF;
    FOR new IN SELECT value FROM json_array_elements(asked -> 'jobs') LOOP
        this := CASE WHEN new ->> 'dedupe' IS NOT NULL
            THEN penstock.holder_of(new ->> 'dedupe', new ->> 'scope') END;
        IF this IS NOT NULL THEN
            jobs := jobs || this;
            stored := stored || json_build_array(this);
            CONTINUE;
        END IF;
        this := nextval('penstock.job_id');
        entry := nextval('penstock.log_id');
        due := coalesce((new ->> 'run_at')::bigint, at + (new ->> 'delay')::bigint);
        stage := penstock.add_one(
            this, entry, at, due, asked ->> 'actor', new, penstock.needed_by(new, jobs)
        );
        jobs := jobs || this;
        stored := stored || json_build_array(this, entry, stage, due);
    END LOOP;
    SELECT json_build_object('full', q.name, 'limit', q.max_pending) INTO answer
    FROM penstock.queue AS q
    WHERE q.max_pending < (
        SELECT sum(n) FROM (
            SELECT n FROM penstock.total AS t WHERE t.queue = q.name AND t.stage < 3
            UNION ALL
            SELECT n FROM penstock.delta AS d
            WHERE d.id > (SELECT value FROM penstock.meta WHERE name = 'folded')
            AND d.queue = q.name AND d.stage < 3
        ) AS t
    )
    AND q.name IN (
        SELECT j.queue FROM unnest(stored) AS s CROSS JOIN LATERAL (
            SELECT queue FROM penstock.job_active WHERE id = (s ->> 0)::bigint OFFSET 0
        ) AS j
        WHERE s ->> 1 IS NOT NULL
    )
    LIMIT 1;
    IF answer ->> 'full' IS NOT NULL THEN
        RAISE SQLSTATE 'PS001';
    END IF;
    IF asked ->> 'ring' IS NOT NULL THEN
        PERFORM pg_notify(asked ->> 'ring', '');
    END IF;
    RETURN json_build_object('now', at, 'jobs', to_json(stored));
EXCEPTION WHEN SQLSTATE 'PS001' THEN
    RETURN answer;
END $$;

-- Ends a run with success, while its lease is held.
CREATE FUNCTION penstock.finish_within(call text) RETURNS text LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    asked json := call::json;
    why text := penstock.refused(asked);
    answer json;
    at bigint;
    entry bigint;
    held penstock.job_active%ROWTYPE;
BEGIN
    IF why IS NOT NULL THEN
        RETURN json_build_object('refused', why);
    END IF;
    at := penstock.enter(0);
    at := coalesce((asked ->> 'now')::bigint, at);
    answer := penstock.sealed();
    IF answer IS NOT NULL THEN
        RETURN answer;
    END IF;
    SELECT * INTO held FROM penstock.job_active AS j
    WHERE j.id = (asked ->> 'job')::bigint AND j.token = (asked ->> 'token')::bigint
    AND j.worker = asked ->> 'worker' AND j.stage = 3
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN json_build_object('lost', true);
    END IF;
    entry := nextval('penstock.log_id');
    INSERT INTO penstock.log (
        id, job_id, previous, at, day, event, state, queue, actor, token, duration, detail
    )
    VALUES (
        entry, held.id, held.version, at, at / 86400000000, 'done', 'done', held.queue,
        asked ->> 'actor', held.token, at - held.started_at, asked ->> 'detail'
    );
    INSERT INTO penstock.delta (id, queue, stage, n)
    VALUES
        (entry, held.queue, 3, -1),
        (entry, held.queue, 4, 1);
    UPDATE penstock.job SET
        shelf = 2 * (at / 86400000000), stage = 4, version = entry, finished_at = at,
        error = NULL, result = asked ->> 'result', expires_at = NULL, cancel_requested = false
    WHERE id = held.id AND shelf = 0;
    -- Always: who begins to wait for it now cannot say so on a row that is locked.
    INSERT INTO penstock.arrival (job_id, ended, actor, key)
    VALUES (held.id, true, asked ->> 'actor', held.key);
    IF asked ->> 'ring' IS NOT NULL THEN
        PERFORM pg_notify(asked ->> 'ring', '');
    END IF;
    RETURN json_build_object('now', at, 'version', entry);
END $$;
