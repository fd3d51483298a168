-- Every query of the SQLite store, in the order of the Store protocol.
-- SQLite uses a partial index only if the query repeats the index's condition literally.

-- name: last_ids
SELECT
    max(ifnull((SELECT max(id) FROM penstock_job), 0), (SELECT value FROM penstock_meta WHERE name = 'last_job')),
    max(ifnull((SELECT max(id) FROM penstock_log), 0), (SELECT value FROM penstock_meta WHERE name = 'last_log'));

-- name: meta
SELECT value FROM penstock_meta WHERE name = ?;

-- name: set_meta
INSERT INTO penstock_meta (name, value) VALUES (?, ?)
ON CONFLICT DO UPDATE SET value = excluded.value;

-- There and back, in one transaction: a change to the same value would write nothing.
-- name: overwrite_log
UPDATE penstock_meta SET value = value + ? WHERE name = 'last_job';

-- name: queue
SELECT name, paused_until, max_pending, concurrency, rate, rate_window, promote_after
FROM penstock_queue WHERE name = ?;

-- name: max_pending
SELECT max_pending, merged FROM penstock_queue WHERE name = ?;

-- name: max_pendings
SELECT q.name, q.max_pending, q.merged
FROM json_each(?) AS n CROSS JOIN penstock_queue AS q ON q.name = n.value;

-- The first queues of a store have indexes of their own.
-- name: add_queue
INSERT INTO penstock_queue (name, merged)
SELECT ?, value >= (SELECT value FROM penstock_meta WHERE name = 'own_lines')
FROM penstock_meta WHERE name = 'queues';

-- Gives queues an index of their own; their jobs follow in portions.
-- name: unmerge
UPDATE penstock_queue SET merged = 2
WHERE merged = 1 AND name IN (SELECT value FROM json_each(?));

-- The same, while fewer than so many have one.
-- name: unmerge_for_tenants
UPDATE penstock_queue SET merged = 2
WHERE merged = 1 AND name IN (SELECT value FROM json_each(?1))
AND (SELECT count(*) FROM (SELECT 1 FROM penstock_queue WHERE merged <> 1 LIMIT ?2)) < ?2;

-- name: unmerging
SELECT name FROM penstock_queue AS q WHERE merged = 2
ORDER BY
    name IN (SELECT value FROM json_each(?1)) DESC,
    EXISTS (SELECT 1 FROM penstock_job AS j WHERE j.queue = q.name AND j.merged AND j.stage < 4) DESC
LIMIT 1;

-- name: lock_queue
SELECT ?1;

-- name: unmerge_jobs
UPDATE penstock_job SET merged = 0
WHERE id IN (
    SELECT id FROM penstock_job WHERE queue = ? AND merged AND stage < 4 LIMIT ?
)
RETURNING id;

-- name: finish_unmerge
UPDATE penstock_queue SET merged = 0 WHERE name = ? AND merged = 2;

-- How many queues there are, and how many there may be; NULL for the default.
-- name: queue_usage
SELECT value, (SELECT concurrency FROM penstock_limit WHERE kind = 'queues' AND name = '')
FROM penstock_meta WHERE name = 'queues';

-- name: count_configuration
UPDATE penstock_meta SET value = value + 1 WHERE name = 'configured';

-- Removes those of these queues that have neither jobs nor settings.
-- name: remove_unused
DELETE FROM penstock_queue
WHERE name IN (SELECT value FROM json_each(?1))
AND paused_until <= ?2 AND coalesce(max_pending, concurrency, rate, promote_after) IS NULL
AND NOT EXISTS (SELECT 1 FROM penstock_total AS t WHERE t.queue = name AND t.n <> 0);

-- name: pending_total
SELECT ifnull(sum(n), 0) FROM penstock_total WHERE queue = ? AND stage < 3;

-- name: unfinished_total
SELECT ifnull(sum(n), 0) FROM penstock_total WHERE queue = ? AND stage < 4;

-- name: dedupe_holders
SELECT j.dedupe, j.id, j.stage, j.scope FROM json_each(?1) AS k
CROSS JOIN penstock_job AS j ON j.dedupe = k.value AND j.dedupe IS NOT NULL AND j.stage < 3
UNION ALL
SELECT j.dedupe, j.id, j.stage, j.scope FROM json_each(?1) AS k
CROSS JOIN penstock_job AS j ON j.dedupe = k.value AND j.dedupe IS NOT NULL AND j.stage = 3;

-- name: held_keys
SELECT json_group_array(k.value) FROM json_each(?) AS k
WHERE EXISTS (
    SELECT 1 FROM penstock_job WHERE key = k.value AND key IS NOT NULL AND stage < 4
);

-- Adds one plain job, in its own transaction; see `penstock_plain` in `routines.sql`. The second is
-- for jobs with any of the options that few have. Both name the view of the schema, and so fail
-- without it, but read it only while there is no job.
-- name: add_plain
INSERT INTO penstock_plain (id, version, at, queue, task, priority, lease_time, body, actor)
VALUES (
    max(ifnull((SELECT max(id) FROM penstock_job), (SELECT 0 FROM penstock_schema_{schema})), (SELECT value FROM penstock_meta WHERE name = 'last_job')) + 1,
    max(ifnull((SELECT max(id) FROM penstock_log), 0), (SELECT value FROM penstock_meta WHERE name = 'last_log')) + 1,
    ?, ?, ?, ?, ?, ?, ?
)
RETURNING id, version;

-- name: add_plain_with_options
INSERT INTO penstock_plain (
    id, version, at, queue, task, priority, lease_time, body, actor, timeout, retry, correlation,
    parent, trace, task_version
)
VALUES (
    max(ifnull((SELECT max(id) FROM penstock_job), (SELECT 0 FROM penstock_schema_{schema})), (SELECT value FROM penstock_meta WHERE name = 'last_job')) + 1,
    max(ifnull((SELECT max(id) FROM penstock_log), 0), (SELECT value FROM penstock_meta WHERE name = 'last_log')) + 1,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
)
RETURNING id, version;

-- name: add_job
INSERT INTO penstock_job (
    id, version, enqueued_at,
    stage, run_at, queue, task, priority, lease_time, merged, timeout, key, dedupe, scope, tags, retry,
    correlation, tenant, parent, throttle, trace, task_version, needs
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ifnull(?, 0));

