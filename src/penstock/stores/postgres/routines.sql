-- version: 9
--
-- The functions and triggers of the store: what runs inside the database, whichever program writes.
-- They hold no data. When the version above rises, the next process that opens the store replaces
-- them all by these and drops what is left of earlier ones, in one transaction. Raise it with every
-- change here, and with every change of `TRANSITIONS` in `core/lifecycle.py`. A function whose
-- result has another type needs another name: replacing keeps a function's identity, so that no
-- program that is just calling it fails.
--
-- 1. Triggers that keep derived tables current.
-- 2. Clock, locks and partitions, for our own queries.
-- 3. Jobs added and finished inside the caller's transaction, for our own queries.
-- 4. SQL verbs for other programs.

-- 1. Derived tables ----------------------------------------------------------------------------

-- penstock.ready_tag follows the ready jobs.
CREATE OR REPLACE FUNCTION penstock.follow_tags() RETURNS trigger LANGUAGE plpgsql AS $$
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
        INSERT INTO penstock.ready_tag (queue, tag, priority, tenant, run_at, job_id, merged)
        SELECT
            NEW.queue, t, NEW.priority, coalesce(NEW.tenant, ''), NEW.run_at, NEW.id, NEW.merged
        FROM json_array_elements_text(NEW.tags::json) AS t
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER tags_added AFTER INSERT ON penstock.job_active
FOR EACH ROW WHEN (NEW.tags IS NOT NULL AND NEW.stage = 0)
EXECUTE FUNCTION penstock.follow_tags();

CREATE OR REPLACE TRIGGER tags_changed
AFTER UPDATE OF stage, priority, run_at, merged ON penstock.job_active
FOR EACH ROW WHEN (NEW.tags IS NOT NULL AND (OLD.stage = 0 OR NEW.stage = 0))
EXECUTE FUNCTION penstock.follow_tags();

CREATE OR REPLACE TRIGGER tags_gone AFTER DELETE ON penstock.job_active
FOR EACH ROW WHEN (OLD.tags IS NOT NULL AND OLD.stage = 0)
EXECUTE FUNCTION penstock.follow_tags();

-- How many queues there are, and how many there may be.
CREATE OR REPLACE FUNCTION penstock.names() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT value + (SELECT count(*) FROM penstock.queue WHERE NOT counted)
    FROM penstock.meta WHERE name = 'queues'
$$;

CREATE OR REPLACE FUNCTION penstock.most_names() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT concurrency FROM penstock."limit" WHERE kind = 'queues' AND name = ''), 100000
    )
$$;

-- Queues are counted as they come and go.
CREATE OR REPLACE FUNCTION penstock.count_queues() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
BEGIN
    SELECT count(*) INTO n FROM changed WHERE counted;
    IF n > 0 THEN
        UPDATE penstock.meta SET value = value + CASE TG_OP WHEN 'DELETE' THEN -n ELSE n END
        WHERE name = 'queues';
        IF TG_OP = 'INSERT' AND penstock.names() > penstock.most_names() THEN
            RAISE EXCEPTION 'penstock: the store has as many queues as its limit of % allows',
            penstock.most_names() USING ERRCODE = 'PS002';
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER queues_added AFTER INSERT ON penstock.queue
REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_queues();

CREATE OR REPLACE TRIGGER queues_removed AFTER DELETE ON penstock.queue
REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_queues();

-- 2. Clock, locks and partitions ---------------------------------------------------------------

-- The clock of the store.
CREATE OR REPLACE FUNCTION penstock.now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- A number that the server keeps until it crashes; 0 on a standby.
CREATE OR REPLACE FUNCTION penstock.life() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
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

-- The newest log entry, by whichever transaction, committed or not.
CREATE OR REPLACE FUNCTION penstock.newest() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT last_value - (NOT is_called)::integer FROM penstock.log_id
$$;

-- Begins to write. The lock tells readers of the log that all entries of this transaction will be
-- newer than the newest is now. Mode 1 shares the queue with others, mode 2 has it alone.
CREATE OR REPLACE FUNCTION penstock.enter(mode integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
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

-- Whether the store was last written on the timeline of this server; true where the server does not
-- tell. Otherwise ids may come again that a former primary has assigned: see `timeline.py`. Asked
-- where no connection is opened that could have asked before: in transactions of others, and
-- behind poolers.
CREATE OR REPLACE FUNCTION penstock.is_timeline_known() RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT 1 FROM penstock.meta WHERE name = 'timeline' AND value
        <> ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
    );
