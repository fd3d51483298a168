-- Costs that do not grow with the names of queues: see the script of this name for SQLite.
--
-- Queues: 0 has a line of its own; 1 is merged, its ready jobs are found in one index for all such
-- queues; 2 has a line of its own, while some of its jobs still are merged.
-- `counted`: whether the kept number of queues has it. A transaction of somebody else does not write
-- that number, which others would have to wait for.
ALTER TABLE penstock.queue ADD COLUMN merged smallint NOT NULL DEFAULT 0;
ALTER TABLE penstock.queue ADD COLUMN counted boolean NOT NULL DEFAULT true;
ALTER TABLE penstock.job ADD COLUMN merged boolean NOT NULL DEFAULT false;
ALTER TABLE penstock.ready_tag ADD COLUMN merged boolean NOT NULL DEFAULT false;

-- How many queues there are, and how many of the first ones have lines of their own.
INSERT INTO penstock.meta VALUES ('queues', 0), ('own_lines', 32);

-- Queues without jobs that nobody has configured.
DELETE FROM penstock.queue AS q
WHERE paused_until = 0 AND num_nonnulls(max_pending, concurrency, rate, promote_after) = 0
AND q.name NOT IN (
    SELECT queue FROM (
        SELECT queue, n FROM penstock.total
        UNION ALL
        SELECT queue, n FROM penstock.delta
        WHERE id > (SELECT value FROM penstock.meta WHERE name = 'folded')
    ) AS t
    GROUP BY queue HAVING sum(n) <> 0
);
DELETE FROM penstock.turn WHERE queue NOT IN (SELECT name FROM penstock.queue);
DELETE FROM penstock.rate WHERE queue NOT IN (SELECT name FROM penstock.queue);
UPDATE penstock.meta SET value = (SELECT count(*) FROM penstock.queue) WHERE name = 'queues';

-- The others are merged where there are many.
UPDATE penstock.queue SET merged = 1
WHERE paused_until = 0 AND num_nonnulls(max_pending, concurrency, rate, promote_after) = 0
AND (SELECT value FROM penstock.meta WHERE name = 'queues') > 32
AND name NOT IN (SELECT queue FROM penstock.job WHERE tenant IS NOT NULL);  -- also finished ones
UPDATE penstock.job_active SET merged = true
WHERE queue IN (SELECT name FROM penstock.queue WHERE merged = 1);
UPDATE penstock.ready_tag SET merged = true
WHERE queue IN (SELECT name FROM penstock.queue WHERE merged = 1);

CREATE INDEX job_merged ON penstock.job_active ((-priority), run_at, id)
WHERE stage = 0 AND merged AND held IS NULL;
-- What limits hold in merged queues is one place, whose queue is ''.
DROP INDEX penstock.job_held;
CREATE INDEX job_held ON penstock.job_active (
    held, (coalesce(tenant, '')), (CASE WHEN merged THEN '' ELSE queue END), priority, run_at, id
)
WHERE stage = 0 AND held IS NOT NULL;
CREATE INDEX job_member ON penstock.job_active (queue) WHERE merged;
CREATE INDEX job_stranger ON penstock.job_active (tenant) WHERE merged AND tenant IS NOT NULL;
CREATE INDEX ready_tag_merged ON penstock.ready_tag (tag, (-priority), run_at, job_id) WHERE merged;

CREATE INDEX queue_own ON penstock.queue (name) WHERE merged <> 1;
CREATE INDEX queue_merged ON penstock.queue (name) WHERE merged = 1;
CREATE INDEX queue_leaving ON penstock.queue (name) WHERE merged = 2;
CREATE INDEX queue_special ON penstock.queue (name)
WHERE concurrency IS NOT NULL OR rate IS NOT NULL OR promote_after IS NOT NULL;
CREATE INDEX queue_limited ON penstock.queue (name) WHERE concurrency IS NOT NULL;
CREATE INDEX queue_rated ON penstock.queue (name) WHERE rate IS NOT NULL;
CREATE INDEX queue_paused ON penstock.queue (paused_until) WHERE paused_until > 0;
CREATE INDEX queue_uncounted ON penstock.queue (name) WHERE NOT counted;

-- How many queues there are, and how many there may be.
CREATE FUNCTION penstock.names() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT value + (SELECT count(*) FROM penstock.queue WHERE NOT counted)
    FROM penstock.meta WHERE name = 'queues'
$$;
CREATE FUNCTION penstock.most_names() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT concurrency FROM penstock."limit" WHERE kind = 'queues' AND name = ''), 100000
    )
$$;

CREATE FUNCTION penstock.count_queues() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER queues_added AFTER INSERT ON penstock.queue
REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_queues();
CREATE TRIGGER queues_removed AFTER DELETE ON penstock.queue
REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_queues();

-- Makes sure that a queue stays until the end of the transaction; whether it is merged. Tenants take
-- turns in a line of its own.
CREATE FUNCTION penstock.use_queue(wanted text, has_tenant boolean) RETURNS boolean
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
    RETURN line = 1;  -- also with a tenant: the next claim gives the queue a line of its own
END $$;

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
DROP TRIGGER tags_changed ON penstock.job_active;
CREATE TRIGGER tags_changed AFTER UPDATE OF stage, priority, run_at, merged ON penstock.job_active
FOR EACH ROW WHEN (NEW.tags IS NOT NULL AND (OLD.stage = 0 OR NEW.stage = 0))
EXECUTE FUNCTION penstock.follow_tags();

-- As before, in a queue that stays, and merged where it is.
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
        merged
    )
    VALUES (
        new_id, entry, at, new_stage, due, related, new ->> 'queue', new ->> 'task',
        (new ->> 'priority')::smallint, (new ->> 'lease_time')::bigint, new ->> 'body',
        (new ->> 'timeout')::bigint, new ->> 'key', new ->> 'dedupe', new ->> 'scope',
        new ->> 'tags', new ->> 'retry', new ->> 'correlation', new ->> 'tenant',
        (new ->> 'parent')::bigint, new ->> 'throttle', new ->> 'trace', is_merged
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

CREATE OR REPLACE FUNCTION penstock.call_add(new json, actor text) RETURNS bigint LANGUAGE plpgsql VOLATILE
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

-- As before; also here, nothing is refused.
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
    -- Entries are kept by the day: those of yesterday may be gone.
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
