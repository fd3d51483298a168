-- The table `unified_queue` in SQLite. Macros: `{millis(x)}` is a timestamp in any format as
-- milliseconds since 1970; `{stamp(x)}` formats microseconds as in our own rows; `{sentence(x)}` is the
-- first line of a job's error without the names of our own classes.
--
-- A row and its job agree at every moment. Triggers translate a change of a row into an operation of
-- the queue, or leave the row unchanged if it is not allowed; a mirror translates a change of a job into
-- a change of its row. Each of them does nothing if the other side is already up to date. The job of a
-- new row is created before anything reads jobs or changes the row: see `penstock_newcomer`.
-- No statement in a trigger may cause a conflict, because the conflict clause of the outer statement,
-- such as INSERT OR REPLACE, would apply to it.

-- Another program may have created the table before. Its rows are imported at the end of this step.
CREATE TABLE IF NOT EXISTS unified_queue (
    queue_id, item_type, op, tenant_id, collection, priority, status, created_at, updated_at,
    lease_until, worker_id, idempotency_key, payload_json, retry_count, max_retries, error_message,
    last_error_at, branch, metadata
);
DROP INDEX IF EXISTS idx_unified_queue_dequeue;
DROP INDEX IF EXISTS idx_unified_queue_idempotency;
DROP INDEX IF EXISTS idx_unified_queue_lease_expiry;
DROP INDEX IF EXISTS idx_unified_queue_collection_tenant;
DROP INDEX IF EXISTS idx_unified_queue_item_type;
DROP INDEX IF EXISTS idx_unified_queue_failed;
DROP INDEX IF EXISTS idx_unified_queue_worker;
ALTER TABLE unified_queue RENAME TO unified_queue_before;

CREATE TABLE unified_queue (
    queue_id TEXT NOT NULL PRIMARY KEY DEFAULT (lower(hex(randomblob(16)))),
    item_type TEXT NOT NULL CHECK (item_type IN (
        'content', 'file', 'folder', 'project', 'library', 'delete_tenant', 'delete_document', 'rename'
    )),
    op TEXT NOT NULL CHECK (op IN ('ingest', 'update', 'delete', 'scan')),
    tenant_id TEXT NOT NULL,
    collection TEXT NOT NULL,
    priority INTEGER NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 10),
    status TEXT NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'in_progress', 'done', 'failed')),
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    lease_until TEXT,
    worker_id TEXT,
    idempotency_key TEXT NOT NULL,
    payload_json TEXT NOT NULL DEFAULT '{}',
    retry_count INTEGER NOT NULL DEFAULT 0,
    max_retries INTEGER NOT NULL DEFAULT 3,
    error_message TEXT,
    last_error_at TEXT,
    branch TEXT DEFAULT 'main',
    metadata TEXT DEFAULT '{}',
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
    job_id INTEGER PRIMARY KEY,
    queue_id TEXT NOT NULL UNIQUE,
    token INTEGER NOT NULL DEFAULT 0
);

-- Maintained with every change of a row, so that nothing is counted except rows without a job.
CREATE TABLE unified_queue_kept (
    tenant_id TEXT NOT NULL,
    collection TEXT NOT NULL,
    item_type TEXT NOT NULL,
    status TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, collection, item_type, status)
) WITHOUT ROWID;

CREATE VIEW unified_queue_total AS
SELECT tenant_id, collection, item_type, status, sum(n) AS n FROM (
    SELECT tenant_id, collection, item_type, status, n FROM unified_queue_kept
    UNION ALL
    SELECT q.tenant_id, q.collection, q.item_type, q.status, 1 FROM penstock_newcomer AS c
    CROSS JOIN unified_queue AS q ON q.queue_id = c.row_id WHERE c.source = 'unified_queue'
)
GROUP BY tenant_id, collection, item_type, status;

CREATE VIEW unified_queue_count (tenant_id, collection, item_type, status, n) AS
SELECT NULL, NULL, NULL, NULL, NULL WHERE false;

CREATE TRIGGER unified_queue_counted INSTEAD OF INSERT ON unified_queue_count
BEGIN
    INSERT INTO unified_queue_kept (tenant_id, collection, item_type, status, n)
    VALUES (NEW.tenant_id, NEW.collection, NEW.item_type, NEW.status, NEW.n)
    ON CONFLICT DO UPDATE SET n = n + excluded.n;