-- The same without rarely used columns: binding a NULL costs as much as ten numbers.
-- name: add_plain_job
INSERT INTO penstock_job (
    id, version, enqueued_at, stage, run_at, queue, task, priority, lease_time, merged
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_payload
INSERT INTO penstock_payload (job_id, body) VALUES (?, ?);

-- Jobs that differ only in their payloads are written together: one step for a whole batch, twice
-- as fast as binding every row. For a single job it would be half as fast.
-- name: add_payloads
INSERT INTO penstock_payload (job_id, body) SELECT ?2 + p.key, p.value FROM json_each(?1) AS p;

-- Scans the payloads that were just written, because parsing their JSON again costs more.
-- name: add_jobs
INSERT INTO penstock_job (
    id, version, enqueued_at,
    stage, run_at, queue, task, priority, lease_time, merged, timeout, key, dedupe, scope, tags, retry,
    correlation, tenant, parent, throttle, trace, task_version, needs
)
SELECT
    p.job_id, ?3 + p.job_id, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
    ?19, ?20, ?21, ?22, ?23, ifnull(?24, 0)
FROM penstock_payload AS p WHERE p.job_id BETWEEN ?1 AND ?2;

-- name: add_plain_jobs
INSERT INTO penstock_job (
    id, version, enqueued_at, stage, run_at, queue, task, priority, lease_time, merged
)
SELECT p.job_id, ?3 + p.job_id, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11
FROM penstock_payload AS p WHERE p.job_id BETWEEN ?1 AND ?2;

-- Jobs that are written together have the same tags.
-- name: add_tags
INSERT OR IGNORE INTO penstock_tag (tag, job_id)
SELECT t.value, p.job_id
FROM json_each(?3) AS t CROSS JOIN penstock_payload AS p WHERE p.job_id BETWEEN ?1 AND ?2;

-- name: add_ready_tags
INSERT OR IGNORE INTO penstock_ready_tag (tag, queue, priority, tenant, run_at, job_id, merged)
SELECT t.value, ?4, ?5, ifnull(?6, ''), ?7, p.job_id, ?8
FROM json_each(?3) AS t CROSS JOIN penstock_payload AS p WHERE p.job_id BETWEEN ?1 AND ?2;

-- Reads nothing but the ids of new jobs: the rest is known, and the last columns cost most.
-- name: log_added
INSERT INTO penstock_log (id, job_id, at, event, state, actor)
SELECT ?1 + job_id - ?2, job_id, ?4, 'enqueued', 'pending', ?5
FROM penstock_payload WHERE job_id BETWEEN ?2 AND ?3;

-- name: add_totals
INSERT INTO penstock_total (queue, stage, n) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET n = n + excluded.n;

-- name: any_due
SELECT 1 FROM penstock_job WHERE stage = 1 AND run_at <= ? LIMIT 1;

-- name: promote_due
UPDATE penstock_job SET stage = 0
WHERE id IN (
    SELECT id FROM penstock_job WHERE stage = 1 AND run_at <= ? ORDER BY run_at LIMIT ?
)
RETURNING queue;

-- What a claim has to know first: whether limits may matter in every queue, or jobs are set aside that
-- it may take (the names of its holders, NULL if it takes all tasks); whether any ready job
-- is merged or has a throttle, and whether jobs have to leave the merged index; then the queues with
-- an index of their own that have ready jobs, each with whether limits, tenants or ages matter.
-- name: claimable
SELECT
    EXISTS (SELECT 1 FROM penstock_job WHERE stage = 0 AND held IS NOT NULL) AND (
        ?2 IS NULL
        OR EXISTS (SELECT 1 FROM penstock_job WHERE stage = 0 AND held < 'unknown:' AND held IS NOT NULL)
        OR EXISTS (
            SELECT 1 FROM json_each(?2) AS k CROSS JOIN penstock_job AS j
            ON j.stage = 0 AND j.held = k.value AND j.held IS NOT NULL
        )
    )
    OR EXISTS (SELECT 1 FROM penstock_limit WHERE kind = 'task'),
    EXISTS (SELECT 1 FROM penstock_job WHERE stage = 0 AND merged AND held IS NULL)
    OR EXISTS (SELECT 1 FROM penstock_job WHERE stage = 0 AND held IS NOT NULL),
    EXISTS (SELECT 1 FROM penstock_job WHERE stage = 0 AND throttle IS NOT NULL AND held IS NULL),
    EXISTS (SELECT 1 FROM penstock_queue WHERE merged = 2),
    (
        SELECT json_group_array(json_array(
            q.name,
            q.concurrency IS NOT NULL OR q.rate IS NOT NULL OR q.promote_after IS NOT NULL
            OR EXISTS (
                SELECT 1 FROM penstock_job
                WHERE queue = q.name AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
            )
            OR EXISTS (
                SELECT 1 FROM penstock_job
                WHERE queue = q.name AND stage = 0 AND throttle IS NOT NULL AND held IS NULL
            ),
            0
        ))
        FROM penstock_queue AS q
        CROSS JOIN penstock_total AS t ON t.queue = q.name AND t.stage = 0
        WHERE q.merged <> 1 AND t.n > 0 AND q.paused_until <= ?1
    );

-- The same for queues that a worker names, with whether they are merged.
-- name: claimable_named
SELECT
    EXISTS (SELECT 1 FROM penstock_job WHERE stage = 0 AND held IS NOT NULL) AND (
        ?3 IS NULL
        OR EXISTS (SELECT 1 FROM penstock_job WHERE stage = 0 AND held < 'unknown:' AND held IS NOT NULL)
        OR EXISTS (
            SELECT 1 FROM json_each(?3) AS k CROSS JOIN penstock_job AS j
            ON j.stage = 0 AND j.held = k.value AND j.held IS NOT NULL
        )
    )
    OR EXISTS (SELECT 1 FROM penstock_limit WHERE kind = 'task'),
    0,
    0,
    EXISTS (SELECT 1 FROM penstock_queue WHERE merged = 2),
    (
        SELECT json_group_array(json_array(
            q.name,
            q.concurrency IS NOT NULL OR q.rate IS NOT NULL OR q.promote_after IS NOT NULL
            OR EXISTS (
                SELECT 1 FROM penstock_job
                WHERE queue = q.name AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
            )
            OR EXISTS (
                SELECT 1 FROM penstock_job
                WHERE queue = q.name AND stage = 0 AND throttle IS NOT NULL AND held IS NULL
            ),
            q.merged
        ))
        FROM json_each(?2) AS n CROSS JOIN penstock_queue AS q ON q.name = n.value
        CROSS JOIN penstock_total AS t ON t.queue = q.name AND t.stage = 0
        WHERE t.n > 0 AND q.paused_until <= ?1
    );

-- name: pick
SELECT json_group_array(json_array(-priority, run_at, id)) FROM (
    SELECT priority, run_at, id FROM penstock_job
    WHERE queue = ? AND stage = 0 AND tenant IS NULL AND held IS NULL
    ORDER BY priority DESC, run_at, id LIMIT ? OFFSET ?
);

-- Only for queues without ready jobs of tenants: the tenant is the same for all.
-- name: pick_tagged
SELECT json_group_array(json_array(-priority, run_at, job_id)) FROM (
    SELECT priority, run_at, job_id FROM penstock_ready_tag
    WHERE queue = ? AND tag = ?
    ORDER BY priority DESC, tenant, run_at, job_id LIMIT ? OFFSET ?
);

-- The ready jobs of all merged queues, except some. Jobs of a queue that left the merged index a
-- moment ago may still be in it.
-- name: pick_merged
SELECT json_group_array(json_array(-priority, run_at, id)) FROM (
    SELECT priority, run_at, id FROM penstock_job
    WHERE stage = 0 AND merged AND held IS NULL
    AND (SELECT q.merged FROM penstock_queue AS q WHERE q.name = queue) = 1
    AND queue NOT IN (SELECT value FROM json_each(?1))
    ORDER BY priority DESC, run_at, id LIMIT ?2 OFFSET ?3
);

-- name: pick_merged_tagged
SELECT json_group_array(json_array(-priority, run_at, job_id)) FROM (
    SELECT priority, run_at, job_id FROM penstock_ready_tag
    WHERE merged AND tag = ?4
    AND (SELECT q.merged FROM penstock_queue AS q WHERE q.name = queue) = 1
    AND queue NOT IN (SELECT value FROM json_each(?1))
    ORDER BY priority DESC, run_at, job_id LIMIT ?2 OFFSET ?3
);

-- The queries of a claim where limits, tenants or ages matter: first the facts about its queues, with
-- past turns, and the priorities of ready jobs without and with a tenant.
-- name: open_queues
SELECT
    q.name, q.concurrency, q.rate, q.rate_window, q.promote_after, r.starts,
    EXISTS (
        SELECT 1 FROM penstock_job
        WHERE queue = q.name AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
    ),
    ifnull((SELECT n FROM penstock_total WHERE queue = q.name AND stage = 3), 0),
    (SELECT json_group_array(json_array(level, tenant)) FROM penstock_turn WHERE queue = q.name),
    (
        SELECT json_group_array(p.value) FROM json_each('[0,1,2,3,4,5,6,7,8,9,10]') AS p
        WHERE EXISTS (
            SELECT 1 FROM penstock_job
            WHERE queue = q.name AND priority = p.value
            AND stage = 0 AND tenant IS NULL AND held IS NULL
        )
    ),
    (
        SELECT json_group_array(p.value) FROM json_each('[0,1,2,3,4,5,6,7,8,9,10]') AS p
        WHERE EXISTS (
            SELECT 1 FROM penstock_job
            WHERE queue = q.name AND priority = p.value
            AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
        )
    )
FROM penstock_queue AS q LEFT JOIN penstock_rate AS r ON r.queue = q.name
WHERE q.name IN (SELECT value FROM json_each(?));

-- name: running_by_task
SELECT task, count(*) FROM penstock_job
WHERE stage = 3 AND task IN (SELECT value FROM json_each(?)) GROUP BY task;

-- name: running_of_throttle
SELECT count(*) FROM penstock_job
WHERE throttle = ? AND throttle IS NOT NULL AND stage = 3;

-- Held jobs are indexed apart from ready ones, and each limit that holds any has a running job: a
-- claim meets at most as many limits as there are running jobs.
-- Jobs of tasks that claims did not know are the last of them, under the names in the second query.
-- name: holding_limits
WITH RECURSIVE holder (held) AS (
    SELECT min(held) FROM penstock_job
    WHERE stage = 0 AND held IS NOT NULL AND held < 'unknown:'
    UNION ALL
    SELECT (
        SELECT min(j.held) FROM penstock_job AS j
        WHERE j.stage = 0 AND j.held IS NOT NULL AND j.held > holder.held AND j.held < 'unknown:'
    )
    FROM holder WHERE holder.held IS NOT NULL
)
SELECT held FROM holder WHERE held IS NOT NULL;

-- name: holding_tasks
WITH RECURSIVE holder (held) AS (
    SELECT min(held) FROM penstock_job
    WHERE stage = 0 AND held IS NOT NULL AND held >= 'unknown:'
    UNION ALL
    SELECT (
        SELECT min(j.held) FROM penstock_job AS j
        WHERE j.stage = 0 AND j.held IS NOT NULL AND j.held > holder.held
    )
    FROM holder WHERE holder.held IS NOT NULL
    LIMIT ?1
)
SELECT held FROM holder WHERE held IS NOT NULL;

-- From one task to the next, and some jobs of each: a subquery with a limit is run for each only as
-- a list of ids. The queue is '' for all merged ones together.
-- name: set_aside
WITH RECURSIVE holder (held) AS (
    SELECT min(held) FROM penstock_job
    WHERE stage = 0 AND held IS NOT NULL AND held >= 'unknown:'
    UNION ALL
    SELECT (
        SELECT min(j.held) FROM penstock_job AS j
        WHERE j.stage = 0 AND j.held IS NOT NULL AND j.held > holder.held
    )
    FROM holder WHERE holder.held IS NOT NULL
)
SELECT h.held, json_extract(p.value, '$[0]') AS place, count(*), min(json_extract(p.value, '$[1]'))
FROM holder AS h CROSS JOIN json_each((
    SELECT json_group_array(json_array(place, run_at)) FROM (
        SELECT CASE WHEN merged THEN '' ELSE queue END AS place, run_at FROM penstock_job
        WHERE stage = 0 AND held = h.held AND held IS NOT NULL LIMIT ?1
    )
)) AS p
WHERE h.held IS NOT NULL
GROUP BY h.held, place ORDER BY h.held, place;

-- name: holding_tasks_among
SELECT value FROM json_each(?)
WHERE EXISTS (SELECT 1 FROM penstock_job WHERE stage = 0 AND held = value AND held IS NOT NULL);

-- Row values would be shorter, but do not use an index on an expression.
-- name: held_groups
WITH RECURSIVE place (id) AS (
    SELECT * FROM (
        SELECT id FROM penstock_job WHERE stage = 0 AND held = ?1 AND held IS NOT NULL
        ORDER BY ifnull(tenant, ''), CASE WHEN merged THEN '' ELSE queue END, priority LIMIT 1
    )
    UNION ALL
    SELECT coalesce(
        (
            SELECT j.id FROM penstock_job AS j
            WHERE j.stage = 0 AND j.held = ?1 AND j.held IS NOT NULL
            AND ifnull(j.tenant, '') = ifnull(p.tenant, '')
            AND CASE WHEN j.merged THEN '' ELSE j.queue END = CASE WHEN p.merged THEN '' ELSE p.queue END
            AND j.priority > p.priority
            ORDER BY j.priority LIMIT 1
        ),
        (
            SELECT j.id FROM penstock_job AS j
            WHERE j.stage = 0 AND j.held = ?1 AND j.held IS NOT NULL
            AND ifnull(j.tenant, '') = ifnull(p.tenant, '')
            AND CASE WHEN j.merged THEN '' ELSE j.queue END > CASE WHEN p.merged THEN '' ELSE p.queue END
            ORDER BY CASE WHEN j.merged THEN '' ELSE j.queue END, j.priority LIMIT 1
        ),
        (
            SELECT j.id FROM penstock_job AS j
            WHERE j.stage = 0 AND j.held = ?1 AND j.held IS NOT NULL
            AND ifnull(j.tenant, '') > ifnull(p.tenant, '')
            ORDER BY ifnull(j.tenant, ''), CASE WHEN j.merged THEN '' ELSE j.queue END, j.priority LIMIT 1
        )
    )
    FROM place CROSS JOIN penstock_job AS p ON p.id = place.id
)
SELECT ifnull(p.tenant, ''), CASE WHEN p.merged THEN '' ELSE p.queue END, p.priority
FROM place CROSS JOIN penstock_job AS p ON p.id = place.id;

-- name: release_held
UPDATE penstock_job SET held = NULL
WHERE id IN (
    SELECT id FROM penstock_job
    WHERE stage = 0 AND held = ?1 AND held IS NOT NULL
    AND ifnull(tenant, '') = ?2 AND CASE WHEN merged THEN '' ELSE queue END = ?3
    AND priority = ?4
    AND (
        ?3 <> '' OR (SELECT q.merged FROM penstock_queue AS q WHERE q.name = queue) = 1
        AND queue NOT IN (SELECT value FROM json_each(?6))
    )
    ORDER BY run_at, id LIMIT ?5
);

-- Whether any limit on running jobs is in force. A settle asks, to notify other processes.
-- name: any_limit
SELECT
    EXISTS (SELECT 1 FROM penstock_job WHERE stage = 0 AND held IS NOT NULL)
    OR EXISTS (
        SELECT 1 FROM penstock_job WHERE stage = 0 AND throttle IS NOT NULL AND held IS NULL
    )
    OR EXISTS (SELECT 1 FROM penstock_limit WHERE kind = 'task')
    OR EXISTS (SELECT 1 FROM penstock_queue WHERE concurrency IS NOT NULL);

-- name: any_queue_has_room
SELECT EXISTS (
    SELECT 1 FROM json_each(?1) AS n
    CROSS JOIN penstock_queue AS q ON q.name = n.value
    CROSS JOIN penstock_total AS t ON t.queue = q.name AND t.stage = 0
    WHERE q.concurrency IS NOT NULL AND q.paused_until <= ?2 AND t.n > 0 AND q.concurrency > ifnull(
        (SELECT r.n FROM penstock_total AS r WHERE r.queue = q.name AND r.stage = 3), 0
    )
);

-- Claims by tag do not mark held jobs: where there are tags, any limit may hold jobs.
-- name: holding_limits_among
SELECT value FROM json_each(?)
WHERE EXISTS (SELECT 1 FROM penstock_job WHERE stage = 0 AND held = value AND held IS NOT NULL)
OR EXISTS (SELECT 1 FROM penstock_ready_tag);

-- name: hold_jobs
UPDATE penstock_job SET held = ?1
WHERE stage = 0 AND id IN (SELECT value FROM json_each(?2));

-- The priorities of ready jobs.
-- name: merged_levels
SELECT p.value FROM json_each('[0,1,2,3,4,5,6,7,8,9,10]') AS p WHERE EXISTS (
    SELECT 1 FROM penstock_job
    WHERE priority = p.value AND stage = 0 AND merged AND held IS NULL
);

-- Each tenant with its first job: a round has one for each.
-- name: tenants
WITH RECURSIVE turn (tenant) AS (
    SELECT min(tenant) FROM penstock_job
    WHERE queue = ?1 AND priority = ?2 AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
    AND tenant > ?3
    UNION ALL
    SELECT (
        SELECT min(j.tenant) FROM penstock_job AS j
        WHERE j.queue = ?1 AND j.priority = ?2 AND j.stage = 0
        AND j.tenant IS NOT NULL AND j.held IS NULL AND j.tenant > turn.tenant
    )
    FROM turn WHERE turn.tenant IS NOT NULL
    LIMIT ?4
)
SELECT t.tenant, j.run_at, j.id, j.task, j.throttle, ifnull(j.task_version, 1)
FROM turn AS t CROSS JOIN penstock_job AS j ON j.id = (
    SELECT id FROM penstock_job
    WHERE queue = ?1 AND priority = ?2 AND tenant = t.tenant
    AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
    ORDER BY run_at, id LIMIT 1
)
WHERE t.tenant IS NOT NULL;

-- name: tenants_tagged
WITH RECURSIVE turn (tenant) AS (
    SELECT min(tenant) FROM penstock_ready_tag
    WHERE queue = ?1 AND tag = ?5 AND priority = ?2 AND tenant > ?3
    UNION ALL
    SELECT (
        SELECT min(t.tenant) FROM penstock_ready_tag AS t
        WHERE t.queue = ?1 AND t.tag = ?5 AND t.priority = ?2 AND t.tenant > turn.tenant
    )
    FROM turn WHERE turn.tenant IS NOT NULL
    LIMIT ?4
)
SELECT tenant FROM turn WHERE tenant IS NOT NULL;

-- name: pick_level
SELECT json_group_array(json_array(run_at, id, task, throttle, ifnull(task_version, 1))) FROM (
    SELECT run_at, id, task, throttle, task_version FROM penstock_job
    WHERE queue = ?1 AND priority = ?2 AND stage = 0 AND tenant IS NULL AND held IS NULL
    AND (run_at, id) > (?3, ?4)
    ORDER BY run_at, id LIMIT ?5
);

-- The ready jobs of all merged queues, except some, with one priority, from a position on.
-- name: pick_merged_level
SELECT json_group_array(json_array(run_at, id, task, throttle, ifnull(task_version, 1), queue)) FROM (
    SELECT run_at, id, task, throttle, task_version, queue FROM penstock_job
    WHERE stage = 0 AND merged AND held IS NULL AND priority = ?2
    AND (run_at, id) > (?3, ?4)
    AND (SELECT q.merged FROM penstock_queue AS q WHERE q.name = queue) = 1
    AND queue NOT IN (SELECT value FROM json_each(?1))
    ORDER BY run_at, id LIMIT ?5
);

-- By tag, without those that are set aside under other names than these.
-- name: pick_merged_level_tagged
SELECT json_group_array(json_array(run_at, job_id, task, throttle, version, queue)) FROM (
    SELECT
        t.run_at, t.job_id, j.task, j.throttle, ifnull(j.task_version, 1) AS version, j.queue
    FROM penstock_ready_tag AS t
    CROSS JOIN penstock_job AS j ON j.id = t.job_id
    WHERE t.merged AND t.tag = ?6 AND t.priority = ?2 AND (t.run_at, t.job_id) > (?3, ?4)
    AND (SELECT q.merged FROM penstock_queue AS q WHERE q.name = t.queue) = 1
    AND t.queue NOT IN (SELECT value FROM json_each(?1))
    AND (
        j.held IS NULL OR j.held < 'unknown:' OR ?7 IS NULL
        OR j.held IN (SELECT value FROM json_each(?7))
    )
    ORDER BY t.run_at, t.job_id LIMIT ?5
);

-- name: pick_share
SELECT json_group_array(json_array(run_at, id, task, throttle, ifnull(task_version, 1))) FROM (
    SELECT run_at, id, task, throttle, task_version FROM penstock_job
    WHERE queue = ?1 AND priority = ?2 AND tenant = ?6
    AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
    AND (run_at, id) > (?3, ?4)
    ORDER BY run_at, id LIMIT ?5
);

-- name: pick_level_tagged
SELECT json_group_array(json_array(run_at, job_id, task, throttle, version)) FROM (
    SELECT t.run_at, t.job_id, j.task, j.throttle, ifnull(j.task_version, 1) AS version FROM penstock_ready_tag AS t
    CROSS JOIN penstock_job AS j ON j.id = t.job_id
    WHERE t.queue = ?1 AND t.tag = ?6 AND t.priority = ?2 AND t.tenant = ?7
    AND (t.run_at, t.job_id) > (?3, ?4)
    AND (
        j.held IS NULL OR j.held < 'unknown:' OR ?8 IS NULL
        OR j.held IN (SELECT value FROM json_each(?8))
    )
    ORDER BY t.run_at, t.job_id LIMIT ?5
);

-- The jobs that are set aside under a name, of one tenant, queue (or '' for the merged ones, except
-- some) and priority, from a position on.
-- name: pick_aside
SELECT json_group_array(json_array(run_at, id, task, throttle, ifnull(task_version, 1), queue)) FROM (
    SELECT run_at, id, task, throttle, task_version, queue FROM penstock_job
    WHERE stage = 0 AND held = ?6 AND held IS NOT NULL
    AND ifnull(tenant, '') = ?7 AND CASE WHEN merged THEN '' ELSE queue END = ?1
    AND priority = ?2 AND (run_at > ?3 OR run_at = ?3 AND id > ?4)
    AND (
        ?1 <> '' OR (SELECT q.merged FROM penstock_queue AS q WHERE q.name = queue) = 1
        AND queue NOT IN (SELECT value FROM json_each(?8))
    )
    ORDER BY run_at, id LIMIT ?5
);

-- name: set_turn
INSERT INTO penstock_turn (queue, level, tenant) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET tenant = excluded.tenant;

-- name: set_starts
INSERT INTO penstock_rate (queue, starts) VALUES (?, ?)
ON CONFLICT DO UPDATE SET starts = excluded.starts;

-- The claim logs first, while the jobs still have their previous versions.
-- name: log_claimed
INSERT INTO penstock_log (id, job_id, previous, at, event, state, actor, token, duration)
SELECT
    ?1 + p.key, j.id, j.version, ?2, 'claimed', 'running', ?3, ?1 + p.key,
    max(0, ?2 - max(j.run_at, j.enqueued_at))
FROM json_each(?4) AS p CROSS JOIN penstock_job AS j ON j.id = p.value;

-- name: start
UPDATE penstock_job SET
    stage = 3,
    version = ?1 + p.key,
    token = ?1 + p.key,
    attempt = attempt + 1,
    started_at = ?2,
    expires_at = ?2 + lease_time,
    worker = ?3,
    held = NULL
FROM json_each(?4) AS p WHERE penstock_job.id = p.value;

-- One row with all jobs as JSON is read in one step, and costs half of fetching them one by one.
-- Columns that most jobs do not use are grouped, NULL for jobs without any of them.
-- name: jobs
SELECT json_group_array(json_array(
    j.id, j.stage, j.version, j.attempt, j.token, j.run_at, j.started_at, j.expires_at,
    j.worker, j.queue, j.task, j.priority, j.enqueued_at, j.lease_time, l.body,
    CASE WHEN coalesce(
        j.timeout, j.key, j.dedupe, j.tags, j.retry, j.correlation, j.tenant, j.parent,
        j.throttle, j.trace, j.finished_at, j.error, j.result, j.task_version
    ) IS NOT NULL OR j.needs OR j.cancel_requested THEN json_array(
        j.finished_at, j.cancel_requested, j.needs, j.timeout, j.key, j.dedupe, j.scope,
        j.tags, j.retry, j.correlation, j.tenant, j.parent, j.throttle, j.trace, j.error,
        j.result, j.task_version
    ) END
))
FROM json_each(?) AS p
CROSS JOIN penstock_job AS j ON j.id = p.value
CROSS JOIN penstock_payload AS l ON l.job_id = j.id;

-- name: renew
UPDATE penstock_job SET expires_at = ?1 + lease_time
FROM json_each(?2) AS p
WHERE penstock_job.id = p.value ->> 0 AND token = p.value ->> 1 AND worker = p.value ->> 2
AND stage = 3
RETURNING id;

-- name: versions
SELECT json_group_array(json_array(
    j.version, ifnull(j.stage, -1), j.expires_at, ifnull(j.needs, 0), ifnull(j.awaited, 0)
))
FROM json_each(?) AS p LEFT JOIN penstock_job AS j ON j.id = p.value;

-- Moves that differ only in their jobs are written together: one step for a whole batch, where the
-- writing thread would otherwise release the interpreter for every row.
-- The log comes first, while the jobs still have their previous versions.
-- name: log_moved
INSERT INTO penstock_log (
    id, job_id, previous, at, event, state, actor, token, duration, reason, error
)
SELECT
    ?1 + p.key, j.id, j.version, ?3, ?4, ?5, ?6,
    CASE WHEN j.stage = 3 THEN j.token END,
    CASE WHEN j.stage = 3 AND ?5 <> 'running' THEN ?3 - j.started_at END,
    ?7, ?8
FROM json_each(?2) AS p CROSS JOIN penstock_job AS j ON j.id = p.value;

-- The same for jobs with details: pairs of a job and its detail.
-- name: log_detailed
INSERT INTO penstock_log (
    id, job_id, previous, at, event, state, actor, token, duration, reason, error, detail
)
SELECT
    ?1 + p.key, j.id, j.version, ?3, ?4, ?5, ?6,
    CASE WHEN j.stage = 3 THEN j.token END,
    CASE WHEN j.stage = 3 AND ?5 <> 'running' THEN ?3 - j.started_at END,
    ?7, ?8, p.value ->> 1
FROM json_each(?2) AS p CROSS JOIN penstock_job AS j ON j.id = p.value ->> 0;

-- name: move
UPDATE penstock_job SET
    stage = ?3,
    version = ?1 + p.key,
    attempt = ifnull(?4, attempt),
    run_at = ifnull(?5, run_at),
    finished_at = ?6,
    error = ?7,
    result = ?8,
    started_at = CASE WHEN ?3 < 3 THEN NULL ELSE started_at END,
    worker = CASE WHEN ?3 < 3 THEN NULL ELSE worker END,
    expires_at = NULL,
    cancel_requested = 0
FROM json_each(?2) AS p WHERE penstock_job.id = p.value;

-- The same for jobs that may be finished.
-- name: reset
UPDATE penstock_job SET
    stage = ?3,
    version = ?1 + p.key,
    attempt = ifnull(?4, attempt),
    run_at = ifnull(?5, run_at),
    finished_at = ?6,
    error = ?7,
    result = ?8,
    started_at = CASE WHEN ?3 < 3 THEN NULL ELSE started_at END,
    worker = CASE WHEN ?3 < 3 THEN NULL ELSE worker END,
    expires_at = NULL,
    cancel_requested = 0,
    -- Its queue may have left the merged index since the job was finished, or have been merged.
    merged = ifnull((SELECT q.merged = 1 FROM penstock_queue AS q WHERE q.name = penstock_job.queue), 0)
FROM json_each(?2) AS p WHERE penstock_job.id = p.value;

-- name: update_lease
UPDATE penstock_job SET
    version = ?1 + p.key,
    cancel_requested = ?3,
    expires_at = ifnull(?4 + lease_time, expires_at)
FROM json_each(?2) AS p WHERE penstock_job.id = p.value;

-- name: reprioritise
UPDATE penstock_job SET version = ?1 + p.key, priority = ?3
FROM json_each(?2) AS p WHERE penstock_job.id = p.value;

-- The index of a key has the visible job first, then the blocked ones by age, then the running one:
-- each answer is at an end, and found however many are blocked.
-- A job that was reset may be older than the visible one of its key.
-- The facts for `key_line.rearranged`: of each key the visible job, the oldest blocked one and the
-- one that runs, however many are blocked behind them. `stage = 2` would scan all that are blocked.
-- name: key_lines
SELECT k.value, j.id, j.stage, j.needs, j.run_at
FROM json_each(?) AS k CROSS JOIN penstock_job AS j ON j.id IN (
    (
        SELECT id FROM penstock_job
        WHERE key = k.value AND key IS NOT NULL AND stage < 4 ORDER BY stage, id LIMIT 1
    ),
    (
        SELECT id FROM penstock_job
        WHERE key = k.value AND key IS NOT NULL AND stage >= 2 AND stage < 4
        ORDER BY stage, id LIMIT 1
    ),
    (
        SELECT id FROM penstock_job
        WHERE key = k.value AND key IS NOT NULL AND stage >= 3 AND stage < 4 LIMIT 1
    )
);

-- Those of these jobs that are blocked.
-- name: blocked_jobs
SELECT j.id, j.key, j.needs, j.run_at FROM json_each(?) AS p
CROSS JOIN penstock_job AS j ON j.id = p.value WHERE j.stage = 2;

-- Moves jobs from one stage to another, unless they have left the first. Without the plus, SQLite would
-- compare the parameter with the conditions of partial indexes, and so prepare the statement again
-- whenever a value is bound, which takes ten times as long as running it.
-- name: restage
UPDATE penstock_job SET stage = ?3
WHERE id IN (SELECT value FROM json_each(?1)) AND +stage = ?2
RETURNING id, queue;

-- The first and the last of the rows that other programs inserted and that are no jobs yet.
-- Every transaction begins with this one. Without the view of its schema, a program is refused.
-- name: external_rows
SELECT
    (SELECT min(id) FROM penstock_newcomer), (SELECT max(id) FROM penstock_newcomer),
    oldest_program
FROM penstock_schema_{schema};

-- Makes jobs of them, in the order of their ids. The trigger decides in SQL, because the rows come
-- from programs that do not run this package.
-- name: import_external_rows
DELETE FROM penstock_newcomer WHERE id <= ?;

-- Awaited jobs that other programs ended with SQL alone.
-- name: external_changes
DELETE FROM penstock_arrival RETURNING job_id, state, actor;

-- name: tail_of_key
SELECT (
    SELECT id FROM penstock_job
    WHERE key = ? AND key IS NOT NULL AND stage < 3 AND stage < 4
    ORDER BY stage DESC, id DESC LIMIT 1
);

-- name: stages
SELECT id, stage FROM penstock_job WHERE id IN (SELECT value FROM json_each(?));

-- name: add_edges
INSERT OR IGNORE INTO penstock_edge (needed, job_id, on_failure, resolved)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?);

