-- The table `unified_queue` in PostgreSQL, in the schema of the store. A row and its job agree at
-- every moment: see `unified_queue_sqlite.sql`.

CREATE TABLE unified_queue (
    queue_id text NOT NULL PRIMARY KEY DEFAULT gen_random_uuid()::text,
    item_type text NOT NULL CHECK (item_type IN (
        'content', 'file', 'folder', 'project', 'library', 'delete_tenant', 'delete_document', 'rename'
    )),
    op text NOT NULL CHECK (op IN ('ingest', 'update', 'delete', 'scan')),
    tenant_id text NOT NULL,
    collection text NOT NULL,
    priority integer NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 10),
    status text NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'in_progress', 'done', 'failed')),
    created_at text NOT NULL
        DEFAULT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
    updated_at text NOT NULL
        DEFAULT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
    lease_until text,
    worker_id text,
    idempotency_key text NOT NULL,
    payload_json text NOT NULL DEFAULT '{}',
    retry_count integer NOT NULL DEFAULT 0,
    max_retries integer NOT NULL DEFAULT 3,
    error_message text,
    last_error_at text,
    branch text DEFAULT 'main',
    metadata text DEFAULT '{}',
    CHECK (CASE
        WHEN item_type IN ('content', 'file', 'library') THEN op IN ('ingest', 'update', 'delete')
        WHEN item_type IN ('folder', 'project') THEN op IN ('ingest', 'delete', 'scan')
        WHEN item_type = 'rename' THEN op = 'update'
        ELSE op = 'delete'
    END)
);

CREATE INDEX idx_unified_queue_dequeue ON unified_queue (status, priority DESC, created_at);
CREATE UNIQUE INDEX idx_unified_queue_idempotency ON unified_queue (idempotency_key)
WHERE status IN ('pending', 'in_progress');
CREATE INDEX idx_unified_queue_lease_expiry ON unified_queue (lease_until)
WHERE status = 'in_progress';
CREATE INDEX idx_unified_queue_collection_tenant ON unified_queue (collection, tenant_id);
CREATE INDEX idx_unified_queue_item_type ON unified_queue (item_type, status);
CREATE INDEX idx_unified_queue_failed ON unified_queue (status, last_error_at)
WHERE status = 'failed';
CREATE INDEX idx_unified_queue_worker ON unified_queue (worker_id, status)
WHERE status = 'in_progress';

-- The job of each row. `token` is that of the newest claim made in SQL; -1 while the job exists but
-- its row does not yet.
CREATE TABLE unified_queue_job (
    job_id bigint PRIMARY KEY,
    queue_id text NOT NULL UNIQUE,
    token bigint NOT NULL DEFAULT 0
);

-- Changes of the totals. Rows that all transactions update would serialise them, so readers add up the
-- changes; now and then a writer merges them.
CREATE TABLE unified_queue_delta (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id text NOT NULL,
    collection text NOT NULL,
    item_type text NOT NULL,
    status text NOT NULL,
    n bigint NOT NULL
);

CREATE VIEW unified_queue_total AS
SELECT tenant_id, collection, item_type, status, sum(n)::bigint AS n FROM (
    SELECT tenant_id, collection, item_type, status, n FROM unified_queue_delta
    UNION ALL
    SELECT q.tenant_id, q.collection, q.item_type, q.status, 1 FROM newcomer AS c
    JOIN unified_queue AS q ON q.queue_id = c.row_id WHERE c.source = 'unified_queue'
) AS t
GROUP BY tenant_id, collection, item_type, status;

INSERT INTO queue (name) VALUES ('ingest') ON CONFLICT DO NOTHING;

-- Merge all changes into one row; skip those that another transaction is merging.
CREATE FUNCTION unified_queue_fold() RETURNS void LANGUAGE sql VOLATILE
SET search_path FROM CURRENT AS $$
    WITH gone AS (
        DELETE FROM unified_queue_delta WHERE id IN (
            SELECT id FROM unified_queue_delta ORDER BY id LIMIT 10000 FOR UPDATE SKIP LOCKED
        ) RETURNING *
    )
    INSERT INTO unified_queue_delta (tenant_id, collection, item_type, status, n)
    SELECT tenant_id, collection, item_type, status, sum(n) FROM gone
    GROUP BY tenant_id, collection, item_type, status HAVING sum(n) <> 0