END;

-- The state of a row's job. `outside`: a program that uses only SQL holds it. `over`: its lease has
-- expired. `spent`: no attempts remain.
CREATE VIEW unified_queue_state AS
SELECT
    k.queue_id, j.id AS job_id, j.stage, j.worker, j.priority,
    CASE WHEN j.stage < 3 THEN 'pending' WHEN j.stage = 3 THEN 'in_progress'
    WHEN j.stage = 4 THEN 'done' ELSE 'failed' END AS status,
    (j.expires_at + 500) / 1000 AS lease,
    k.token = j.token AS outside,
    j.expires_at <= (SELECT at FROM penstock_now) AS over,
    j.cancel_requested OR j.attempt >= ifnull(j.retry ->> 'attempts', 3) AS spent
FROM unified_queue_job AS k CROSS JOIN penstock_job AS j ON j.id = k.job_id;

-- Create the job of a row without an unfinished job. This avoids INSERT with SELECT, for which SQLite
-- would create a table in memory each time.
CREATE VIEW unified_queue_adopt (
    queue_id, item_type, op, tenant_id, collection, branch, priority, status, lease_until,
    idempotency_key, retry_count, max_retries, payload, metadata, at
) AS SELECT
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
WHERE false;

CREATE TRIGGER unified_queue_adopted INSTEAD OF INSERT ON unified_queue_adopt
WHEN NEW.status IN ('pending', 'in_progress') AND NOT EXISTS (
    SELECT 1 FROM unified_queue_job AS k CROSS JOIN penstock_job AS j ON j.id = k.job_id
    WHERE k.queue_id = NEW.queue_id AND j.stage <> 4
)
BEGIN
    DELETE FROM unified_queue_job WHERE queue_id = NEW.queue_id;
    INSERT INTO penstock_add (
        queue, task, priority, run_at, lease_time, key, dedupe, tenant, retry, attempt, body, at
    )
    VALUES (
        'ingest', 'ingest.item', NEW.priority,
        CASE WHEN NEW.status = 'pending' THEN {millis(NEW.lease_until)} * 1000 END,
        300000000,
        substr(
            NEW.tenant_id || char(31) || NEW.collection || char(31) || ifnull(NEW.branch, 'main')
            || char(31) || CASE NEW.item_type
                WHEN 'file' THEN NEW.payload ->> '$.file_path'
                WHEN 'folder' THEN NEW.payload ->> '$.folder_path'
                WHEN 'project' THEN NEW.payload ->> '$.project_root'
                WHEN 'library' THEN 'library:' || (NEW.payload ->> '$.library_name') || ':'
                    || ifnull(NEW.payload ->> '$.library_version', '')
                WHEN 'content' THEN
                    ifnull(NEW.payload ->> '$.document_id', 'content:' || NEW.idempotency_key)
                WHEN 'delete_document' THEN NEW.payload ->> '$.document_id'
            END,
            -1000
        ),
        -- A job of another kind with this key is not an item and does not block one.
        CASE WHEN NOT EXISTS (
            SELECT 1 FROM penstock_job
            WHERE dedupe = 'ingest:' || NEW.idempotency_key AND dedupe IS NOT NULL AND stage < 3
        ) AND NOT EXISTS (
            SELECT 1 FROM penstock_job
            WHERE dedupe = 'ingest:' || NEW.idempotency_key AND dedupe IS NOT NULL AND stage = 3
        ) THEN 'ingest:' || NEW.idempotency_key END,
        nullif(NEW.tenant_id, ''),
        json_object('attempts', max(NEW.max_retries, 0) + 1), max(NEW.retry_count, 0),
        json_object(
            'queue_id', NEW.queue_id, 'item_type', NEW.item_type, 'op', NEW.op,
            'tenant_id', NEW.tenant_id, 'collection', NEW.collection,
            'branch', ifnull(NEW.branch, 'main'), 'payload', json(NEW.payload),
            'metadata', json(CASE WHEN json_valid(NEW.metadata) THEN NEW.metadata
                WHEN NEW.metadata IS NULL THEN '{}' END)
        ),
        NEW.at
    );
    INSERT INTO unified_queue_job (job_id, queue_id)
    VALUES ((SELECT max(id) FROM penstock_job), NEW.queue_id);