-- name: mark_awaited
UPDATE penstock_job SET awaited = 1
WHERE awaited = 0 AND stage < 4 AND id IN (SELECT value FROM json_each(?));

-- name: waiting_edges
SELECT needed, job_id, on_failure FROM json_each(?) AS n
CROSS JOIN penstock_edge AS e ON e.needed = n.value
WHERE NOT e.resolved;

-- name: resolve_ended
UPDATE penstock_edge SET resolved = 1 WHERE needed IN (SELECT value FROM json_each(?));

-- name: decrement_needs
UPDATE penstock_job SET needs = needs - (p.value ->> 1)
FROM json_each(?) AS p WHERE penstock_job.id = p.value ->> 0;

-- A replacing job waits for what the replaced one still waited for.
-- name: inherit_edges
INSERT OR IGNORE INTO penstock_edge (needed, job_id, on_failure, resolved)
SELECT needed, ?2, on_failure, 0 FROM penstock_edge WHERE job_id = ?1 AND NOT resolved;

-- Dependents of the first job depend on the second instead.
-- name: hand_over_edges
INSERT OR IGNORE INTO penstock_edge (needed, job_id, on_failure, resolved)
SELECT ?2, job_id, on_failure, 0 FROM penstock_edge
WHERE needed = ?1 AND NOT resolved AND job_id IN (SELECT value FROM json_each(?3));