$$;

-- A timestamp in any format, as microseconds since 1970.
CREATE FUNCTION unified_queue_micros(stamp text) RETURNS bigint LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT AS $$
BEGIN
    IF stamp ~ '(Z|[+-]\d\d(:?\d\d)?)$' AND stamp ~ ':' THEN
        RETURN (extract(epoch FROM stamp::timestamptz) * 1000000)::bigint;
    END IF;
    RETURN (extract(epoch FROM stamp::timestamp AT TIME ZONE 'UTC') * 1000000)::bigint;
EXCEPTION WHEN others THEN
    RAISE EXCEPTION 'unified_queue: lease_until is no timestamp: %', stamp;
END $$;

CREATE FUNCTION unified_queue_stamp(micros bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT to_char(
        to_timestamp(micros / 1000000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'
    )
$$;

CREATE FUNCTION unified_queue_json(body text) RETURNS json LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN body::json;
EXCEPTION WHEN others THEN
    RETURN NULL;
END $$;

CREATE FUNCTION unified_queue_body(q unified_queue) RETURNS json LANGUAGE sql STABLE
SET search_path FROM CURRENT AS $$
    SELECT json_build_object(
        'queue_id', q.queue_id, 'item_type', q.item_type, 'op', q.op, 'tenant_id', q.tenant_id,
        'collection', q.collection, 'branch', coalesce(q.branch, 'main'),
        'payload', unified_queue_json(q.payload_json),
        'metadata', unified_queue_json(coalesce(q.metadata, '{}'))
    )
$$;

-- The state of a row's job. `outside`: a program that uses only SQL holds it. `over`: its lease has
-- expired. `spent`: no attempts remain.
CREATE FUNCTION unified_queue_state(
    item text, OUT job_id bigint, OUT stage integer, OUT worker text, OUT priority integer,
    OUT status text, OUT lease bigint, OUT outside boolean, OUT over boolean, OUT spent boolean
) LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT
        j.id, j.stage, j.worker, j.priority,
        CASE WHEN j.stage < 3 THEN 'pending' WHEN j.stage = 3 THEN 'in_progress'
        WHEN j.stage = 4 THEN 'done' ELSE 'failed' END,
        j.expires_at, k.token = j.token,
        j.expires_at <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        j.cancel_requested OR j.attempt >= coalesce((j.retry::json ->> 'attempts')::integer, 3)
    FROM unified_queue_job AS k
    CROSS JOIN LATERAL (SELECT * FROM job AS a WHERE a.id = k.job_id OFFSET 0) AS j
    WHERE k.queue_id = item
$$;

-- The job of a row, as `call_add` expects it.
CREATE FUNCTION unified_queue_wanted(q unified_queue, tries integer, came bigint) RETURNS json
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    body json := unified_queue_body(q);
    said json := body -> 'payload';
    place text := CASE q.item_type
        WHEN 'file' THEN said ->> 'file_path'
        WHEN 'folder' THEN said ->> 'folder_path'
        WHEN 'project' THEN said ->> 'project_root'
        WHEN 'library' THEN 'library:' || (said ->> 'library_name') || ':'
            || coalesce(said ->> 'library_version', '')
        WHEN 'content' THEN coalesce(said ->> 'document_id', 'content:' || q.idempotency_key)
        WHEN 'delete_document' THEN said ->> 'document_id'
    END;
BEGIN
    RETURN json_build_object(
        'queue', 'ingest', 'task', 'ingest.item', 'priority', q.priority,
        'lease_time', 300000000, 'tenant', nullif(q.tenant_id, ''), 'attempt', tries,
        'run_at', CASE WHEN q.status = 'pending' THEN unified_queue_micros(q.lease_until) END,
        'key', right(
            q.tenant_id || chr(31) || q.collection || chr(31) || coalesce(q.branch, 'main')
            || chr(31) || place,
            1000
        ),
        'dedupe', 'ingest:' || q.idempotency_key,
        'retry', json_build_object('attempts', greatest(q.max_retries, 0) + 1)::text,
        'body', body::text, 'at', came
    );
END $$;

-- Create the job of a row.
CREATE FUNCTION unified_queue_adopt(q unified_queue, tries integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM unified_queue_job WHERE queue_id = q.queue_id;
    INSERT INTO unified_queue_job (job_id, queue_id)
    VALUES (call_add(unified_queue_wanted(q, tries, NULL), 'sql'), q.queue_id);
END $$;

-- Create the jobs of externally inserted rows. Rows are looked up one by one, because otherwise
-- PostgreSQL may scan all of `gone` for each.
CREATE FUNCTION unified_queue_come() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    items text[];
    wanted json;
BEGIN
    INSERT INTO unified_queue_delta (tenant_id, collection, item_type, status, n)
    SELECT (q.r).tenant_id, (q.r).collection, (q.r).item_type, (q.r).status, count(*)
    FROM gone AS c
    CROSS JOIN LATERAL (SELECT r FROM unified_queue AS r WHERE r.queue_id = c.row_id OFFSET 0) AS q
    WHERE c.source = 'unified_queue' GROUP BY 1, 2, 3, 4;
    SELECT
        array_agg(c.row_id ORDER BY c.id),
        json_agg(unified_queue_wanted(q.r, greatest((q.r).retry_count, 0), c.at) ORDER BY c.id)
    INTO items, wanted
    FROM gone AS c
    CROSS JOIN LATERAL (SELECT r FROM unified_queue AS r WHERE r.queue_id = c.row_id OFFSET 0) AS q
    WHERE c.source = 'unified_queue' AND (q.r).status = 'pending';
    IF items IS NOT NULL THEN
        INSERT INTO unified_queue_job (job_id, queue_id)
        SELECT * FROM ROWS FROM (call_add_all(wanted, 'sql'), unnest(items));
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER unified_queue_came AFTER DELETE ON newcomer REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION unified_queue_come();

CREATE FUNCTION unified_queue_take(item text, this bigint, who text, until text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    taken bigint := call_claim(this, coalesce(who, 'sql'), unified_queue_micros(until));
BEGIN
    IF taken IS NULL THEN
        RAISE EXCEPTION 'unified_queue: % cannot be taken now', item;
    END IF;
    UPDATE unified_queue_job SET token = taken WHERE queue_id = item;
END $$;

CREATE FUNCTION unified_queue_count(q unified_queue, n integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO unified_queue_delta (tenant_id, collection, item_type, status, n)
    VALUES (q.tenant_id, q.collection, q.item_type, q.status, n);
    IF random() < 0.001 THEN
        PERFORM unified_queue_fold();
    END IF;
END $$;

-- Record the row, or create its job at once if that may be refused. Our own rows already have jobs.
CREATE FUNCTION unified_queue_added() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM unified_queue_job WHERE queue_id = NEW.queue_id AND token = -1) THEN
        PERFORM unified_queue_count(NEW, 1);
    ELSIF NEW.status <> 'in_progress' AND NEW.lease_until IS NULL
    AND NOT EXISTS (SELECT 1 FROM queue WHERE name = 'ingest' AND max_pending IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM seal) THEN
        INSERT INTO newcomer (source, row_id, at) VALUES ('unified_queue', NEW.queue_id, enter(0));
        PERFORM pg_notify(TG_TABLE_SCHEMA, '');
    ELSE
        IF adopt() IS NULL THEN
            RAISE EXCEPTION 'penstock: others are at the queue; try again' USING ERRCODE = '55P03';
        END IF;
        PERFORM unified_queue_count(NEW, 1);
        IF NEW.status IN ('pending', 'in_progress') THEN
            PERFORM unified_queue_adopt(NEW, greatest(NEW.retry_count, 0));
        END IF;
        IF NEW.status = 'in_progress' THEN
            PERFORM unified_queue_take(
                NEW.queue_id, (SELECT job_id FROM unified_queue_job WHERE queue_id = NEW.queue_id),
                NEW.worker_id, NEW.lease_until
            );
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER unified_queue_added AFTER INSERT ON unified_queue
FOR EACH ROW EXECUTE FUNCTION unified_queue_added();

-- An externally inserted row gets its job before it can change. Triggers run in the order of their
-- names: this is the first. While another transaction creates the job, the row stays unchanged.
CREATE FUNCTION unified_queue_know() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM unified_queue_job WHERE queue_id = OLD.queue_id)
    AND adopt() IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;

CREATE TRIGGER unified_queue_a_newcomer BEFORE UPDATE OR DELETE ON unified_queue
FOR EACH ROW EXECUTE FUNCTION unified_queue_know();

-- Changes that are not allowed: the row stays unchanged, as if the statement had not matched it. A late
-- worker is recognised by its job, which another worker holds by now, and leaves an entry in the log.
CREATE FUNCTION unified_queue_refuse() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
DECLARE
    s record;
    until bigint := unified_queue_micros(NEW.lease_until);
    refused boolean;
BEGIN
    SELECT * INTO s FROM unified_queue_state(OLD.queue_id);
    IF s.job_id IS NULL OR s.status = NEW.status AND (
        s.status <> 'in_progress'
        OR NEW.worker_id IS NOT DISTINCT FROM s.worker
        AND abs(coalesce(until, 0) - s.lease) <= 1000
    ) THEN
        RETURN NEW;
    END IF;
    IF s.status = 'in_progress' THEN
        -- Two transactions that release expired leases do not wait for each other.
        IF NOT call_lock(s.job_id) AND s.over THEN
            RETURN NULL;
        END IF;
        SELECT * INTO s FROM unified_queue_state(OLD.queue_id);
    END IF;
    refused := CASE s.status
        WHEN 'pending' THEN NEW.status IN ('in_progress', 'done')
        WHEN 'in_progress' THEN CASE
            WHEN NEW.status = 'pending' THEN NOT (s.outside OR s.over)
            WHEN NEW.status <> 'in_progress' THEN NOT s.outside
            WHEN NEW.worker_id IS DISTINCT FROM s.worker
            THEN NOT (s.over AND NOT s.spent OR s.outside AND s.worker = 'sql')
            ELSE NOT s.outside AND abs(coalesce(until, 0) - s.lease) > 1000
        END
        WHEN 'done' THEN NEW.status IN ('in_progress', 'failed')
        ELSE NEW.status IN ('in_progress', 'done')
    END;
    IF NOT refused THEN
        RETURN NEW;
    ELSIF s.status = 'pending' THEN
        RETURN CASE WHEN call_ready(s.job_id) THEN NEW END;
    ELSIF s.status = 'in_progress' THEN
        PERFORM call_steer(
            'refuse', s.job_id, NULL, 'the row cannot become ' || NEW.status,
            coalesce(NEW.worker_id, 'sql')
        );
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER unified_queue_refused BEFORE UPDATE OF status, lease_until, worker_id
ON unified_queue FOR EACH ROW EXECUTE FUNCTION unified_queue_refuse();

CREATE FUNCTION unified_queue_follow() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
DECLARE
    s record;
    until bigint := unified_queue_micros(NEW.lease_until);
    has_error boolean := NEW.error_message IS NOT NULL
        AND NEW.error_message IS DISTINCT FROM OLD.error_message;
BEGIN
    SELECT * INTO s FROM unified_queue_state(NEW.queue_id);
    IF s.status = NEW.status AND s.priority = NEW.priority AND (
        s.status <> 'in_progress'
        OR NEW.worker_id IS NOT DISTINCT FROM s.worker
        AND abs(coalesce(until, 0) - s.lease) <= 1000
    ) THEN
        RETURN NULL;
    END IF;
    IF s.status = 'failed' AND NEW.status = 'pending' THEN
        PERFORM call_steer('reset', s.job_id, NULL, 'its row became pending', 'sql');
        SELECT * INTO s FROM unified_queue_state(NEW.queue_id);
    ELSIF NEW.status IN ('pending', 'in_progress') AND coalesce(s.status, 'done') = 'done' THEN
        PERFORM unified_queue_adopt(NEW, 0);
        SELECT * INTO s FROM unified_queue_state(NEW.queue_id);
    ELSIF s.job_id IS NULL THEN
        RETURN NULL;
    END IF;
    -- An expired lease: the item is released, or claimed by another worker. Its own worker may still
    -- report an error as long as no other worker holds it.
    IF s.status = 'in_progress' AND s.over AND (
        NEW.status = 'in_progress' AND NEW.worker_id IS DISTINCT FROM s.worker
        OR NEW.status = 'pending' AND NOT (s.outside AND has_error)
    ) THEN
        PERFORM call_settle('expire', s.job_id, NULL, NULL, false, 'sql');
        SELECT * INTO s FROM unified_queue_state(NEW.queue_id);
    END IF;
    IF s.status = 'pending' AND NEW.status IN ('in_progress', 'done') THEN
        PERFORM unified_queue_take(
            NEW.queue_id, s.job_id, NEW.worker_id,
            CASE WHEN NEW.status = 'in_progress' THEN NEW.lease_until END
        );
        SELECT * INTO s FROM unified_queue_state(NEW.queue_id);
    END IF;
    IF s.status = 'in_progress' AND NEW.status = 'in_progress' THEN
        IF s.outside AND s.worker = 'sql' AND NEW.worker_id IS NOT NULL THEN
            UPDATE job_active SET worker = NEW.worker_id WHERE id = s.job_id;
        END IF;
        IF s.outside AND abs(coalesce(until, 0) - s.lease) > 1000 THEN
            PERFORM call_renew(s.job_id, until);
        END IF;
    ELSIF s.status = 'in_progress' AND NEW.status = 'done' THEN
        PERFORM call_settle('done', s.job_id, NULL, NULL, false, NULL);
    ELSIF s.status = 'in_progress' AND NEW.status = 'pending'
    AND NEW.lease_until IS NOT DISTINCT FROM OLD.lease_until THEN
        until := NULL;
    END IF;
    IF s.status = 'in_progress' AND NEW.status IN ('done', 'in_progress') THEN
        RETURN NULL;
    ELSIF s.status = 'in_progress' AND (
        NEW.status = 'failed' OR NEW.retry_count > OLD.retry_count OR has_error
    ) THEN
        -- Another attempt, not before `lease_until` if it was changed.
        PERFORM call_settle(
            'fail', s.job_id, until, coalesce(NEW.error_message, 'failed'),
            NEW.status = 'failed' AND NOT s.spent, NULL
        );
    ELSIF s.status = 'in_progress' THEN
        PERFORM call_settle('release', s.job_id, until, NULL, false, NULL);
    ELSIF s.status = 'pending' AND NEW.status = 'failed' THEN
        PERFORM call_steer(
            'cancel', s.job_id, NULL, coalesce(NEW.error_message, 'its row became failed'), 'sql'
        );
    ELSIF s.status = 'pending' AND s.priority <> NEW.priority THEN
        PERFORM call_steer('reprioritise', s.job_id, NEW.priority, NULL, 'sql');
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER unified_queue_changed AFTER UPDATE OF status, lease_until, worker_id, priority
ON unified_queue FOR EACH ROW EXECUTE FUNCTION unified_queue_follow();

CREATE FUNCTION unified_queue_recount() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM unified_queue_count(OLD, -1), unified_queue_count(NEW, 1);
    RETURN NULL;
END $$;

CREATE TRIGGER unified_queue_recounted
AFTER UPDATE OF tenant_id, collection, item_type, status ON unified_queue FOR EACH ROW
WHEN (
    (OLD.tenant_id, OLD.collection, OLD.item_type, OLD.status)
    <> (NEW.tenant_id, NEW.collection, NEW.item_type, NEW.status)
)
EXECUTE FUNCTION unified_queue_recount();

-- The content and the names of a waiting item may still be changed.
CREATE FUNCTION unified_queue_rewrite() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE unified_queue_job SET queue_id = NEW.queue_id
    WHERE queue_id = OLD.queue_id AND OLD.queue_id <> NEW.queue_id;
    UPDATE job_active SET
        dedupe = 'ingest:' || NEW.idempotency_key, body = unified_queue_body(NEW)::text
    WHERE stage < 3
    AND id = (SELECT job_id FROM unified_queue_job WHERE queue_id = NEW.queue_id);
    RETURN NULL;
END $$;

CREATE TRIGGER unified_queue_rewritten
AFTER UPDATE OF queue_id, item_type, op, tenant_id, collection, branch, idempotency_key,
payload_json, metadata ON unified_queue FOR EACH ROW EXECUTE FUNCTION unified_queue_rewrite();

CREATE FUNCTION unified_queue_delete() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
DECLARE
    s record;
BEGIN
    SELECT * INTO s FROM unified_queue_state(OLD.queue_id);
    IF s.stage = 3 AND s.outside THEN
        PERFORM call_settle('done', s.job_id, NULL, NULL, false, NULL);
    ELSIF s.stage < 4 THEN
        PERFORM call_steer('cancel', s.job_id, NULL, 'its row was deleted', 'sql');
    END IF;
    PERFORM unified_queue_count(OLD, -1);
    DELETE FROM unified_queue_job WHERE queue_id = OLD.queue_id;
    RETURN NULL;
END $$;

CREATE TRIGGER unified_queue_deleted AFTER DELETE ON unified_queue
FOR EACH ROW EXECUTE FUNCTION unified_queue_delete();

-- mirror
UPDATE unified_queue AS q SET
    status = n.status, lease_until = n.lease_until, worker_id = n.worker_id,
    retry_count = n.retry_count, priority = n.priority, error_message = n.error_message,
    last_error_at = CASE
        WHEN NEW.stage = 5
        OR NEW.error IS NOT NULL AND q.error_message IS DISTINCT FROM NEW.error
        AND q.error_message IS DISTINCT FROM {sentence(NEW.error)}
        THEN unified_queue_stamp((extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
        ELSE q.last_error_at
    END,
    updated_at = unified_queue_stamp((extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
FROM unified_queue_job AS k
CROSS JOIN LATERAL (SELECT * FROM unified_queue AS r WHERE r.queue_id = k.queue_id OFFSET 0) AS o
CROSS JOIN LATERAL (
    SELECT
        CASE WHEN NEW.stage < 3 THEN 'pending' WHEN NEW.stage = 3 THEN 'in_progress'
        WHEN NEW.stage = 4 THEN 'done' ELSE 'failed' END AS status,
        CASE
            WHEN NEW.stage = 3
            AND abs(coalesce(unified_queue_micros(o.lease_until), 0) - NEW.expires_at) <= 1000
            THEN o.lease_until
            WHEN NEW.stage = 3 THEN unified_queue_stamp(NEW.expires_at)
            WHEN NEW.stage = 1 THEN unified_queue_stamp(NEW.run_at)
            WHEN NEW.stage = 2
            AND NEW.run_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
            THEN unified_queue_stamp(NEW.run_at)
        END AS lease_until,
        NEW.worker AS worker_id,
        greatest(
            0,
            NEW.attempt
            - (NEW.stage IN (3, 4) OR NEW.stage = 6 AND NEW.started_at IS NOT NULL)::integer
        ) AS retry_count,
        NEW.priority::integer AS priority,
        -- One sentence of our own errors; messages that a program has written are kept.
        coalesce(
            CASE WHEN NEW.error = o.error_message THEN o.error_message
            ELSE {sentence(NEW.error)} END,
            o.error_message,
            CASE NEW.stage WHEN 6 THEN 'cancelled' WHEN 7 THEN 'superseded' END
        ) AS error_message
) AS n
WHERE k.job_id = NEW.id AND k.token <> -1 AND q.queue_id = k.queue_id
AND (q.status, q.lease_until, q.worker_id, q.retry_count, q.priority, q.error_message)
IS DISTINCT FROM
(n.status, n.lease_until, n.worker_id, n.retry_count, n.priority, n.error_message)