END;

-- Claim a row's job for a program that uses only SQL.
CREATE VIEW unified_queue_take (queue_id, worker_id, lease_until) AS
SELECT NULL, NULL, NULL WHERE false;

CREATE TRIGGER unified_queue_taken INSTEAD OF INSERT ON unified_queue_take
WHEN NEW.queue_id IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'unified_queue: lease_until is no timestamp')
    WHERE NEW.lease_until IS NOT NULL AND {millis(NEW.lease_until)} IS NULL;
    INSERT INTO penstock_call (verb, job_id, worker, expires_at)
    SELECT 'claim', job_id, NEW.worker_id, {millis(NEW.lease_until)} * 1000
    FROM unified_queue_job WHERE queue_id = NEW.queue_id;
    UPDATE unified_queue_job SET token = (SELECT token FROM penstock_job WHERE id = job_id)
    WHERE queue_id = NEW.queue_id;
END;

-- INSERT OR REPLACE has removed rows without firing triggers.
CREATE VIEW unified_queue_replace (queue_id, idempotency_key) AS SELECT NULL, NULL WHERE false;

CREATE TRIGGER unified_queue_replaced INSTEAD OF INSERT ON unified_queue_replace
WHEN EXISTS (SELECT 1 FROM unified_queue_job WHERE queue_id = NEW.queue_id AND token <> -1)
OR EXISTS (
    SELECT 1 FROM penstock_job AS j CROSS JOIN unified_queue_job AS k ON k.job_id = j.id
    WHERE j.dedupe = 'ingest:' || NEW.idempotency_key AND j.dedupe IS NOT NULL AND j.stage < 3
    AND k.queue_id <> NEW.queue_id
)
OR EXISTS (
    SELECT 1 FROM penstock_job AS j CROSS JOIN unified_queue_job AS k ON k.job_id = j.id
    WHERE j.dedupe = 'ingest:' || NEW.idempotency_key AND j.dedupe IS NOT NULL AND j.stage = 3
    AND k.queue_id <> NEW.queue_id
)
BEGIN
    SELECT RAISE(ABORT, 'unified_queue: the item is in progress') FROM unified_queue_state AS s
    WHERE s.stage = 3 AND (
        s.queue_id = NEW.queue_id
        OR s.job_id IN (
            SELECT id FROM penstock_job
            WHERE dedupe = 'ingest:' || NEW.idempotency_key AND dedupe IS NOT NULL AND stage = 3
        )
    );
    INSERT INTO unified_queue_count
    SELECT p.body ->> 'tenant_id', p.body ->> 'collection', p.body ->> 'item_type', s.status, -1
    FROM unified_queue_state AS s CROSS JOIN penstock_payload AS p ON p.job_id = s.job_id
    WHERE s.queue_id = NEW.queue_id OR s.job_id IN (
        SELECT id FROM penstock_job
        WHERE dedupe = 'ingest:' || NEW.idempotency_key AND dedupe IS NOT NULL AND stage < 3
    );
    -- The new row does not mirror the old job.
    UPDATE unified_queue_job SET token = -1 WHERE queue_id = NEW.queue_id;
    DELETE FROM unified_queue_job WHERE queue_id <> NEW.queue_id AND job_id IN (
        SELECT id FROM penstock_job
        WHERE dedupe = 'ingest:' || NEW.idempotency_key AND dedupe IS NOT NULL AND stage < 3
    );
    INSERT INTO penstock_call (verb, job_id, reason)
    SELECT 'cancel', id, 'its row was replaced' FROM penstock_job
    WHERE queue = 'ingest' AND stage < 3 AND id IN (
        SELECT job_id FROM unified_queue_job WHERE queue_id = NEW.queue_id
        UNION ALL
        SELECT id FROM penstock_job
        WHERE dedupe = 'ingest:' || NEW.idempotency_key AND dedupe IS NOT NULL AND stage < 3
    );
    DELETE FROM unified_queue_job WHERE queue_id = NEW.queue_id;
END;