-- name: resolve_edges
UPDATE penstock_edge SET resolved = 1
WHERE needed = ?1 AND job_id IN (SELECT value FROM json_each(?2));

-- name: recount_needs
UPDATE penstock_job SET needs = (
    SELECT count(*) FROM penstock_edge AS e WHERE e.job_id = penstock_job.id AND NOT e.resolved
)
WHERE id IN (SELECT value FROM json_each(?));

-- A job and all that have to end before it begins: by edges, and by the order of their keys.
-- A blocked job of a key is preceded by the blocked one before it, and by what is visible or runs.
-- name: predecessors
WITH RECURSIVE ahead (id) AS (
    SELECT ?
    UNION
    SELECT e.needed FROM ahead CROSS JOIN penstock_edge AS e ON e.job_id = ahead.id
    WHERE NOT e.resolved
    UNION
    SELECT (
        SELECT max(b.id) FROM penstock_job AS b
        WHERE b.key = j.key AND b.key IS NOT NULL AND b.stage = 2 AND b.stage < 4 AND b.id < j.id
    )
    FROM ahead CROSS JOIN penstock_job AS j ON j.id = ahead.id
    WHERE j.stage = 2 AND j.key IS NOT NULL
    UNION
    SELECT v.id FROM ahead CROSS JOIN penstock_job AS j ON j.id = ahead.id
    CROSS JOIN penstock_job AS v ON v.key = j.key
    WHERE j.stage = 2 AND v.key IS NOT NULL AND v.stage IN (0, 1, 3) AND v.stage < 4
)
SELECT id FROM ahead WHERE id IS NOT NULL;

