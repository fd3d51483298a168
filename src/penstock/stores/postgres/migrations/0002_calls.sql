-- Verbs for programs and triggers that have SQL alone, with the effects that they have in Python. As
-- with `add_within`, the transaction is somebody else's: it shares the queue with nobody, and leaves
-- to the next claim what its jobs mean for others. Each tells whether it could be done.

-- How a job has ended; NULL for one that is done.
ALTER TABLE penstock.arrival ADD COLUMN state text;

-- Begins to write, as others do; the time.
CREATE FUNCTION penstock.call_enter() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at bigint := penstock.enter(0);
BEGIN
    IF EXISTS (SELECT 1 FROM penstock.seal) THEN
        RAISE EXCEPTION 'penstock: jobs move between this store and another';
    END IF;
    -- Tables for the day are there while any process of ours runs.
    IF to_regclass(format('penstock.log_%s', at / 86400000000)) IS NULL THEN
        PERFORM penstock.make_room((at / 86400000000)::integer);
    END IF;
    PERFORM pg_notify(n.nspname, '') FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = 'penstock.job'::regclass;
    RETURN at;
END $$;

CREATE FUNCTION penstock.call_shift(entry bigint, of_queue text, before integer, after integer)
RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO penstock.delta (id, queue, stage, n)
    SELECT entry, of_queue, s.stage, s.n FROM (VALUES (before, -1), (after, 1)) AS s (stage, n)
    WHERE before <> after
$$;

-- A new job; its number. `new` has its columns: queue, task, body, priority, lease_time, run_at, key,
-- dedupe, tenant, retry, attempt.
CREATE FUNCTION penstock.call_add(new json, actor text) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    at bigint := penstock.call_enter();
    this bigint := nextval('penstock.job_id');
BEGIN
    INSERT INTO penstock.queue (name) SELECT new ->> 'queue'
    WHERE NOT EXISTS (SELECT 1 FROM penstock.queue WHERE name = new ->> 'queue')
    ON CONFLICT DO NOTHING;
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