-- Create the job of an externally inserted row, given the row and the time of its insert.
CREATE VIEW unified_queue_newcomer (
    queue_id, item_type, op, tenant_id, collection, branch, priority, status, lease_until,
    worker_id, idempotency_key, payload_json, retry_count, max_retries, metadata, at
) AS SELECT
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
WHERE false;

CREATE TRIGGER unified_queue_arrived INSTEAD OF INSERT ON unified_queue_newcomer
BEGIN
    INSERT INTO unified_queue_replace VALUES (NEW.queue_id, NEW.idempotency_key);
    INSERT INTO unified_queue_count
    VALUES (NEW.tenant_id, NEW.collection, NEW.item_type, NEW.status, 1);
    INSERT INTO unified_queue_adopt VALUES (
        NEW.queue_id, NEW.item_type, NEW.op, NEW.tenant_id, NEW.collection, NEW.branch,
        NEW.priority, NEW.status, NEW.lease_until, NEW.idempotency_key, NEW.retry_count,
        NEW.max_retries, CASE WHEN json_valid(NEW.payload_json) THEN NEW.payload_json END,
        NEW.metadata, NEW.at
    );
    INSERT INTO unified_queue_take VALUES (
        CASE WHEN NEW.status = 'in_progress' THEN NEW.queue_id END, NEW.worker_id, NEW.lease_until
    );
END;

CREATE TRIGGER unified_queue_came AFTER DELETE ON penstock_newcomer
WHEN OLD.source = 'unified_queue'
BEGIN
    INSERT INTO unified_queue_newcomer
    SELECT
        queue_id, item_type, op, tenant_id, collection, branch, priority, status, lease_until,
        worker_id, idempotency_key, payload_json, retry_count, max_retries, metadata, OLD.at
    FROM unified_queue WHERE queue_id = OLD.row_id;
END;

-- Create the job at once if that may be refused, or if the row replaces another one.
CREATE TRIGGER unified_queue_added AFTER INSERT ON unified_queue
WHEN (SELECT token FROM unified_queue_job WHERE queue_id = NEW.queue_id) IS NOT -1
BEGIN
    INSERT INTO penstock_newcomer (source, row_id, at, at_once) VALUES (
        'unified_queue', NEW.queue_id, (SELECT at FROM penstock_now),
        NEW.status = 'in_progress'
        OR 'blob' IN (
            typeof(NEW.queue_id), typeof(NEW.tenant_id), typeof(NEW.collection),
            typeof(NEW.branch), typeof(NEW.idempotency_key), typeof(NEW.payload_json),
            typeof(NEW.metadata), typeof(NEW.max_retries), typeof(NEW.retry_count)
        )
        OR EXISTS (SELECT 1 FROM unified_queue_job WHERE queue_id = NEW.queue_id)
        OR EXISTS (
            SELECT 1 FROM penstock_job
            WHERE dedupe = 'ingest:' || NEW.idempotency_key AND dedupe IS NOT NULL AND stage < 3
        )
        OR EXISTS (
            SELECT 1 FROM penstock_job
            WHERE dedupe = 'ingest:' || NEW.idempotency_key AND dedupe IS NOT NULL AND stage = 3
        )
        OR EXISTS (SELECT 1 FROM penstock_queue WHERE name = 'ingest' AND max_pending IS NOT NULL)
        OR EXISTS (SELECT 1 FROM penstock_seal)
    );
END;

-- Our own rows already have jobs.
CREATE TRIGGER unified_queue_followed AFTER INSERT ON unified_queue
WHEN (SELECT token FROM unified_queue_job WHERE queue_id = NEW.queue_id) IS -1
BEGIN
    INSERT INTO unified_queue_count
    VALUES (NEW.tenant_id, NEW.collection, NEW.item_type, NEW.status, 1);
END;

-- A row that INSERT OR REPLACE removes gets its job first, so that the log has both.
CREATE TRIGGER unified_queue_met BEFORE INSERT ON unified_queue
WHEN EXISTS (SELECT 1 FROM penstock_newcomer) AND (
    EXISTS (SELECT 1 FROM unified_queue WHERE queue_id = NEW.queue_id)
    OR EXISTS (
        SELECT 1 FROM unified_queue
        WHERE idempotency_key = NEW.idempotency_key AND status IN ('pending', 'in_progress')
    )
)
BEGIN
    DELETE FROM penstock_newcomer;