-- name: behind_in_key
SELECT min(id) FROM penstock_job
WHERE key = ?1 AND key IS NOT NULL AND stage < 4 AND id > ?2
AND id IN (SELECT value FROM json_each(?3));

-- name: any_forward_edge
SELECT EXISTS (SELECT 1 FROM penstock_edge WHERE NOT resolved AND needed > job_id);

-- name: edges
SELECT needed, job_id, on_failure, resolved FROM penstock_edge
WHERE needed IN (SELECT value FROM json_each(?1))
UNION
SELECT needed, job_id, on_failure, resolved FROM penstock_edge
WHERE job_id IN (SELECT value FROM json_each(?1))
ORDER BY 2, 1;

-- name: open_edges
SELECT needed, job_id, on_failure, resolved FROM json_each(?) AS p
CROSS JOIN penstock_edge AS e ON e.job_id = p.value
WHERE NOT e.resolved ORDER BY e.job_id, e.needed;

-- name: expired
SELECT json_group_array(id) FROM (
    SELECT id FROM penstock_job WHERE stage = 3 AND expires_at <= ? ORDER BY expires_at LIMIT ?
);

-- name: totals
SELECT queue, stage, n FROM penstock_total WHERE n <> 0;

-- name: totals_of
SELECT t.queue, t.stage, t.n FROM json_each(?1) AS q
CROSS JOIN penstock_total AS t ON t.queue = q.value
WHERE t.n <> 0;

-- name: total_summary
SELECT stage, sum(n) FROM penstock_total
WHERE n <> 0 AND queue NOT IN (SELECT value FROM json_each(?1)) GROUP BY stage;

-- Skips from one tag to the next, without visiting its jobs.
-- name: ready_tags
WITH RECURSIVE ready (tag) AS (
    SELECT min(tag) FROM penstock_ready_tag WHERE queue = ?1
    UNION ALL
    SELECT (
        SELECT min(t.tag) FROM penstock_ready_tag AS t WHERE t.queue = ?1 AND t.tag > ready.tag
    )
    FROM ready WHERE ready.tag IS NOT NULL
    LIMIT ?2
)
SELECT json_group_array(tag) FROM ready
WHERE tag IS NOT NULL;

-- name: ready_tags_among
SELECT json_group_array(tag) FROM (
    SELECT value AS tag FROM json_each(?3)
    WHERE EXISTS (SELECT 1 FROM penstock_ready_tag AS t WHERE t.queue = ?1 AND t.tag = value)
    ORDER BY value LIMIT ?2
);

-- Skips from one key to the next. The oldest pending job of each stage is at the beginning of its
-- part of the index.
-- name: keys
WITH RECURSIVE held (key) AS (
    SELECT min(key) FROM penstock_job WHERE key > ?1 AND key IS NOT NULL AND stage < 4
    UNION ALL
    SELECT (
        SELECT min(j.key) FROM penstock_job AS j
        WHERE j.key > held.key AND j.key IS NOT NULL AND j.stage < 4
    )
    FROM held WHERE held.key IS NOT NULL
    LIMIT ?2
)
SELECT h.key, ifnull(
    (
        SELECT min(j.id) FROM penstock_job AS j
        WHERE j.key = h.key AND j.key IS NOT NULL AND j.stage < 4 AND j.stage = 3
    ),
    (
        SELECT min((
            SELECT min(j.id) FROM penstock_job AS j
            WHERE j.key = h.key AND j.key IS NOT NULL AND j.stage < 4 AND j.stage = s.value
        ))
        FROM json_each('[0,1,2]') AS s
    )
), (
    SELECT count(*) FROM (
        SELECT 1 FROM penstock_job AS j
        WHERE j.key = h.key AND j.key IS NOT NULL AND j.stage < 4 LIMIT ?3
    )
)
FROM held AS h WHERE h.key IS NOT NULL;

