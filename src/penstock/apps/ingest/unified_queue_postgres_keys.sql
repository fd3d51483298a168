-- A readable key of an item: `ingest:TENANT/COLLECTION/BRANCH:PLACE`. It used to have separators that
-- cannot be displayed. `{escaped(x)}` is a name with the new separators escaped.
CREATE OR REPLACE FUNCTION unified_queue_wanted(q unified_queue, tries integer, came bigint) RETURNS json
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
        'key', 'ingest:' || right(
            {escaped(q.tenant_id)} || '/' || {escaped(q.collection)} || '/'
            || coalesce({escaped(q.branch)}, 'main') || ':' || place,
            993
        ),
        'dedupe', 'ingest:' || q.idempotency_key,
        'retry', json_build_object('attempts', greatest(q.max_retries, 0) + 1)::text,
        'body', body::text, 'at', came
    );
END $$;

-- Existing jobs get the new key of their place, so that they stay in order with new items. Keys that
-- were truncated have lost their beginning.
CREATE FUNCTION unified_queue_key(old text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    tenant text := split_part(old, chr(31), 1);
    collection text := split_part(old, chr(31), 2);
    branch text := split_part(old, chr(31), 3);
    place text := split_part(old, chr(31), 4);
BEGIN
    IF length(old) = 1000 THEN
        RETURN 'ingest:' || right(replace(old, chr(31), '/'), 993);
    END IF;
    RETURN 'ingest:' || right(
        {escaped(tenant)} || '/' || {escaped(collection)} || '/' || {escaped(branch)} || ':' || place,
        993
    );
END $$;

UPDATE job SET key = unified_queue_key(key)
WHERE queue = 'ingest' AND (strpos(key, chr(31)) > 0 OR length(key) = 1000);
UPDATE arrival SET key = unified_queue_key(key) WHERE strpos(key, chr(31)) > 0;
DROP FUNCTION unified_queue_key(text);