END;

-- Changes that are not allowed: the row stays unchanged, as if the statement had not matched it. A late
-- worker is recognised by its job, which another worker holds by now, and leaves an entry in the log. An
-- externally inserted row gets its job here, because another trigger might run first.
CREATE TRIGGER unified_queue_refused BEFORE UPDATE ON unified_queue
WHEN EXISTS (SELECT 1 FROM penstock_newcomer)
AND NOT EXISTS (SELECT 1 FROM unified_queue_job WHERE queue_id = OLD.queue_id)
OR (
    SELECT CASE s.status
        WHEN 'pending' THEN NEW.status IN ('in_progress', 'done')
            AND NOT EXISTS (SELECT 1 FROM penstock_claimable WHERE id = s.job_id)
        WHEN 'in_progress' THEN CASE
            WHEN NEW.status = 'pending' THEN NOT (s.outside OR s.over)
            WHEN NEW.status <> 'in_progress' THEN NOT s.outside
            WHEN NEW.worker_id IS NOT s.worker
            THEN NOT (s.over AND NOT s.spent OR s.outside AND s.worker = 'sql')
            ELSE NOT s.outside AND abs(ifnull({millis(NEW.lease_until)}, 0) - s.lease) > 1
        END
        WHEN 'done' THEN NEW.status IN ('in_progress', 'failed')
        ELSE NEW.status IN ('in_progress', 'done')
    END
    FROM unified_queue_state AS s WHERE s.queue_id = OLD.queue_id
)
BEGIN
    DELETE FROM penstock_newcomer;
    INSERT INTO penstock_call (verb, job_id, actor, reason)
    SELECT 'refuse', job_id, ifnull(NEW.worker_id, 'sql'), 'the row cannot become ' || NEW.status
    FROM unified_queue_state WHERE queue_id = OLD.queue_id AND stage = 3;
    SELECT RAISE(IGNORE) FROM unified_queue_state AS s
    WHERE s.queue_id = OLD.queue_id AND (
        s.status <> 'pending' OR NEW.status IN ('in_progress', 'done')
        AND NOT EXISTS (SELECT 1 FROM penstock_claimable WHERE id = s.job_id)
    );
END;