EXCEPTION WHEN feature_not_supported OR insufficient_privilege OR undefined_function THEN
    RETURN true;
END $$;

-- The entry up to which the log is complete: no open transaction will add one below it. The newest
-- is read first: a transaction that enters after that will be above it.
CREATE OR REPLACE FUNCTION penstock.complete() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    newest bigint := penstock.newest();
    behind bigint;
BEGIN
    -- The lock holds only the low bits; a transaction that entered meanwhile seems far behind.
    SELECT max(distance) INTO behind
    FROM pg_locks CROSS JOIN LATERAL (SELECT (newest - objid::bigint) & 2147483647 AS distance) AS d
    WHERE distance < 1073741824 AND locktype = 'advisory' AND objsubid = 2 AND granted
    AND classid = 'penstock.log'::regclass::oid
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
    RETURN newest - coalesce(behind, 0);
END $$;

-- Whether there is no table of this name. To be asked behind the lock under which such tables are
-- created: `to_regclass` alone may still answer from before the wait for that lock, since a wait
-- for an advisory lock does not refresh what a connection remembers of names. And the catalog alone
-- answers a transaction with REPEATABLE READ as of its beginning.
CREATE OR REPLACE FUNCTION penstock.lacks(wanted text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT to_regclass('penstock.' || wanted) IS NULL AND NOT EXISTS (
        SELECT 1 FROM pg_class
        WHERE relname = wanted AND relnamespace = (
            SELECT relnamespace FROM pg_class WHERE oid = 'penstock.meta'::regclass
        )
    );
$$;

-- Creates the partitions of a day. Attaching them blocks no writer.
CREATE OR REPLACE FUNCTION penstock.make_room(today integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    part text;
BEGIN
    PERFORM pg_advisory_xact_lock('penstock.meta'::regclass::oid::integer, 1);
    part := format('log_%s', today);
    IF penstock.lacks(part) THEN
        EXECUTE format('CREATE TABLE penstock.%s (LIKE penstock.log)', part);
        EXECUTE format(
            'ALTER TABLE penstock.log ATTACH PARTITION penstock.%s FOR VALUES IN (%s)', part, today
        );
    END IF;
    part := format('job_%s_ended', today);
    IF penstock.lacks(part) THEN
        EXECUTE format('CREATE TABLE penstock.%s (LIKE penstock.job, CHECK (stage IN (4, 6, 7)))', part);
        EXECUTE format(
            'ALTER TABLE penstock.job ATTACH PARTITION penstock.%s FOR VALUES IN (%s)', part, 2 * today
        );
    END IF;
    part := format('job_%s_failed', today);
    IF penstock.lacks(part) THEN
        EXECUTE format('CREATE TABLE penstock.%s (LIKE penstock.job, CHECK (stage = 5))', part);
        EXECUTE format(
            'ALTER TABLE penstock.job ATTACH PARTITION penstock.%s FOR VALUES IN (%s)', part, 2 * today + 1
        );
    END IF;
END $$;

-- Keeps a queue from being removed until the end of the transaction, and creates it if need be;
-- returns whether it is merged.
CREATE OR REPLACE FUNCTION penstock.use_queue(wanted text, has_tenant boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    line smallint;
BEGIN
    LOOP
        SELECT merged INTO line FROM penstock.queue WHERE name = wanted FOR KEY SHARE;
        EXIT WHEN FOUND;
        INSERT INTO penstock.queue (name, merged, counted)
        SELECT wanted, (penstock.names() >= value)::integer, false
        FROM penstock.meta WHERE name = 'own_lines'
        ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN line = 1;  -- also with a tenant: the next claim gives the queue its own line
END $$;

-- The job that keeps another with this dedupe key from being pending.
CREATE OR REPLACE FUNCTION penstock.holder_of(wanted text, by text) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
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

-- Whether the life of a job allows a move.
CREATE OR REPLACE FUNCTION penstock.allows(before integer, what text, becomes text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM penstock.stage AS s JOIN penstock.transition AS t ON t.state = s.state
        WHERE s.stage = before AND t.event = what AND t.next = becomes
    )
$$;

-- The same, or an error: the last check before SQL writes a move that it has decided on itself.
CREATE OR REPLACE FUNCTION penstock.check_move(before integer, what text, becomes text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM penstock.stage AS s JOIN penstock.transition AS t ON t.state = s.state
        WHERE s.stage = before AND t.event = what AND t.next = becomes
    ) THEN
        RAISE EXCEPTION 'penstock: a job of stage % cannot become % by the event %',
        before, becomes, what USING ERRCODE = 'PS003';
    END IF;
    RETURN true;
END $$;

-- 3. Inside the caller's transaction -----------------------------------------------------------

-- Text in and text out is understood by every driver. The caller's transaction may stay open for
-- minutes, so it must hold nothing that ours wait for: it does not share the queue, writes rows of
-- its own, and leaves to others what its jobs mean for theirs. What cannot be done is reported in
-- the answer: an error would undo all that the caller has done before.

-- Why a call is refused: it is not part of the transaction whose number the caller asked for, not
-- in this store, or too early on a server that was promoted.
CREATE OR REPLACE FUNCTION penstock.refused(call json) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN call ->> 'source' <> (SELECT value::text FROM penstock.meta WHERE name = 'source')
        THEN 'elsewhere'
        WHEN call ->> 'transaction' <> pg_current_xact_id()::text THEN 'autocommit'
        WHEN NOT penstock.is_timeline_known() THEN 'timeline'
    END
$$;

-- The migration lock. Setting it waits for transactions that have entered before.
CREATE OR REPLACE FUNCTION penstock.sealed() RETURNS json LANGUAGE sql VOLATILE AS $$
    SELECT json_build_object('sealed', json_build_array(passage, peer, place)) FROM penstock.seal
$$;

-- Writes one new job and returns its stage. A job that has to do with others waits until it is
-- linked.
CREATE OR REPLACE FUNCTION penstock.add_one(
    new_id bigint, entry bigint, at bigint, due bigint, by text, new json, needed text
) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    related boolean := new ->> 'key' IS NOT NULL OR new ->> 'dedupe' IS NOT NULL
        OR needed IS NOT NULL;
    new_stage integer := CASE WHEN related THEN 2 ELSE (due > at)::integer END;
    is_merged boolean := penstock.use_queue(new ->> 'queue', new ->> 'tenant' IS NOT NULL);
BEGIN
    INSERT INTO penstock.job_active (
        id, version, enqueued_at, stage, run_at, arriving, queue, task, priority, lease_time, body,
        timeout, key, dedupe, scope, tags, retry, correlation, tenant, parent, throttle, trace,
        task_version, merged
    )
    VALUES (
        new_id, entry, at, new_stage, due, related, new ->> 'queue', new ->> 'task',
        (new ->> 'priority')::smallint, (new ->> 'lease_time')::bigint, new ->> 'body',
        (new ->> 'timeout')::bigint, new ->> 'key', new ->> 'dedupe', new ->> 'scope',
        new ->> 'tags', new ->> 'retry', new ->> 'correlation', new ->> 'tenant',
        (new ->> 'parent')::bigint, new ->> 'throttle', new ->> 'trace',
        (new ->> 'task_version')::integer, is_merged
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
CREATE OR REPLACE FUNCTION penstock.needed_by(new json, before bigint[]) RETURNS text
LANGUAGE sql VOLATILE AS $$
    SELECT json_agg(json_build_array(w.id, j.stage))::text FROM (
        SELECT value::bigint AS id FROM json_array_elements_text(new -> 'after')
        UNION
        SELECT before[value::integer + 1] FROM json_array_elements_text(new -> 'follows')
    ) AS w
    CROSS JOIN LATERAL (SELECT stage FROM penstock.job WHERE id = w.id OFFSET 0) AS j
$$;

-- Adds jobs, all or none. Reads the committed length of a queue: transactions that are open at the
-- same time may pass its limit together.
CREATE OR REPLACE FUNCTION penstock.add_within(call text) RETURNS text LANGUAGE plpgsql VOLATILE
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
    -- One after the other for each dedupe key, as a unique index would enforce.
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

-- Finishes a run as done, while its lease is held.
CREATE OR REPLACE FUNCTION penstock.finish_within(call text) RETURNS text LANGUAGE plpgsql VOLATILE
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
    PERFORM penstock.check_move(held.stage, 'done', 'done');
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
    -- Always: a job that starts to wait for this one cannot mark its row while it is locked.
    INSERT INTO penstock.arrival (job_id, ended, actor, key)
    VALUES (held.id, true, asked ->> 'actor', held.key);
    IF asked ->> 'ring' IS NOT NULL THEN
        PERFORM pg_notify(asked ->> 'ring', '');
    END IF;
    RETURN json_build_object('now', at, 'version', entry);
END $$;

-- 4. SQL verbs ---------------------------------------------------------------------------------

-- For programs and triggers that only have SQL, with the effects that the verbs have in Python.
-- Which moves are allowed is looked up in `transition`. As with `add_within`, the transaction is
-- another program's: it does not share the queue, and leaves to the next claim what its jobs mean
-- for others. Each verb returns whether it could be done.

-- Begins to write, as others do; returns the time.
CREATE OR REPLACE FUNCTION penstock.call_enter() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at bigint := penstock.enter(0);
BEGIN
    IF NOT penstock.is_timeline_known() THEN
        RAISE EXCEPTION 'penstock: another server was promoted, or a backup restored, and ids may'
        ' come twice until a worker or a server of Penstock has written to the store; try again'
        USING ERRCODE = 'PS004';
    END IF;
    IF EXISTS (SELECT 1 FROM penstock.seal) THEN
        RAISE EXCEPTION 'penstock: jobs move between this store and another';
    END IF;
    -- The partitions of the day exist while any process of ours runs.
    IF to_regclass(format('penstock.log_%s', at / 86400000000)) IS NULL THEN
        PERFORM penstock.make_room((at / 86400000000)::integer);
    END IF;
    PERFORM pg_notify(n.nspname, '') FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = 'penstock.job'::regclass;
    RETURN at;
END $$;

-- One job is counted under another stage.
CREATE OR REPLACE FUNCTION penstock.call_shift(
    entry bigint, of_queue text, before integer, after integer
) RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO penstock.delta (id, queue, stage, n)
    SELECT entry, of_queue, s.stage, s.n FROM (VALUES (before, -1), (after, 1)) AS s (stage, n)
    WHERE before <> after
$$;

-- Adds a job and returns its id. `new` has its columns: queue, task, body, priority, lease_time,
-- run_at, key, dedupe, tenant, retry, attempt.
CREATE OR REPLACE FUNCTION penstock.call_add(new json, actor text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    at bigint := penstock.call_enter();
    this bigint := nextval('penstock.job_id');
BEGIN
    IF NOT EXISTS (SELECT 1 FROM penstock.queue WHERE name = new ->> 'queue')
    AND penstock.names() >= penstock.most_names() THEN
        RAISE EXCEPTION 'penstock: the store has as many queues as its limit of % allows',
        penstock.most_names() USING ERRCODE = 'PS002';
    END IF;
    PERFORM penstock.use_queue(new ->> 'queue', new ->> 'tenant' IS NOT NULL);
    IF EXISTS (
        SELECT 1 FROM penstock.queue AS q WHERE q.name = new ->> 'queue' AND q.max_pending <= (
            SELECT coalesce(sum(n), 0) FROM (
                SELECT n FROM penstock.total AS t WHERE t.queue = q.name AND t.stage < 3
                UNION ALL
                SELECT n FROM penstock.delta AS d
                WHERE d.id > (SELECT value FROM penstock.meta WHERE name = 'folded')
                AND d.queue = q.name AND d.stage < 3
            ) AS t
        )
    ) THEN
        RAISE EXCEPTION 'penstock: the queue is full';
    END IF;
    IF new ->> 'dedupe' IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(
            'penstock.arrival'::regclass::oid::integer, hashtext(new ->> 'dedupe')
        );
        IF penstock.holder_of(new ->> 'dedupe', 'unfinished') IS NOT NULL THEN
            RAISE EXCEPTION 'penstock: an unfinished job has this dedupe key';
        END IF;
    END IF;
    PERFORM penstock.add_one(
        this, nextval('penstock.log_id'), at, coalesce((new ->> 'run_at')::bigint, at), actor,
        (new::jsonb || '{"scope": "unfinished"}')::json, NULL
    );
    IF (new ->> 'attempt')::integer > 0 THEN
        UPDATE penstock.job_active SET attempt = (new ->> 'attempt')::integer WHERE id = this;
    END IF;
    RETURN this;
END $$;

-- Adds many jobs in their order and returns their ids. `new` is a list of what `call_add` takes;
-- `at` of each is when it was inserted. Nothing is refused: no caller is left to report it to.
CREATE OR REPLACE FUNCTION penstock.call_add_all(new json, actor text) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now bigint := penstock.enter(0);
    today bigint := now / 86400000000;
BEGIN
    IF to_regclass(format('penstock.log_%s', today)) IS NULL THEN
        PERFORM penstock.make_room(today::integer);
    END IF;
    PERFORM penstock.use_queue(e.queue, e.has_tenant) FROM (
        SELECT v ->> 'queue' AS queue, bool_or(v ->> 'tenant' IS NOT NULL) AS has_tenant
        FROM json_array_elements(new) AS v GROUP BY 1 ORDER BY 1
    ) AS e;
    RETURN QUERY
    WITH wanted AS MATERIALIZED (
        SELECT
            nextval('penstock.job_id') AS id, nextval('penstock.log_id') AS entry, w.*,
            coalesce(w.run_at, w.at) AS due,
            CASE WHEN coalesce(w.key, w.dedupe) IS NOT NULL THEN 2
            ELSE (w.run_at > now)::integer END AS stage
        FROM json_to_recordset(new) AS w (
            queue text, task text, body text, priority smallint, lease_time bigint, run_at bigint,
            key text, dedupe text, tenant text, retry text, attempt integer, at bigint
        )
    ),
    added AS (
        INSERT INTO penstock.job_active (
            id, version, enqueued_at, stage, run_at, arriving, queue, task, priority, lease_time,
            body, key, dedupe, scope, tenant, retry, attempt, merged
        )
        SELECT
            w.id, w.entry, w.at, w.stage, w.due, w.stage = 2, w.queue, w.task, w.priority,
            w.lease_time, w.body, w.key, w.dedupe, 'unfinished', w.tenant, w.retry, w.attempt,
            q.merged = 1
        FROM wanted AS w JOIN penstock.queue AS q ON q.name = w.queue COLLATE "C"
    ),
    -- The log is partitioned by day: the partition of yesterday may be gone.
    logged AS (
        INSERT INTO penstock.log (id, job_id, at, day, event, state, queue, actor)
        SELECT
            w.entry, w.id, greatest(w.at, today * 86400000000), today, 'enqueued', 'pending',
            w.queue, actor
        FROM wanted AS w
    ),
    counted AS (
        INSERT INTO penstock.delta (id, queue, stage, n)
        SELECT max(w.entry), w.queue, w.stage, count(*) FROM wanted AS w GROUP BY w.queue, w.stage
    ),
    came AS (
        INSERT INTO penstock.arrival (job_id, ended, actor, key)
        SELECT w.id, false, actor, w.key FROM wanted AS w WHERE w.stage = 2
    )
    SELECT w.id FROM wanted AS w ORDER BY w.id;
END $$;

-- Imports all external inserts; returns how many, or NULL while another transaction does. One after
-- the other, because each has to see the jobs of the one before; nobody waits for long, because
-- another program's transaction may stay open.
CREATE OR REPLACE FUNCTION penstock.adopt() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    imported bigint := 0;
    portion bigint;
    last bigint;
BEGIN
    FOR n IN 1..20 LOOP
        IF NOT EXISTS (SELECT 1 FROM penstock.newcomer) THEN
            RETURN 0;
        END IF;
        EXIT WHEN pg_try_advisory_xact_lock('penstock.newcomer'::regclass::oid::integer, 0);
        IF n = 20 THEN
            RETURN NULL;
        END IF;
        PERFORM pg_sleep(0.002);
    END LOOP;
    IF NOT penstock.is_timeline_known() THEN
        RETURN NULL;  -- their ids could come twice
    END IF;
    SELECT max(id) INTO last FROM penstock.newcomer;  -- others may go on inserting
    LOOP
        DELETE FROM penstock.newcomer WHERE id IN (
            SELECT id FROM penstock.newcomer WHERE id <= last ORDER BY id LIMIT 1000
        );
        GET DIAGNOSTICS portion = ROW_COUNT;
        imported := imported + portion;
        EXIT WHEN portion = 0;
    END LOOP;
    RETURN imported;
END $$;

-- Waits a moment for a job that others are changing; returns whether it is locked until the end of
-- the transaction. Whoever holds it may wait for what this transaction holds, so the wait is short.
CREATE OR REPLACE FUNCTION penstock.call_lock(this bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    FOR n IN 1..20 LOOP
        PERFORM 1 FROM penstock.job_active WHERE id = this FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            RETURN true;
        END IF;
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN false;
END $$;

-- The same for the queue: pending jobs change only while nobody has the queue alone.
CREATE OR REPLACE FUNCTION penstock.call_share() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    FOR n IN 1..20 LOOP
        IF pg_try_advisory_xact_lock_shared('penstock.job'::regclass::oid::integer, 0) THEN
            RETURN true;
        END IF;
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN false;
END $$;

-- Locks a job that may start now, unless another transaction has it. A job that was just added, or
-- whose predecessor just ended, is linked first, for which nobody else may be at the queue.
CREATE OR REPLACE FUNCTION penstock.call_ready(this bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    at bigint := penstock.now();
    j penstock.job_active%ROWTYPE;
    q penstock.queue%ROWTYPE;
    entry bigint;
BEGIN
    -- Most jobs that cannot start are recognised without a lock.
    SELECT * INTO j FROM penstock.job_active WHERE id = this AND stage < 3;
    IF NOT FOUND OR j.needs > 0 OR j.run_at > at OR EXISTS (
        SELECT 1 FROM penstock.job_active
        WHERE key = j.key AND key IS NOT NULL AND id <> this AND (stage <> 2 OR id < this)
    ) OR NOT penstock.call_share() THEN
        RETURN false;
    END IF;
    SELECT * INTO j FROM penstock.job_active WHERE id = this AND stage < 3 FOR UPDATE SKIP LOCKED;
    -- A limit holds it; one whose task no worker knows may be claimed.
    IF NOT FOUND OR j.held NOT LIKE 'unknown:%' OR j.throttle IS NOT NULL OR j.run_at > at
    OR EXISTS (SELECT 1 FROM penstock.seal) THEN
        RETURN false;
    END IF;
    SELECT * INTO q FROM penstock.queue WHERE name = j.queue;
    IF q.paused_until > at OR q.rate IS NOT NULL OR q.concurrency <= (
        SELECT count(*) FROM penstock.job_active WHERE queue = j.queue AND stage = 3
    ) OR EXISTS (
        SELECT 1 FROM penstock."limit" AS l WHERE l.kind = 'task' AND l.name = j.task
        AND l.concurrency <= (
            SELECT count(*) FROM penstock.job_active WHERE task = j.task AND stage = 3
        )
    ) THEN
        RETURN false;
    END IF;
    IF j.stage < 2 THEN
        RETURN true;
    END IF;
    IF j.needs > 0 OR EXISTS (
        SELECT 1 FROM penstock.arrival WHERE job_id = this AND needed IS NOT NULL
    ) OR EXISTS (
        SELECT 1 FROM penstock.job_active
        WHERE key = j.key AND key IS NOT NULL AND id <> this AND (stage <> 2 OR id < this)
    ) OR NOT pg_try_advisory_xact_lock('penstock.job'::regclass::oid::integer, 0) THEN
        RETURN false;
    END IF;
    -- Alone now: what others wrote before is visible.
    IF EXISTS (
        SELECT 1 FROM penstock.job_active
        WHERE key = j.key AND key IS NOT NULL AND id <> this AND (stage <> 2 OR id < this)
    ) THEN
        RETURN false;
    END IF;
    entry := nextval('penstock.log_id');
    PERFORM penstock.call_enter();
    PERFORM penstock.call_shift(entry, j.queue, 2, 0);
    UPDATE penstock.job_active SET stage = 0, arriving = false WHERE id = this;
    DELETE FROM penstock.arrival WHERE job_id = this AND NOT ended;
    RETURN true;
END $$;

-- Gives a job to a worker, until an instant or for its lease time; returns its token.
CREATE OR REPLACE FUNCTION penstock.call_claim(this bigint, who text, until bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at bigint := penstock.call_enter();
    entry bigint;
    j penstock.job_active%ROWTYPE;
BEGIN
    IF NOT penstock.call_ready(this) THEN
        RETURN NULL;
    END IF;
    SELECT * INTO j FROM penstock.job_active WHERE id = this;
    PERFORM penstock.check_move(j.stage, 'claimed', 'running');
    entry := nextval('penstock.log_id');
    INSERT INTO penstock.log (
        id, job_id, previous, at, day, event, state, queue, actor, token, duration
    )
    VALUES (
        entry, this, j.version, at, at / 86400000000, 'claimed', 'running', j.queue, who, entry,
        greatest(0, at - greatest(j.run_at, j.enqueued_at))
    );
    PERFORM penstock.call_shift(entry, j.queue, j.stage, 3);
    UPDATE penstock.job_active SET
        stage = 3, version = entry, token = entry, attempt = attempt + 1, started_at = at,
        expires_at = coalesce(until, at + lease_time), worker = who
    WHERE id = this;
    RETURN entry;
END $$;

CREATE OR REPLACE FUNCTION penstock.call_renew(this bigint, until bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE penstock.job_active SET expires_at = coalesce(until, penstock.now() + lease_time)
    WHERE id = this AND stage = 3;
    RETURN FOUND;
END $$;

-- Moves a job to another state, or back to pending. What returns to a key, or has others waiting
-- for it, is left to the next claim.
CREATE OR REPLACE FUNCTION penstock.call_move(
    this bigint, what text, becomes text, tries integer, due bigint, said text, outcome text,
    why text, who text, at bigint
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    entry bigint := nextval('penstock.log_id');
    j penstock.job%ROWTYPE;
    target integer;
BEGIN
    SELECT * INTO j FROM penstock.job WHERE id = this;
    PERFORM penstock.check_move(j.stage, what, becomes);
    target := CASE
        WHEN becomes <> 'pending' THEN (SELECT stage FROM penstock.stage WHERE state = becomes)
        WHEN j.key IS NOT NULL OR j.needs > 0 THEN 2
        ELSE (due > at)::integer
    END;
    INSERT INTO penstock.log (
        id, job_id, previous, at, day, event, state, queue, actor, token, duration, reason, error
    )
    VALUES (
        entry, this, j.version, at, at / 86400000000, what, becomes, j.queue, who,
        CASE WHEN j.stage = 3 THEN j.token END, CASE WHEN j.stage = 3 THEN at - j.started_at END,
        why, said
    );
    PERFORM penstock.call_shift(entry, j.queue, j.stage, target);
    UPDATE penstock.job SET
        shelf = CASE WHEN target < 4 THEN 0
            ELSE 2 * (at / 86400000000) + (target = 5)::integer END,
        stage = target,
        version = entry,
        attempt = tries,
        run_at = CASE WHEN target < 4 THEN due ELSE run_at END,
        finished_at = CASE WHEN target >= 4 THEN at END,
        error = CASE WHEN what NOT IN ('done', 'reset') THEN coalesce(nullif(said, ''), error) END,
        result = outcome,
        started_at = CASE WHEN target >= 4 THEN started_at END,
        worker = CASE WHEN target >= 4 THEN worker END,
        expires_at = NULL,
        cancel_requested = false,
        arriving = target = 2 AND needs = 0
    WHERE id = this AND shelf = j.shelf;
    IF what IN ('done', 'reset') THEN
        DELETE FROM penstock.checkpoint WHERE job_id = this;
    END IF;
    IF what = 'reset' THEN
        DELETE FROM penstock.progress WHERE job_id = this;
    END IF;
    DELETE FROM penstock.arrival WHERE job_id = this;
    IF target >= 4 OR target = 2 AND j.needs = 0 THEN
        INSERT INTO penstock.arrival (job_id, ended, actor, key, state)
        VALUES (this, target >= 4, who, j.key, CASE WHEN target > 4 THEN becomes END);
    END IF;
END $$;

-- Ends a run: 'done', 'fail' (the next attempt not before `due`, unless the error is permanent),
-- 'release' (without using up an attempt), 'expire'.
CREATE OR REPLACE FUNCTION penstock.call_settle(
    verb text, this bigint, due bigint, said text, permanent boolean, who text
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at bigint := penstock.call_enter();
    j penstock.job_active%ROWTYPE;
    most integer;
    why text;
BEGIN
    SELECT * INTO j FROM penstock.job_active WHERE id = this AND stage = 3 FOR UPDATE;
    IF NOT FOUND OR verb = 'expire' AND j.expires_at > at THEN
        RETURN false;
    END IF;
    due := greatest(at, due);
    who := coalesce(who, CASE WHEN verb = 'expire' THEN 'sql' ELSE j.worker END);
    most := coalesce((j.retry::json ->> 'attempts')::integer, 3);
    IF verb = 'done' THEN
        PERFORM penstock.call_move(
            this, 'done', 'done', j.attempt, NULL, NULL, NULL, NULL, who, at
        );
    ELSIF verb = 'release' THEN
        PERFORM penstock.call_move(
            this, 'snoozed', CASE WHEN j.cancel_requested THEN 'cancelled' ELSE 'pending' END,
            j.attempt - 1, due, NULL, NULL, NULL, who, at
        );
    ELSE
        why := CASE
            WHEN j.cancel_requested THEN 'cancel was requested'
            WHEN permanent THEN 'permanent error'
            WHEN j.attempt >= most THEN format('attempt %s of %s', j.attempt, most)
        END;
        PERFORM penstock.call_move(
            this, CASE verb WHEN 'fail' THEN 'failed' ELSE 'expired' END,
            CASE WHEN why IS NULL THEN 'pending' WHEN j.cancel_requested THEN 'cancelled'
            ELSE 'failed' END,
            j.attempt, due,
            CASE verb WHEN 'fail' THEN coalesce(said, '')
            ELSE format('the lease of worker %s ran out', j.worker) END,
            NULL, why, who, at
        );
    END IF;
    RETURN true;
END $$;

-- Writes a log entry about a job that stays in its state.
CREATE OR REPLACE FUNCTION penstock.call_note(this bigint, what text, why text, who text)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at bigint := penstock.call_enter();
    entry bigint := nextval('penstock.log_id');
    j penstock.job%ROWTYPE;
    stays text;
BEGIN
    SELECT * INTO j FROM penstock.job WHERE id = this;
    SELECT s.state INTO stays FROM penstock.stage AS s WHERE s.stage = j.stage;
    PERFORM penstock.check_move(j.stage, what, stays);
    INSERT INTO penstock.log (
        id, job_id, previous, at, day, event, state, queue, actor, token, reason
    )
    VALUES (
        entry, this, j.version, at, at / 86400000000, what, stays, j.queue, who,
        CASE WHEN j.stage = 3 THEN j.token END, why
    );
    UPDATE penstock.job SET version = entry WHERE id = this AND shelf = j.shelf;
    RETURN entry;
END $$;

-- 'cancel', 'reset' (of a failed, cancelled or pending job), 'reprioritise', 'refuse'.
CREATE OR REPLACE FUNCTION penstock.call_steer(
    verb text, this bigint, wanted integer, why text, who text
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at bigint := penstock.call_enter();
    j penstock.job%ROWTYPE;
BEGIN
    IF verb <> 'refuse' AND NOT penstock.call_share() THEN
        RAISE EXCEPTION 'penstock: others are at the queue; try again' USING ERRCODE = '55P03';
    END IF;
    SELECT * INTO j FROM penstock.job WHERE id = this FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF verb = 'cancel' AND penstock.allows(j.stage, 'cancelled', 'cancelled')
    AND j.stage <> 3 THEN
        PERFORM penstock.call_move(
            this, 'cancelled', 'cancelled', j.attempt, NULL, NULL, NULL, why, who, at
        );
    ELSIF verb = 'cancel' AND penstock.allows(j.stage, 'cancel_requested', 'running') THEN
        PERFORM penstock.call_note(this, 'cancel_requested', why, who);
        UPDATE penstock.job_active SET cancel_requested = true WHERE id = this;
    ELSIF verb = 'reset' AND penstock.allows(j.stage, 'reset', 'pending')
    AND j.stage <> 3 THEN  -- a running one is reset only in Python
        IF j.stage >= 4 AND j.dedupe IS NOT NULL
        AND penstock.holder_of(j.dedupe, 'unfinished') IS NOT NULL THEN
            RAISE EXCEPTION 'penstock: an unfinished job has this dedupe key';
        END IF;
        IF j.key IS NOT NULL AND j.needs > 0 THEN
            RAISE EXCEPTION 'penstock: a job with a key that waits for others is reset in Python';
        END IF;
        PERFORM penstock.call_move(this, 'reset', 'pending', 0, at, NULL, NULL, why, who, at);
    ELSIF verb = 'reprioritise' AND penstock.allows(j.stage, 'reprioritised', 'pending') THEN
        PERFORM penstock.call_note(
            this, 'reprioritised',
            coalesce(why, format('priority %s became %s', j.priority, wanted)), who
        );
        UPDATE penstock.job_active SET priority = wanted WHERE id = this;
    ELSIF verb = 'refuse' THEN
        PERFORM penstock.call_note(this, 'refused', why, who);
    ELSE
        RETURN false;
    END IF;
    RETURN true;
END $$;