-- The oldest job of each priority of a queue is at the beginning of its part of the index, and so is
-- that of each tenant; held jobs are looked up group by group.
-- name: oldest_ready
WITH RECURSIVE place (queue, priority) AS (
    SELECT q.value, (
        SELECT priority FROM penstock_job
        WHERE queue = q.value AND stage = 0 AND tenant IS NULL AND held IS NULL
        ORDER BY priority DESC LIMIT 1
    )
    FROM json_each(?1) AS q
    UNION ALL
    SELECT p.queue, (
        SELECT priority FROM penstock_job
        WHERE queue = p.queue AND priority < p.priority
        AND stage = 0 AND tenant IS NULL AND held IS NULL
        ORDER BY priority DESC LIMIT 1
    )
    FROM place AS p WHERE p.priority IS NOT NULL
)
SELECT p.queue, min((
    SELECT run_at FROM penstock_job
    WHERE queue = p.queue AND priority = p.priority
    AND stage = 0 AND tenant IS NULL AND held IS NULL
    ORDER BY run_at LIMIT 1
))
FROM place AS p WHERE p.priority IS NOT NULL GROUP BY p.queue;

-- name: ready_queues
SELECT json_group_array(queue) FROM penstock_total WHERE stage = 0 AND n > 0;

-- name: oldest_of_tenants
WITH RECURSIVE share (queue, priority, tenant) AS (
    SELECT q.value, p.value, (
        SELECT tenant FROM penstock_job
        WHERE queue = q.value AND priority = p.value
        AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
        ORDER BY tenant LIMIT 1
    )
    FROM json_each(?1) AS q CROSS JOIN json_each('[0,1,2,3,4,5,6,7,8,9,10]') AS p
    WHERE EXISTS (
        SELECT 1 FROM penstock_job
        WHERE queue = q.value AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
    )
    UNION ALL
    SELECT s.queue, s.priority, (
        SELECT tenant FROM penstock_job
        WHERE queue = s.queue AND priority = s.priority AND tenant > s.tenant
        AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
        ORDER BY tenant LIMIT 1
    )
    FROM share AS s WHERE s.tenant IS NOT NULL
)
SELECT s.queue, min((
    SELECT run_at FROM penstock_job
    WHERE queue = s.queue AND priority = s.priority AND tenant = s.tenant
    AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
    ORDER BY run_at LIMIT 1
))
FROM share AS s WHERE s.tenant IS NOT NULL GROUP BY s.queue;

-- name: oldest_held
SELECT run_at FROM penstock_job
WHERE stage = 0 AND held = ?1 AND held IS NOT NULL
AND ifnull(tenant, '') = ?2 AND CASE WHEN merged THEN '' ELSE queue END = ?3
AND priority = ?4
ORDER BY run_at LIMIT 1;

-- name: oldest_held_merged
SELECT queue, min(run_at) FROM penstock_job
WHERE stage = 0 AND held IS NOT NULL AND merged GROUP BY queue;

-- The plus sign keeps SQLite from scanning all jobs by id.
-- name: backlog
SELECT count(*), max(id) FROM (
    SELECT id FROM penstock_job
    WHERE stage = 0 AND tenant IS NULL AND held IS NULL
    AND (?1 IS NULL OR queue = ?1) AND +id <= ?2
    UNION ALL
    SELECT id FROM penstock_job
    WHERE stage = 0 AND tenant IS NOT NULL AND held IS NULL
    AND (?1 IS NULL OR queue = ?1) AND +id <= ?2
    UNION ALL
    SELECT id FROM penstock_job
    WHERE stage = 0 AND held IS NOT NULL AND (?1 IS NULL OR queue = ?1) AND +id <= ?2
    UNION ALL
    SELECT id FROM penstock_job WHERE stage = 1 AND (?1 IS NULL OR queue = ?1) AND +id <= ?2
    UNION ALL
    SELECT id FROM penstock_job WHERE stage = 3 AND (?1 IS NULL OR queue = ?1) AND +id <= ?2
    UNION ALL
    SELECT id FROM penstock_job
    WHERE stage = 2 AND stage < 4 AND key IS NOT NULL AND (?1 IS NULL OR queue = ?1) AND +id <= ?2
    UNION ALL
    SELECT id FROM penstock_job
    WHERE id IN (SELECT job_id FROM penstock_edge WHERE NOT resolved)
    AND stage = 2 AND key IS NULL AND (?1 IS NULL OR queue = ?1) AND +id <= ?2
);

-- name: queues
SELECT name, paused_until, max_pending, concurrency, rate, rate_window, promote_after
FROM penstock_queue WHERE name > ?1 AND (?2 = '' OR instr(name, ?2)) ORDER BY name LIMIT ?3;

-- name: queues_named
SELECT name, paused_until, max_pending, concurrency, rate, rate_window, promote_after
FROM penstock_queue WHERE name IN (SELECT value FROM json_each(?)) ORDER BY name;

-- name: count_queues
SELECT count(*), count(*) FILTER (WHERE paused_until > ?2) FROM penstock_queue
WHERE name NOT IN (SELECT value FROM json_each(?1));

-- name: configure
INSERT INTO penstock_queue (
    name, paused_until, max_pending, concurrency, rate, rate_window, promote_after
) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    paused_until = excluded.paused_until,
    max_pending = excluded.max_pending,
    concurrency = excluded.concurrency,
    rate = excluded.rate,
    rate_window = excluded.rate_window,
    promote_after = excluded.promote_after,
    merged = CASE merged WHEN 1 THEN 2 ELSE merged END;

-- name: set_limit
INSERT INTO penstock_limit (kind, name, concurrency) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET concurrency = excluded.concurrency;

-- name: remove_limit
DELETE FROM penstock_limit WHERE kind = ? AND name = ?;

-- name: limits
SELECT kind, name, concurrency FROM penstock_limit ORDER BY kind, name;

-- name: log
SELECT id, job_id, at, event, state, actor, token, duration, reason, error, detail
FROM penstock_log WHERE id > ?1 AND id <= ?3 ORDER BY id LIMIT ?2;

-- The newest entry: a transaction that has none yet commits with a higher one.
-- name: complete_log
SELECT max(ifnull((SELECT max(id) FROM penstock_log), 0), value)
FROM penstock_meta WHERE name = 'last_log';

-- name: log_of_job
WITH RECURSIVE chain (id) AS (
    SELECT version FROM penstock_job WHERE id = ?1
    UNION ALL
    SELECT l.previous FROM chain JOIN penstock_log AS l ON l.id = chain.id
    WHERE l.previous IS NOT NULL
)
SELECT l.id, l.job_id, at, event, state, actor, token, duration, reason, error, detail
FROM chain CROSS JOIN penstock_log AS l ON l.id = chain.id
WHERE l.id > ?2 ORDER BY l.id LIMIT ?3;

-- name: logs_of_jobs
WITH RECURSIVE chain (id) AS (
    SELECT j.version FROM json_each(?) AS p CROSS JOIN penstock_job AS j ON j.id = p.value
    UNION ALL
    SELECT l.previous FROM chain JOIN penstock_log AS l ON l.id = chain.id
    WHERE l.previous IS NOT NULL
)
SELECT l.id, l.job_id, at, event, state, actor, token, duration, reason, error, detail
FROM chain CROSS JOIN penstock_log AS l ON l.id = chain.id ORDER BY l.id;

-- name: deletable
SELECT json_group_array(j.id)
FROM json_each(?) AS p CROSS JOIN penstock_job AS j ON j.id = p.value ->> 0
WHERE j.version = p.value ->> 1
AND (j.stage >= 4 OR EXISTS (SELECT 1 FROM penstock_seal WHERE passage = 'left'));

-- name: source
SELECT value FROM penstock_meta WHERE name = 'source';

-- name: restored_ids
SELECT original, job_id FROM penstock_origin
WHERE source = ?1 AND original IN (SELECT value FROM json_each(?2))
UNION ALL
SELECT id, id FROM penstock_job
WHERE ?1 = (SELECT value FROM penstock_meta WHERE name = 'source')
AND id IN (SELECT value FROM json_each(?2));

-- name: add_restored_id
INSERT INTO penstock_origin (source, original, job_id) VALUES (?, ?, ?);

-- name: remember_last_ids
UPDATE penstock_meta SET value = CASE name WHEN 'last_job' THEN ?1 ELSE ?2 END
WHERE name IN ('last_job', 'last_log');

-- name: restore_job
INSERT INTO penstock_job (
    id, stage, version, attempt, token, run_at, started_at, finished_at, worker, queue, task,
    priority, enqueued_at, lease_time, merged, timeout, key, dedupe, scope, tags, retry, correlation,
    tenant, parent, throttle, trace, task_version, needs, error, result
) VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ifnull(?, 0), ?, ?
);