CREATE TRIGGER unified_queue_changed
AFTER UPDATE OF status, lease_until, worker_id, priority ON unified_queue
WHEN NOT EXISTS (
    SELECT 1 FROM unified_queue_state AS s
    WHERE s.queue_id = NEW.queue_id AND s.status = NEW.status AND s.priority = NEW.priority
    AND (
        s.status <> 'in_progress'
        OR NEW.worker_id IS s.worker AND abs(ifnull({millis(NEW.lease_until)}, 0) - s.lease) <= 1
    )
)
BEGIN
    SELECT RAISE(ABORT, 'unified_queue: lease_until is no timestamp')
    WHERE NEW.lease_until IS NOT NULL AND {millis(NEW.lease_until)} IS NULL;
    INSERT INTO penstock_call (verb, job_id, reason)
    SELECT 'reset', job_id, 'its row became pending' FROM unified_queue_state
    WHERE queue_id = NEW.queue_id AND status = 'failed' AND NEW.status = 'pending';
    INSERT INTO unified_queue_adopt VALUES (
        NEW.queue_id, NEW.item_type, NEW.op, NEW.tenant_id, NEW.collection, NEW.branch,
        NEW.priority, NEW.status, NEW.lease_until, NEW.idempotency_key, 0,
        NEW.max_retries, CASE WHEN json_valid(NEW.payload_json) THEN NEW.payload_json END,
        NEW.metadata, NULL
    );
    -- An expired lease: the item is released, or claimed by another worker. Its own worker may still
    -- report an error as long as no other worker holds it.
    INSERT INTO penstock_call (verb, job_id)
    SELECT 'expire', job_id FROM unified_queue_state
    WHERE queue_id = NEW.queue_id AND status = 'in_progress' AND over AND (
        NEW.status = 'in_progress' AND NEW.worker_id IS NOT worker
        OR NEW.status = 'pending' AND NOT (
            outside AND NEW.error_message IS NOT NULL AND NEW.error_message IS NOT OLD.error_message
        )
    );
    INSERT INTO unified_queue_take
    SELECT queue_id, NEW.worker_id, CASE WHEN NEW.status = 'in_progress' THEN NEW.lease_until END
    FROM unified_queue_state
    WHERE queue_id = NEW.queue_id AND status = 'pending' AND (
        NEW.status = 'in_progress'
        OR NEW.status = 'done'
    );
    UPDATE penstock_job SET worker = NEW.worker_id
    WHERE NEW.status = 'in_progress' AND NEW.worker_id IS NOT NULL AND id = (
        SELECT job_id FROM unified_queue_state
        WHERE queue_id = NEW.queue_id AND status = 'in_progress' AND outside AND worker = 'sql'
    );
    INSERT INTO penstock_call (verb, job_id, expires_at)
    SELECT 'renew', job_id, {millis(NEW.lease_until)} * 1000 FROM unified_queue_state
    WHERE queue_id = NEW.queue_id AND status = 'in_progress' AND outside
    AND NEW.status = 'in_progress' AND abs(ifnull({millis(NEW.lease_until)}, 0) - lease) > 1;
    INSERT INTO penstock_call (verb, job_id)
    SELECT 'done', job_id FROM unified_queue_state
    WHERE queue_id = NEW.queue_id AND status = 'in_progress' AND NEW.status = 'done';
    -- Another attempt, not before `lease_until` if it was changed. Without a higher retry count and
    -- without an error, the item is only released.
    INSERT INTO penstock_call (verb, job_id, error, permanent, run_at)
    SELECT
        'fail', job_id, ifnull(NEW.error_message, 'failed'), NEW.status = 'failed' AND NOT spent,
        CASE WHEN NEW.lease_until IS NOT OLD.lease_until THEN {millis(NEW.lease_until)} * 1000 END
    FROM unified_queue_state
    WHERE queue_id = NEW.queue_id AND status = 'in_progress' AND (
        NEW.status = 'failed'
        OR NEW.status = 'pending' AND (
            NEW.retry_count > OLD.retry_count
            OR NEW.error_message IS NOT NULL AND NEW.error_message IS NOT OLD.error_message
        )
    );
    INSERT INTO penstock_call (verb, job_id, run_at)
    SELECT
        'release', job_id,
        CASE WHEN NEW.lease_until IS NOT OLD.lease_until THEN {millis(NEW.lease_until)} * 1000 END
    FROM unified_queue_state
    WHERE queue_id = NEW.queue_id AND status = 'in_progress' AND NEW.status = 'pending';
    INSERT INTO penstock_call (verb, job_id, reason)
    SELECT 'cancel', job_id, ifnull(NEW.error_message, 'its row became failed')
    FROM unified_queue_state
    WHERE queue_id = NEW.queue_id AND status = 'pending' AND NEW.status = 'failed';
    INSERT INTO penstock_call (verb, job_id, priority)
    SELECT 'reprioritise', job_id, NEW.priority FROM unified_queue_state
    WHERE queue_id = NEW.queue_id AND status = 'pending' AND priority <> NEW.priority;
END;

CREATE TRIGGER unified_queue_recounted
AFTER UPDATE OF tenant_id, collection, item_type, status ON unified_queue
WHEN (OLD.tenant_id, OLD.collection, OLD.item_type, OLD.status)
<> (NEW.tenant_id, NEW.collection, NEW.item_type, NEW.status)
BEGIN
    INSERT INTO unified_queue_count
    VALUES (OLD.tenant_id, OLD.collection, OLD.item_type, OLD.status, -1);
    INSERT INTO unified_queue_count
    VALUES (NEW.tenant_id, NEW.collection, NEW.item_type, NEW.status, 1);
END;