-- Waits a moment for a job that others are at; whether it is ours until the end. Whoever is at it
-- may wait for what this transaction holds, so that nobody waits for long.
CREATE FUNCTION penstock.call_lock(this bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
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

-- The same for the queue: what is waiting may change only while nobody has the queue alone.
CREATE FUNCTION penstock.call_share() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    FOR n IN 1..20 LOOP
        IF pg_try_advisory_xact_lock_shared('penstock.job'::regclass::oid::integer, 0) THEN
            RETURN true;
        END IF;
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN false;
END $$;

-- Locks a job that may start now, if nobody else is at it; one that has just come, or whose
-- predecessor has just ended, finds its place first, for which the queue must be free of others.
CREATE FUNCTION penstock.call_ready(this bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    at bigint := penstock.now();
    j penstock.job_active%ROWTYPE;
    q penstock.queue%ROWTYPE;
    entry bigint;
BEGIN
    -- Most that cannot start are seen to at a glance.
    SELECT * INTO j FROM penstock.job_active WHERE id = this AND stage < 3;
    IF NOT FOUND OR j.needs > 0 OR j.run_at > at OR EXISTS (
        SELECT 1 FROM penstock.job_active
        WHERE key = j.key AND key IS NOT NULL AND id <> this AND (stage <> 2 OR id < this)
    ) OR NOT penstock.call_share() THEN
        RETURN false;
    END IF;
    SELECT * INTO j FROM penstock.job_active WHERE id = this AND stage < 3 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR j.held IS NOT NULL OR j.throttle IS NOT NULL OR j.run_at > at
    OR EXISTS (SELECT 1 FROM penstock.seal) THEN
        RETURN false;
    END IF;
    SELECT * INTO q FROM penstock.queue WHERE name = j.queue;
    IF q.paused OR q.rate IS NOT NULL OR q.concurrency <= (
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
    -- Alone now: what others did before is to be seen.
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

-- A job for a worker, until an instant, or for the time of its lease; its token.
CREATE FUNCTION penstock.call_claim(this bigint, who text, until bigint) RETURNS bigint
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

CREATE FUNCTION penstock.call_renew(this bigint, until bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE penstock.job_active SET expires_at = coalesce(until, penstock.now() + lease_time)
    WHERE id = this AND stage = 3;
    RETURN FOUND;
END $$;

-- The next step of a job: see `Moving`. What comes back to a key, or has others waiting for it, is
-- looked at by the next claim.
CREATE FUNCTION penstock.call_move(
    this bigint, what text, becomes text, tries integer, due bigint, said text, outcome text,
    why text, who text, at bigint
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    entry bigint := nextval('penstock.log_id');
    j penstock.job%ROWTYPE;
    target integer;
BEGIN
    SELECT * INTO j FROM penstock.job WHERE id = this;
    target := CASE becomes
        WHEN 'done' THEN 4 WHEN 'failed' THEN 5 WHEN 'cancelled' THEN 6 WHEN 'superseded' THEN 7
        ELSE CASE WHEN j.key IS NOT NULL OR j.needs > 0 THEN 2 ELSE (due > at)::integer END
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

-- The end of a run: 'done', 'fail' (another attempt not before `due`, unless it is permanent),
-- 'release' (that was no attempt), 'expire'.
CREATE FUNCTION penstock.call_settle(
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

-- An entry of the log about a job that stays where it is.
CREATE FUNCTION penstock.call_note(this bigint, what text, why text, who text) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at bigint := penstock.call_enter();
    entry bigint := nextval('penstock.log_id');
    j penstock.job%ROWTYPE;
BEGIN
    SELECT * INTO j FROM penstock.job WHERE id = this;
    INSERT INTO penstock.log (
        id, job_id, previous, at, day, event, state, queue, actor, token, reason
    )
    VALUES (
        entry, this, j.version, at, at / 86400000000, what,
        CASE WHEN j.stage < 3 THEN 'pending' WHEN j.stage = 3 THEN 'running'
        WHEN j.stage = 4 THEN 'done' WHEN j.stage = 5 THEN 'failed' WHEN j.stage = 6 THEN 'cancelled'
        ELSE 'superseded' END,
        j.queue, who, CASE WHEN j.stage = 3 THEN j.token END, why
    );
    UPDATE penstock.job SET version = entry WHERE id = this AND shelf = j.shelf;
    RETURN entry;
END $$;

-- 'cancel', 'reset' (of a failed, cancelled or waiting job), 'reprioritise', 'refuse'.
CREATE FUNCTION penstock.call_steer(
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
    ELSIF verb = 'cancel' AND j.stage < 3 THEN
        PERFORM penstock.call_move(
            this, 'cancelled', 'cancelled', j.attempt, NULL, NULL, NULL, why, who, at
        );
    ELSIF verb = 'cancel' AND j.stage = 3 THEN
        PERFORM penstock.call_note(this, 'cancel_requested', why, who);
        UPDATE penstock.job_active SET cancel_requested = true WHERE id = this;
    ELSIF verb = 'reset' AND (j.stage < 3 OR j.stage IN (5, 6)) THEN
        IF j.stage >= 4 AND j.dedupe IS NOT NULL
        AND penstock.holder_of(j.dedupe, 'unfinished') IS NOT NULL THEN
            RAISE EXCEPTION 'penstock: an unfinished job has this dedupe key';
        END IF;
        IF j.key IS NOT NULL AND j.needs > 0 THEN
            RAISE EXCEPTION 'penstock: a job with a key that waits for others is reset in Python';
        END IF;
        PERFORM penstock.call_move(this, 'reset', 'pending', 0, at, NULL, NULL, why, who, at);
    ELSIF verb = 'reprioritise' AND j.stage < 3 THEN
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