-- name: restore_log
INSERT INTO penstock_log (
    id, job_id, previous, at, event, state, actor, token, duration, reason, error, detail, taken_over
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: restore_line
INSERT INTO penstock_line (job_id, id, at, level, text, attempt) VALUES (?, ?, ?, ?, ?, ?);

-- name: migration_lock
SELECT passage, peer, place FROM penstock_seal;

-- name: drop_migration_lock
DELETE FROM penstock_seal;

-- name: put_migration_lock
INSERT INTO penstock_seal (passage, peer, place) VALUES (?, ?, ?);

-- name: running_tokens
SELECT j.id, j.token FROM json_each(?) AS p
CROSS JOIN penstock_job AS j ON j.id = p.value WHERE j.stage = 3;

-- name: write_progress
INSERT OR REPLACE INTO penstock_progress (job_id, done, total, note, at, started_at, start)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: write_checkpoint
INSERT OR REPLACE INTO penstock_checkpoint (job_id, body) VALUES (?, ?);

-- name: add_line
INSERT INTO penstock_line (job_id, id, at, level, text, attempt)
SELECT ?1, ifnull(max(id), 0) + 1, ?2, ?3, ?4, ?5 FROM penstock_line WHERE job_id = ?1;

-- name: drop_lines
DELETE FROM penstock_line
WHERE job_id = ?1 AND id <= (SELECT max(id) FROM penstock_line WHERE job_id = ?1) - ?2;

-- name: clear_progress
DELETE FROM penstock_progress WHERE job_id IN (SELECT value FROM json_each(?));

-- name: clear_checkpoints
DELETE FROM penstock_checkpoint WHERE job_id IN (SELECT value FROM json_each(?));

-- name: progress
SELECT n.job_id, n.done, n.total, n.note, n.at, n.started_at, n.start FROM json_each(?) AS p
CROSS JOIN penstock_progress AS n ON n.job_id = p.value;

-- name: checkpoint
SELECT c.body, j.stage = 3 FROM penstock_job AS j
CROSS JOIN penstock_checkpoint AS c ON c.job_id = j.id
WHERE j.id = ? AND j.stage <> 4;

-- name: checkpoints
SELECT c.job_id, c.body FROM json_each(?) AS p
CROSS JOIN penstock_checkpoint AS c ON c.job_id = p.value
CROSS JOIN penstock_job AS j ON j.id = c.job_id WHERE j.stage <> 4;

-- name: lines_of_jobs
SELECT l.job_id, l.id, l.at, l.level, l.text, l.attempt FROM json_each(?) AS p
CROSS JOIN penstock_line AS l ON l.job_id = p.value ORDER BY l.job_id, l.id;

-- name: lines
SELECT id, at, level, text, attempt FROM penstock_line
WHERE job_id = ? AND id > ? ORDER BY id LIMIT ?;

-- name: prunable
SELECT json_group_array(id) FROM (
    SELECT id FROM penstock_job WHERE stage = ? AND stage >= 4 AND finished_at <= ? LIMIT ?
);

-- name: prune_log
DELETE FROM penstock_log WHERE id IN (
    WITH RECURSIVE chain (id) AS (
        SELECT j.version FROM json_each(?) AS p CROSS JOIN penstock_job AS j ON j.id = p.value
        UNION ALL
        SELECT l.previous FROM chain JOIN penstock_log AS l ON l.id = chain.id
        WHERE l.previous IS NOT NULL
    )
    SELECT id FROM chain
);

-- name: prune_edges
DELETE FROM penstock_edge
WHERE needed IN (SELECT value FROM json_each(?1)) OR job_id IN (SELECT value FROM json_each(?1));

-- name: prune_payloads
DELETE FROM penstock_payload WHERE job_id IN (SELECT value FROM json_each(?));

-- name: prune_jobs
DELETE FROM penstock_job WHERE id IN (SELECT value FROM json_each(?))
RETURNING queue, stage;

-- The last entry that was rolled up, the first that was not, and the newest.
-- name: rolled_up
SELECT
    value,
    (SELECT min(id) FROM penstock_log WHERE id > value AND id <= ?1),
    (SELECT max(id) FROM penstock_log WHERE id > value AND id <= ?1)
FROM penstock_meta WHERE name = 'digested';

-- One step for a portion of the log, about a microsecond an entry. Grouping by what differs most,
-- numbers first, saves a quarter of that; choosing the portion by LIMIT would add a third.
-- name: sums
SELECT
    l.at / 60000000 AS minute,
    j.queue,
    l.event,
    CASE
        WHEN l.duration IS NULL OR l.event = 'snoozed' THEN 0
        WHEN l.duration <= ?3 THEN 1
        WHEN l.duration <= ?4 THEN 2
        WHEN l.duration <= ?5 THEN 3
        WHEN l.duration <= ?6 THEN 4
        WHEN l.duration <= ?7 THEN 5
        WHEN l.duration <= ?8 THEN 6
        WHEN l.duration <= ?9 THEN 7
        WHEN l.duration <= ?10 THEN 8
        WHEN l.duration <= ?11 THEN 9
        WHEN l.duration <= ?12 THEN 10
        WHEN l.duration <= ?13 THEN 11
        WHEN l.duration <= ?14 THEN 12
        WHEN l.duration <= ?15 THEN 13
        WHEN l.duration <= ?16 THEN 14
        WHEN l.duration <= ?17 THEN 15
        WHEN l.duration <= ?18 THEN 16
        WHEN l.duration <= ?19 THEN 17
        ELSE 18
    END AS bucket,
    count(*),
    sum(CASE WHEN l.duration > 0 AND l.event <> 'snoozed' THEN l.duration ELSE 0 END)
FROM penstock_log AS l
CROSS JOIN penstock_job AS j ON j.id = l.job_id
WHERE l.id BETWEEN ?1 AND ?2 AND l.taken_over IS NULL
GROUP BY bucket, l.event, minute, j.queue;

-- name: log_size
SELECT count(*) FROM penstock_log WHERE id BETWEEN ? AND ?;

-- name: any_old_history
SELECT 1 FROM penstock_history WHERE minute < ? LIMIT 1;

-- name: add_history
INSERT INTO penstock_history (minute, queue, event, bucket, n, micros)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
FROM json_each(?) WHERE true
ON CONFLICT DO UPDATE SET n = n + excluded.n, micros = micros + excluded.micros;

-- Events of queues without counters of their own are added to those of all such queues.
-- name: add_counters
INSERT INTO penstock_counter (queue, event, bucket, n, micros)
SELECT ifnull(s.queue, ''), value ->> 2, value ->> 3, sum(value ->> 4), sum(value ->> 5)
FROM json_each(?) LEFT JOIN penstock_series AS s ON s.queue = value ->> 1 WHERE true
GROUP BY 1, 2, 3
ON CONFLICT DO UPDATE SET n = n + excluded.n, micros = micros + excluded.micros;

-- name: set_rolled_up
UPDATE penstock_meta SET value = ?2 WHERE name = 'digested' AND value = ?1 RETURNING value;

-- name: drop_old_history
DELETE FROM penstock_history WHERE (minute, queue, event, bucket) IN (
    SELECT minute, queue, event, bucket FROM penstock_history WHERE minute < ? LIMIT ?
);

-- Steps start at 1970.
-- name: history
SELECT minute - minute % ?1 AS step, queue, event, bucket, sum(n), sum(micros)
FROM penstock_history
WHERE minute >= ?2 AND minute < ?3 AND queue <> ''
GROUP BY 1, 2, 3, 4;

-- name: history_of
SELECT h.minute - h.minute % ?1 AS step, h.queue, h.event, h.bucket, sum(h.n), sum(h.micros)
FROM json_each(?4) AS q CROSS JOIN penstock_history AS h
ON h.queue = q.value AND h.minute >= ?2 AND h.minute < ?3
GROUP BY 1, 2, 3, 4;

-- name: counters
SELECT 0, queue, event, bucket, n, micros FROM penstock_counter;

-- name: series
SELECT s.queue FROM penstock_series AS s
WHERE EXISTS (SELECT 1 FROM penstock_queue WHERE name = s.queue) ORDER BY s.queue;

-- How many there may be, 0 for the default; locked until the transaction ends.
-- name: series_limit
SELECT value FROM penstock_meta WHERE name = 'series';

-- name: limit_series
UPDATE penstock_meta SET value = ? WHERE name = 'series';

-- name: any_gone_series
SELECT 1 FROM penstock_series AS s
WHERE NOT EXISTS (SELECT 1 FROM penstock_queue WHERE name = s.queue) LIMIT 1;

-- Queues without counters are found after those that have some, which are few.
-- name: without_series
SELECT q.name FROM penstock_queue AS q
WHERE NOT EXISTS (SELECT 1 FROM penstock_series WHERE queue = q.name) AND q.name <> ?2
ORDER BY q.name LIMIT max(0, ?1 - (SELECT count(*) FROM penstock_series));

-- name: drop_counters
DELETE FROM penstock_counter WHERE queue IN (
    SELECT s.queue FROM penstock_series AS s
    WHERE NOT EXISTS (SELECT 1 FROM penstock_queue WHERE name = s.queue)
);

-- name: drop_series
DELETE FROM penstock_series
WHERE NOT EXISTS (SELECT 1 FROM penstock_queue WHERE name = penstock_series.queue);

-- name: add_series
INSERT INTO penstock_series SELECT value FROM json_each(?);

-- When the next job falls due or a pause ends, and whether a rate may let one start.
-- name: next_change
SELECT min(at), EXISTS (SELECT 1 FROM penstock_queue WHERE rate IS NOT NULL) FROM (
    SELECT min(run_at) AS at FROM penstock_job WHERE stage = 1 AND run_at > ?1
    UNION ALL
    SELECT min(paused_until) FROM penstock_queue
    WHERE paused_until > 0 AND paused_until > ?1 AND paused_until < 9223372036854775807
);

-- name: rates_in_force
SELECT q.rate, q.rate_window, r.starts FROM penstock_queue AS q
JOIN penstock_rate AS r ON r.queue = q.name
JOIN penstock_total AS t ON t.queue = q.name AND t.stage = 0
WHERE q.rate IS NOT NULL AND t.n > 0 AND q.paused_until <= ?;

-- The beginnings of a search; the store appends the conditions.
-- name: find
SELECT
    j.id, j.stage, j.version, j.attempt, j.token, j.run_at, j.started_at, j.expires_at,
    j.worker, j.queue, j.task, j.priority, j.enqueued_at, j.lease_time, l.body,
    CASE WHEN coalesce(
        j.timeout, j.key, j.dedupe, j.tags, j.retry, j.correlation, j.tenant, j.parent,
        j.throttle, j.trace, j.finished_at, j.error, j.result, j.task_version
    ) IS NOT NULL OR j.needs OR j.cancel_requested THEN json_array(
        j.finished_at, j.cancel_requested, j.needs, j.timeout, j.key, j.dedupe, j.scope,
        j.tags, j.retry, j.correlation, j.tenant, j.parent, j.throttle, j.trace, j.error,
        j.result, j.task_version
    ) END
FROM penstock_job AS j
CROSS JOIN penstock_payload AS l ON l.job_id = j.id
WHERE

-- name: find_tagged
SELECT
    j.id, j.stage, j.version, j.attempt, j.token, j.run_at, j.started_at, j.expires_at,
    j.worker, j.queue, j.task, j.priority, j.enqueued_at, j.lease_time, l.body,
    CASE WHEN coalesce(
        j.timeout, j.key, j.dedupe, j.tags, j.retry, j.correlation, j.tenant, j.parent,
        j.throttle, j.trace, j.finished_at, j.error, j.result, j.task_version
    ) IS NOT NULL OR j.needs OR j.cancel_requested THEN json_array(
        j.finished_at, j.cancel_requested, j.needs, j.timeout, j.key, j.dedupe, j.scope,
        j.tags, j.retry, j.correlation, j.tenant, j.parent, j.throttle, j.trace, j.error,
        j.result, j.task_version
    ) END
FROM penstock_tag AS t
CROSS JOIN penstock_job AS j ON j.id = t.job_id
CROSS JOIN penstock_payload AS l ON l.job_id = j.id
WHERE t.tag = ? AND

-- name: find_ids
SELECT j.id FROM penstock_job AS j WHERE

-- name: find_ids_tagged
SELECT j.id FROM penstock_tag AS t
CROSS JOIN penstock_job AS j ON j.id = t.job_id
WHERE t.tag = ? AND

-- name: tally
SELECT j.stage, count(*) FROM penstock_job AS j WHERE

-- name: tally_tagged
SELECT j.stage, count(*) FROM penstock_tag AS t
CROSS JOIN penstock_job AS j ON j.id = t.job_id
WHERE t.tag = ? AND

-- name: schedules
SELECT
    name, version, next_at, last_at, last_job, paused, declared, job, cron, every, timezone,
    missed, overlap
FROM penstock_schedule WHERE name > '' ORDER BY name;

-- name: schedules_named
SELECT
    name, version, next_at, last_at, last_job, paused, declared, job, cron, every, timezone,
    missed, overlap
FROM penstock_schedule WHERE name IN (SELECT value FROM json_each(?)) ORDER BY name;

-- name: schedule_version
SELECT version, next_at, paused FROM penstock_schedule WHERE name = ?;

-- name: next_schedule_version
UPDATE penstock_meta SET value = value + 1 WHERE name = 'last_schedule' RETURNING value;

-- name: put_schedule
INSERT OR REPLACE INTO penstock_schedule (
    name, version, next_at, last_at, last_job, paused, declared, task, job, cron, every, timezone,
    missed, overlap
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_schedule
DELETE FROM penstock_schedule WHERE name = ? RETURNING name;

-- name: due_schedules
SELECT
    name, version, next_at, last_at, last_job, paused, declared, job, cron, every, timezone,
    missed, overlap
FROM penstock_schedule
WHERE paused = 0 AND next_at <= ?1
AND +task IN (SELECT value FROM json_each(?2))
AND (NOT declared OR +name IN (SELECT value FROM json_each(?3)))
ORDER BY next_at LIMIT ?4;

-- name: next_schedule
SELECT next_at FROM penstock_schedule
WHERE paused = 0 AND next_at > ?1
AND +task IN (SELECT value FROM json_each(?2))
AND (NOT declared OR +name IN (SELECT value FROM json_each(?3)))
ORDER BY next_at LIMIT 1;

-- name: schedule_fired
UPDATE penstock_schedule SET
    version = ?2, next_at = ?3, last_at = ifnull(?4, last_at), last_job = ifnull(?5, last_job)
WHERE name = ?1;

-- For entries that were written in this transaction.
-- name: log_reason
UPDATE penstock_log SET reason = ? WHERE id = ?;

-- name: tokens
SELECT name, digest, scopes, created_at, expires_at FROM penstock_token ORDER BY name;

-- name: add_token
INSERT INTO penstock_token (name, digest, scopes, created_at, expires_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING name;

-- name: drop_token
DELETE FROM penstock_token WHERE name = ? RETURNING name;

-- name: heartbeat
INSERT INTO penstock_worker (
    name, host, pid, queues, tags, concurrency, started_at, seen_at, tasks, schema_version
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, {schema})
ON CONFLICT (name) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, queues = excluded.queues, tags = excluded.tags,
    concurrency = excluded.concurrency, started_at = excluded.started_at,
    seen_at = excluded.seen_at, tasks = excluded.tasks, schema_version = excluded.schema_version
RETURNING draining;

-- name: drain_worker
UPDATE penstock_worker SET draining = 1 WHERE name = ? RETURNING name;

-- name: deregister
DELETE FROM penstock_worker WHERE name IN (SELECT value FROM json_each(?))
RETURNING coalesce(host, name), seen_at, tasks;

-- name: remember_tasks
INSERT INTO penstock_departed_task (name, host, seen_at, task)
SELECT value ->> 'name', ?1, ?2, value FROM json_each(?3) WHERE true
ON CONFLICT (name) DO UPDATE SET
    host = excluded.host, seen_at = excluded.seen_at, task = excluded.task
WHERE excluded.seen_at >= penstock_departed_task.seen_at;

-- Forgets those that left before a time, and the oldest of those that are too many.
-- name: forget_tasks
DELETE FROM penstock_departed_task
WHERE seen_at < ?1 OR name IN (
    SELECT name FROM penstock_departed_task ORDER BY seen_at DESC, name LIMIT -1 OFFSET ?2
);

-- name: departed_tasks
SELECT host, seen_at, task FROM penstock_departed_task ORDER BY name;

-- name: workers
SELECT name, host, pid, queues, tags, concurrency, started_at, seen_at, draining, tasks
FROM penstock_worker;

-- A worker was last seen when it claimed a lease, or renewed it a whole lease before its end.
-- name: holdings
SELECT
    worker, count(*), min(started_at), min(expires_at),
    max(max(started_at, expires_at - lease_time))
FROM penstock_job WHERE stage = 3 GROUP BY worker;

-- Heartbeats, and what else anyone may wait for: jobs by their log, and settings.
-- name: change_marks
SELECT
    (SELECT json_group_array(json_array(name, seen_at)) FROM penstock_worker),
    json_array(
        (SELECT max(id) FROM penstock_log),
        (SELECT max(id) FROM penstock_newcomer),
        (SELECT value FROM penstock_meta WHERE name = 'last_schedule'),
        (SELECT value FROM penstock_meta WHERE name = 'configured'),
        (SELECT json_group_array(digest) FROM penstock_token)
    );

-- name: triggers
SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, length(?1)) = ?1;

-- The bytes of all pages; dead rows exist in PostgreSQL only.
-- name: size
SELECT page_count * page_size, NULL FROM pragma_page_count(), pragma_page_size();