-- The content and the names of a waiting item may still be changed.
CREATE TRIGGER unified_queue_rewritten
AFTER UPDATE OF queue_id, item_type, op, tenant_id, collection, branch, idempotency_key,
payload_json, metadata ON unified_queue
BEGIN
    UPDATE unified_queue_job SET queue_id = NEW.queue_id
    WHERE queue_id = OLD.queue_id AND OLD.queue_id <> NEW.queue_id;
    UPDATE penstock_job SET dedupe = 'ingest:' || NEW.idempotency_key
    WHERE id = (SELECT job_id FROM unified_queue_job WHERE queue_id = NEW.queue_id)
    AND dedupe <> 'ingest:' || NEW.idempotency_key;
    UPDATE penstock_payload SET body = json_object(
        'queue_id', NEW.queue_id, 'item_type', NEW.item_type, 'op', NEW.op,
        'tenant_id', NEW.tenant_id, 'collection', NEW.collection,
        'branch', ifnull(NEW.branch, 'main'),
        'payload', json(CASE WHEN json_valid(NEW.payload_json) THEN NEW.payload_json END),
        'metadata', json(CASE WHEN json_valid(NEW.metadata) THEN NEW.metadata
            WHEN NEW.metadata IS NULL THEN '{}' END)
    )
    WHERE job_id = (SELECT job_id FROM unified_queue_state WHERE queue_id = NEW.queue_id AND stage < 3);
END;

CREATE TRIGGER unified_queue_left BEFORE DELETE ON unified_queue
WHEN EXISTS (SELECT 1 FROM penstock_newcomer)
AND NOT EXISTS (SELECT 1 FROM unified_queue_job WHERE queue_id = OLD.queue_id)
BEGIN
    DELETE FROM penstock_newcomer;
END;

CREATE TRIGGER unified_queue_deleted AFTER DELETE ON unified_queue
BEGIN
    INSERT INTO penstock_call (verb, job_id)
    SELECT 'done', job_id FROM unified_queue_state
    WHERE queue_id = OLD.queue_id AND stage = 3 AND outside;
    INSERT INTO penstock_call (verb, job_id, reason)
    SELECT 'cancel', job_id, 'its row was deleted' FROM unified_queue_state
    WHERE queue_id = OLD.queue_id AND stage < 4;
    INSERT INTO unified_queue_count
    VALUES (OLD.tenant_id, OLD.collection, OLD.item_type, OLD.status, -1);
    DELETE FROM unified_queue_job WHERE queue_id = OLD.queue_id;
END;

INSERT INTO unified_queue (
    queue_id, item_type, op, tenant_id, collection, priority, status, created_at, updated_at,
    lease_until, worker_id, idempotency_key, payload_json, retry_count, max_retries, error_message,
    last_error_at, branch, metadata
)
SELECT
    queue_id, item_type, op, tenant_id, collection, priority, status, created_at, updated_at,
    lease_until, worker_id, idempotency_key, payload_json, retry_count, max_retries, error_message,
    last_error_at, branch, metadata
FROM unified_queue_before ORDER BY created_at, rowid;
DROP TABLE unified_queue_before;

-- mirror
UPDATE unified_queue SET
    status = CASE WHEN NEW.stage < 3 THEN 'pending' WHEN NEW.stage = 3 THEN 'in_progress'
        WHEN NEW.stage = 4 THEN 'done' ELSE 'failed' END,
    lease_until = CASE
        WHEN NEW.stage = 3 AND abs(ifnull({millis(lease_until)}, 0) - (NEW.expires_at + 500) / 1000) <= 1
        THEN lease_until
        WHEN NEW.stage = 3 THEN {stamp(NEW.expires_at)}
        WHEN NEW.stage = 1 THEN {stamp(NEW.run_at)}
    END,
    worker_id = NEW.worker,
    retry_count = max(
        0, NEW.attempt - (NEW.stage IN (3, 4) OR NEW.stage = 6 AND NEW.started_at IS NOT NULL)
    ),
    priority = NEW.priority,
    -- One sentence of our own errors; messages that a program has written are kept.
    error_message = coalesce(
        CASE WHEN NEW.error = error_message THEN error_message ELSE {sentence(NEW.error)} END,
        error_message,
        CASE NEW.stage WHEN 6 THEN 'cancelled' WHEN 7 THEN 'superseded' END
    ),
    last_error_at = CASE
        WHEN NEW.stage = 5
        OR NEW.error IS NOT NULL AND error_message IS NOT NEW.error
        AND error_message IS NOT {sentence(NEW.error)}
        THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now') ELSE last_error_at
    END,
    updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE queue_id = (SELECT queue_id FROM unified_queue_job WHERE job_id = NEW.id AND token <> -1)
