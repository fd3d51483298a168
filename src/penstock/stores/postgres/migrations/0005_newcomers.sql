-- Rows of applications that other programs have added, and that have no job yet. To add such a row
-- costs no more than to note it here. Whoever is about to look at jobs deletes the notes first, and a
-- trigger of the application on that makes the jobs, with `call_add_all`. Where an application has a
-- trigger on what else becomes of a row, it calls `adopt`, too. Who notes a row has called `enter`: a
-- store is sealed when all such transactions are over.
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

-- Makes the jobs of all that are there; how many, or NULL if others are at it. The next who comes
-- has to see them: one after the other. Nobody waits for long, since a transaction of somebody else
-- may stay open.
CREATE FUNCTION penstock.adopt() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    adopted bigint := 0;
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
    SELECT max(id) INTO last FROM penstock.newcomer;  -- others may go on adding rows
    LOOP
        DELETE FROM penstock.newcomer WHERE id IN (
            SELECT id FROM penstock.newcomer WHERE id <= last ORDER BY id LIMIT 1000
        );
        GET DIAGNOSTICS portion = ROW_COUNT;
        adopted := adopted + portion;
        EXIT WHEN portion = 0;
    END LOOP;
    RETURN adopted;
END $$;

-- Many new jobs at once, in their order; their numbers. `new` is a list of what `call_add` takes, and
-- `at` of each is when it came. Nothing is refused: nobody is there who could be told.
CREATE FUNCTION penstock.call_add_all(new json, actor text) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now bigint := penstock.enter(0);
    today bigint := now / 86400000000;
BEGIN
    IF to_regclass(format('penstock.log_%s', today)) IS NULL THEN
        PERFORM penstock.make_room(today::integer);
    END IF;
    INSERT INTO penstock.queue (name) SELECT DISTINCT e ->> 'queue' FROM json_array_elements(new) AS e
    ON CONFLICT DO NOTHING;
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
            body, key, dedupe, scope, tenant, retry, attempt
        )
        SELECT
            w.id, w.entry, w.at, w.stage, w.due, w.stage = 2, w.queue, w.task, w.priority,
            w.lease_time, w.body, w.key, w.dedupe, 'unfinished', w.tenant, w.retry, w.attempt
        FROM wanted AS w
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
