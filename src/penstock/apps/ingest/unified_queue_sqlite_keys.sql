-- A readable key of an item: `ingest:TENANT/COLLECTION/BRANCH:PLACE`. It used to have separators that
-- cannot be displayed. `{escaped(x)}` is a name with the new separators escaped.
DROP TRIGGER unified_queue_adopted;
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
        'ingest:' || substr(
            {escaped(NEW.tenant_id)} || '/' || {escaped(NEW.collection)} || '/'
            || ifnull({escaped(NEW.branch)}, 'main') || ':' || CASE NEW.item_type
                WHEN 'file' THEN NEW.payload ->> '$.file_path'
                WHEN 'folder' THEN NEW.payload ->> '$.folder_path'
                WHEN 'project' THEN NEW.payload ->> '$.project_root'
                WHEN 'library' THEN 'library:' || (NEW.payload ->> '$.library_name') || ':'
                    || ifnull(NEW.payload ->> '$.library_version', '')
                WHEN 'content' THEN
                    ifnull(NEW.payload ->> '$.document_id', 'content:' || NEW.idempotency_key)
                WHEN 'delete_document' THEN NEW.payload ->> '$.document_id'
            END,
            -993
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

-- Existing jobs get the new key of their place, so that they stay in order with new items.
UPDATE penstock_job SET key = 'ingest:' || substr((
    SELECT {escaped(tenant)} || '/' || {escaped(collection)} || '/'
    || {escaped(branch)} || ':' || substr(rest, instr(rest, char(31)) + 1)
    FROM (
        SELECT *, substr(rest, 1, instr(rest, char(31)) - 1) AS branch FROM (
            SELECT tenant, substr(rest, 1, instr(rest, char(31)) - 1) AS collection,
            substr(rest, instr(rest, char(31)) + 1) AS rest
            FROM (
                SELECT substr(key, 1, instr(key, char(31)) - 1) AS tenant,
                substr(key, instr(key, char(31)) + 1) AS rest
            )
        )
    )
), -993)
WHERE queue = 'ingest' AND length(key) - length(replace(key, char(31), '')) = 3
AND length(key) < 1000;
-- Keys that were truncated have lost their beginning.
UPDATE penstock_job SET key = 'ingest:' || substr(replace(key, char(31), '/'), -993)
WHERE queue = 'ingest' AND length(key) = 1000;
