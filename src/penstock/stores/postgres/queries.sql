-- Every query of the PostgreSQL store, in the order of the Store protocol, under the names of the
-- SQLite store where it has the same. `{_name}` is replaced with the text of that part.
-- Lists come as JSON where they are short, as binary arrays where there may be thousands.
--
-- The planner's statistics are useless here: it may have seen a table empty a moment before a million
-- jobs were added. So it gets no choice where a table grows with the jobs: lists are looked up row by
-- row (LATERAL with OFFSET 0, which it does not rewrite), and rows are updated by their ctid, since no
-- index could lead the other way round.

-- The columns of a job; those that most jobs do not use are grouped, NULL for jobs without any.
-- name: _columns
j.id, j.stage, j.version, j.attempt, j.token, j.run_at, j.started_at, j.expires_at, j.worker,
    j.queue, j.task, j.priority, j.enqueued_at, j.lease_time, j.body,
    CASE WHEN num_nonnulls(
        j.timeout, j.key, j.dedupe, j.tags, j.retry, j.correlation, j.tenant, j.parent,
        j.throttle, j.trace, j.finished_at, j.error, j.result, j.task_version
    ) > 0 OR j.needs > 0 OR j.cancel_requested THEN json_build_array(
        j.finished_at, j.cancel_requested, j.needs, j.timeout, j.key, j.dedupe, j.scope,
        j.tags, j.retry, j.correlation, j.tenant, j.parent, j.throttle, j.trace, j.error,
        j.result, j.task_version
    )::text END

-- The ctids of the jobs of a JSON list, each with a new number. The planner gets no choice: whatever
-- its statistics say, the jobs are looked up one by one, and updated by their ctids.
-- name: _targets
t AS MATERIALIZED (
    SELECT p.number, j.tid
    FROM ROWS FROM (unnest($1::bigint[]), json_array_elements_text($2::json)) AS p (number, id)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.job_active WHERE id = p.id::bigint OFFSET 0
    ) AS j
)

-- The ids of a JSON list, in its order.
-- name: _ids
(SELECT value::bigint AS id, n FROM json_array_elements_text($1::json) WITH ORDINALITY AS p (value, n)) AS p

-- An unfinished job by its id.
-- name: _active
LATERAL (SELECT ctid AS tid, * FROM penstock.job_active WHERE id = p.id OFFSET 0) AS j

-- A job in any partition, with its ctid there.
-- name: _stored
LATERAL (SELECT tableoid AS part, ctid AS tid, * FROM penstock.job WHERE id = p.id OFFSET 0) AS j

-- A job by its id, finished or not; most are not.
-- name: _any_job
LATERAL (
    SELECT * FROM penstock.job_active AS a WHERE a.id = p.id
    UNION ALL
    SELECT * FROM penstock.job AS f WHERE f.id = p.id AND f.shelf <> 0
    LIMIT 1
) AS j

-- Every transaction begins with one of these. Without the view of its schema, a program is refused;
-- until the transaction ends, the view cannot be dropped.
-- name: enter
SELECT penstock.enter($1::integer), penstock.newest(), oldest_program
FROM penstock.schema_{schema};

-- name: enter_notifying
SELECT penstock.enter($1::integer), penstock.newest(), oldest_program, pg_notify($2, $3)
FROM penstock.schema_{schema};

-- The time of a statement, where the client leaves it to the server.
-- name: _now
(SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint))

-- Leaves the client's number for this transaction, if it writes anything: see `writer.py`.
-- name: _receipt
receipt AS (
    INSERT INTO penstock.receipt AS r (client, number)
    SELECT $3::bigint, $4::bigint WHERE $3 IS NOT NULL AND EXISTS (SELECT 1 FROM numbered)
    ON CONFLICT (client) DO UPDATE SET number = excluded.number, at = excluded.at
)

-- What became of a client's transaction: its id if it has committed, and whether the session that
-- ran it still exists.
-- name: outcome
SELECT
    (SELECT xmin::text FROM penstock.receipt WHERE client = $1 AND number = $2),
    EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = $3 AND backend_start = $4);

-- name: session
SELECT penstock.life(), penstock.newest(), pid, backend_start FROM pg_stat_activity
WHERE pid = pg_backend_pid();

-- What a transaction wrote whose answer was lost, after an entry that is older.
-- name: added_by
SELECT job_id, id, at FROM penstock.log WHERE id > $1 AND xmin = $2::xid AND event = 'enqueued'
ORDER BY id;

-- name: claimed_by
SELECT true, -j.priority, j.run_at, l.previous, {_columns}
FROM (
    SELECT * FROM penstock.log WHERE id > $1 AND xmin = $2::xid AND event = 'claimed' OFFSET 0
) AS l
CROSS JOIN LATERAL (
    SELECT * FROM penstock.job_active WHERE id = l.job_id AND token = l.id OFFSET 0
) AS j
ORDER BY -j.priority, j.run_at, j.id;

-- name: drop_receipts
DELETE FROM penstock.receipt WHERE at < now() - interval '1 day';

-- name: now
SELECT penstock.now();

-- Whether log entries of this time were written by the transaction with this id; only among the
-- newest: this is asked soon after it ended.
-- name: has_logged
SELECT EXISTS (
    SELECT 1 FROM (
        SELECT at, xmin AS writer FROM penstock.log ORDER BY id DESC LIMIT 100000
    ) AS l
    WHERE at = $1 AND writer = ($2::xid8)::xid
);

-- name: add_partitions
SELECT penstock.make_room($1::integer);

-- name: notify
SELECT pg_notify($1, $2);

-- name: reserve
SELECT
    ARRAY(SELECT nextval('penstock.job_id') FROM generate_series(1, $1::integer)),
    ARRAY(SELECT nextval('penstock.log_id') FROM generate_series(1, $2::integer));

-- name: last_ids
SELECT
    (SELECT last_value - (NOT is_called)::integer FROM penstock.job_id), penstock.newest();

-- The name of a WAL file begins with its timeline, from the moment of a promotion on. What
-- pg_control_checkpoint() says follows with the next checkpoint only.
-- name: timeline
SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;

-- name: meta
SELECT value FROM penstock.meta WHERE name = $1;

-- name: set_meta
INSERT INTO penstock.meta (name, value) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: queue
SELECT name, paused_until, max_pending, concurrency, rate, rate_window, promote_after
FROM penstock.queue WHERE name = $1;

-- Locks the queue against removal until the transaction ends.
-- name: max_pending
SELECT max_pending, merged FROM penstock.queue WHERE name = $1 FOR KEY SHARE;

-- name: any_max_pending
SELECT EXISTS (
    SELECT 1 FROM json_array_elements_text($1::json) AS n
    JOIN penstock.queue AS q ON q.name = n WHERE q.max_pending IS NOT NULL
);

-- name: max_pendings
SELECT q.name, q.max_pending, q.merged FROM penstock.queue AS q
WHERE q.name IN (SELECT json_array_elements_text($1::json)) ORDER BY q.name FOR KEY SHARE;

-- The first queues of a store have indexes of their own.
-- name: add_queues
INSERT INTO penstock.queue (name, merged)
SELECT n.name, (penstock.names() + n.number > m.value)::integer
FROM unnest($1::text[]) WITH ORDINALITY AS n (name, number)
CROSS JOIN penstock.meta AS m
WHERE m.name = 'own_lines' AND NOT EXISTS (SELECT 1 FROM penstock.queue AS q WHERE q.name = n.name)
ORDER BY n.name
ON CONFLICT DO NOTHING;

-- Gives queues an index of their own; their jobs follow in portions.
-- name: unmerge
UPDATE penstock.queue SET merged = 2
WHERE merged = 1 AND name IN (
    SELECT name FROM penstock.queue
    WHERE merged = 1 AND name IN (SELECT json_array_elements_text($1::json))
    ORDER BY name FOR NO KEY UPDATE SKIP LOCKED
);

-- The same, while fewer than so many have one.
-- name: unmerge_for_tenants
UPDATE penstock.queue SET merged = 2
WHERE merged = 1 AND name IN (
    SELECT name FROM penstock.queue
    WHERE merged = 1 AND name IN (SELECT json_array_elements_text($1::json))
    AND (SELECT count(*) FROM (SELECT 1 FROM penstock.queue WHERE merged <> 1 LIMIT $2) AS own) < $2
    ORDER BY name FOR NO KEY UPDATE SKIP LOCKED
);

-- name: unmerging
SELECT name FROM penstock.queue AS q WHERE merged = 2
ORDER BY
    name IN (SELECT json_array_elements_text($1::json)) DESC,
    EXISTS (SELECT 1 FROM penstock.job_active AS j WHERE j.queue = q.name AND j.merged) DESC
LIMIT 1;

-- Transactions that add jobs to the queue lock it: once none does, no merged job can be added.
-- name: lock_queue
SELECT name FROM penstock.queue WHERE name = $1 FOR UPDATE SKIP LOCKED;

-- A merged queue to which a caller's transaction added jobs of tenants.
-- name: merged_with_tenants
SELECT queue FROM penstock.job_active WHERE merged AND tenant IS NOT NULL AND tenant >= ''
ORDER BY tenant LIMIT 1;

-- name: unmerge_jobs
WITH t AS MATERIALIZED (
    SELECT ctid AS tid FROM penstock.job_active
    WHERE queue = $1 AND merged LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE penstock.job_active AS j SET merged = false FROM t WHERE j.ctid = t.tid RETURNING j.id;

-- name: finish_unmerge
UPDATE penstock.queue SET merged = 0
WHERE name = $1 AND merged = 2
AND NOT EXISTS (SELECT 1 FROM penstock.job_active WHERE queue = $1 AND merged);

-- name: queue_usage
SELECT penstock.names(), nullif(penstock.most_names(), 0);

-- Others are notified of settings; nothing is counted here.
-- name: count_configuration
SELECT 1;

-- Queues among these that have no jobs, as far as this transaction sees, and no settings.
-- name: unused
WITH n AS MATERIALIZED (SELECT json_array_elements_text($1::json) COLLATE "C" AS name),
counted AS MATERIALIZED (
    SELECT queue, sum(n) AS jobs FROM (
        SELECT t.queue, t.n FROM n CROSS JOIN LATERAL (
            SELECT queue, n FROM penstock.total WHERE queue = n.name OFFSET 0
        ) AS t
        UNION ALL
        SELECT queue, n FROM penstock.delta
        WHERE id > (SELECT value FROM penstock.meta WHERE name = 'folded')
        AND queue IN (SELECT name FROM n)
    ) AS t
    GROUP BY queue HAVING sum(n) <> 0
)
SELECT q.name FROM n CROSS JOIN LATERAL (
    SELECT * FROM penstock.queue WHERE name = n.name OFFSET 0
) AS q
WHERE q.paused_until <= $2
AND num_nonnulls(q.max_pending, q.concurrency, q.rate, q.promote_after) = 0
AND q.name NOT IN (SELECT queue FROM counted);

-- Transactions that add jobs lock their queues until they end: such queues are skipped.
-- name: lock_unused
SELECT name FROM penstock.queue
WHERE name IN (SELECT json_array_elements_text($1::json)) ORDER BY name FOR UPDATE SKIP LOCKED;

-- name: remove_unused
WITH gone AS (
    DELETE FROM penstock.queue WHERE name IN (SELECT json_array_elements_text($1::json))
    RETURNING name
),
turns AS (
    DELETE FROM penstock.turn AS d USING (
        SELECT t.tid FROM gone AS g CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM penstock.turn WHERE queue = g.name OFFSET 0
        ) AS t
    ) AS t
    WHERE d.ctid = t.tid
),
rates AS (
    DELETE FROM penstock.rate AS d USING (
        SELECT t.tid FROM gone AS g CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM penstock.rate WHERE queue = g.name OFFSET 0
        ) AS t
    ) AS t
    WHERE d.ctid = t.tid
)
SELECT count(*) FROM gone;

-- Removes totals of zero.
-- name: drop_empty_totals
DELETE FROM penstock.total AS d USING (
    SELECT ctid AS tid FROM penstock.total WHERE n = 0 LIMIT $1
) AS t
WHERE d.ctid = t.tid AND d.n = 0;

-- Queues without settings, by name.
-- name: unconfigured_queues
SELECT coalesce(json_agg(name)::text, '[]') FROM (
    SELECT name FROM penstock.queue
    WHERE name > $1 AND paused_until <= $2
    AND num_nonnulls(max_pending, concurrency, rate, promote_after) = 0
    ORDER BY name LIMIT $3
) AS q;

-- name: count_new_queues
WITH seen AS (UPDATE penstock.queue SET counted = true WHERE NOT counted RETURNING 1)
UPDATE penstock.meta SET value = value + (SELECT count(*) FROM seen) WHERE name = 'queues'
AND EXISTS (SELECT 1 FROM penstock.queue WHERE NOT counted);

-- name: pending_total
SELECT coalesce(sum(n), 0)::bigint FROM (
    SELECT n FROM penstock.total WHERE queue = $1 AND stage < 3
    UNION ALL
    SELECT n FROM penstock.delta
    WHERE id > (SELECT value FROM penstock.meta WHERE name = 'folded') AND queue = $1 AND stage < 3
) AS t;

-- name: unfinished_total
SELECT coalesce(sum(n), 0)::bigint FROM (
    SELECT n FROM penstock.total WHERE queue = $1 AND stage < 4
    UNION ALL
    SELECT n FROM penstock.delta
    WHERE id > (SELECT value FROM penstock.meta WHERE name = 'folded') AND queue = $1 AND stage < 4
) AS t;

-- name: dedupe_holders
SELECT k.dedupe, j.* FROM json_array_elements_text($1::json) AS k (dedupe)
CROSS JOIN LATERAL (
    SELECT id, stage, scope FROM penstock.job_active
    WHERE dedupe = k.dedupe AND dedupe IS NOT NULL AND stage < 3 AND NOT arriving
    UNION ALL
    SELECT id, stage, scope FROM penstock.job_active
    WHERE dedupe = k.dedupe AND dedupe IS NOT NULL AND stage < 3 AND arriving
    UNION ALL
    SELECT id, stage, scope FROM penstock.job_active
    WHERE dedupe = k.dedupe AND dedupe IS NOT NULL AND stage = 3
    OFFSET 0
) AS j;

-- name: held_keys
SELECT coalesce(json_agg(k)::text, '[]') FROM json_array_elements_text($1::json) AS k
WHERE EXISTS (SELECT 1 FROM penstock.job_active WHERE key = k AND key IS NOT NULL OFFSET 0);

-- Before jobs with keys or dedupe keys are added with a shared lock: whether they need an exclusive
-- one, and a lock on each key, in one order for all.
-- name: lock_keys
SELECT
    {_any_external_change} OR EXISTS (
        SELECT 1 FROM unnest($2::text[]) AS n
        JOIN penstock.queue AS q ON q.name = n COLLATE "C" WHERE q.max_pending IS NOT NULL
    ),
    (
        SELECT count(pg_advisory_xact_lock('penstock.edge'::regclass::oid::integer, h))
        FROM (SELECT DISTINCT hashtext(k) AS h FROM unnest($1::text[]) AS k ORDER BY h OFFSET 0) AS k
    );

-- Plain jobs in one statement: payloads and actors differ, the rest is the same. It decides in SQL,
-- because reading the queue and the migration lock first would cost two more round trips: nothing is
-- written if the queue has a limit or does not exist, or if the store is locked.
-- name: add_plain
WITH entered AS MATERIALIZED (
    SELECT now, coalesce($6::bigint, now + $7::bigint) AS due, merged
    FROM (
        SELECT merged = 1 AS merged, {_now} AS now FROM penstock.queue
        WHERE name = $8 AND max_pending IS NULL FOR KEY SHARE
    ) AS q
    WHERE NOT EXISTS (SELECT 1 FROM penstock.seal)
),
numbered AS MATERIALIZED (
    SELECT
        nextval('penstock.job_id') AS id, nextval('penstock.log_id') AS version, p.body, p.actor,
        e.now, e.due, e.merged
    FROM entered AS e CROSS JOIN unnest($2::text[], $5::text[]) AS p (body, actor)
),
job AS (
    INSERT INTO penstock.job_active (
        id, version, enqueued_at, stage, run_at, queue, task, priority, lease_time, body, timeout,
        retry, correlation, parent, trace, task_version, merged
    )
    SELECT
        id, version, now, (due > now)::integer, due, $8, $9, $10, $11, body, $12, $13, $14, $15,
        $16, $17, merged
    FROM numbered
),
entry AS (
    INSERT INTO penstock.log (id, job_id, at, day, event, state, queue, actor)
    SELECT version, id, now, now / 86400000000, 'enqueued', 'pending', $8, actor FROM numbered
),
counted AS (
    INSERT INTO penstock.delta (id, queue, stage, n)
    SELECT max(version), $8, (max(due) > max(now))::integer, count(*)
    FROM numbered HAVING count(*) > 0
),
{_receipt}
SELECT id, version, now FROM numbered;

-- Jobs of every kind, with reserved ids: each column is a list.
-- name: add_jobs
INSERT INTO penstock.job_active (
    id, version, body, enqueued_at,
    stage, run_at, queue, task, priority, lease_time, merged, timeout, key, dedupe, scope, tags,
    retry, correlation, tenant, parent, throttle, trace, task_version, needs
)
SELECT
    id, version, body, $24,
    stage, run_at, queue, task, priority, lease_time, merged = 1, timeout, key, dedupe, scope, tags,
    retry, correlation, tenant, parent, throttle, trace, task_version, coalesce(needs, 0)
FROM unnest(
    $1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[],
    $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::text[],
    $14::text[], $15::text[], $16::text[], $17::text[], $18::text[], $19::bigint[], $20::text[],
    $21::text[], $22::bigint[], $23::bigint[]
) AS p (
    id, version, body, stage, run_at, queue, task, priority, lease_time, merged, timeout, key,
    dedupe, scope, tags, retry, correlation, tenant, parent, throttle, trace,
    task_version, needs
);

-- name: add_tags_of
INSERT INTO penstock.tag (tag, job_id)
SELECT t.tag, j.id FROM unnest($1::bigint[]) AS p (id) CROSS JOIN {_active}
CROSS JOIN LATERAL json_array_elements_text(j.tags::json) AS t (tag)
ON CONFLICT DO NOTHING;

-- name: add_tags
INSERT INTO penstock.tag (tag, job_id)
SELECT t, p.id FROM unnest($1::bigint[]) AS p (id)
CROSS JOIN json_array_elements_text($3::json) AS t WHERE $2::bigint IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: add_ready_tags
INSERT INTO penstock.ready_tag (queue, tag, priority, tenant, run_at, job_id, merged)
SELECT $4, t, $5, coalesce($6, ''), $7, p.id, $8::boolean FROM unnest($1::bigint[]) AS p (id)
CROSS JOIN json_array_elements_text($3::json) AS t WHERE $2::bigint IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: log_added
INSERT INTO penstock.log (id, job_id, at, day, event, state, queue, actor)
SELECT p.version, j.id, $4, $4::bigint / 86400000000, 'enqueued', 'pending', j.queue, $5
FROM unnest($1::bigint[], $2::bigint[]) AS p (version, id)
CROSS JOIN {_active} WHERE $3::bigint IS NOT NULL;

-- name: add_totals
INSERT INTO penstock.delta (id, queue, stage, n)
SELECT $2, value ->> 0, (value ->> 1)::smallint, (value ->> 2)::bigint
FROM json_array_elements($1::json);

-- name: any_due
SELECT 1 FROM penstock.job_active WHERE stage = 1 AND run_at <= $1 ORDER BY run_at LIMIT 1;

-- name: promote_due
WITH t AS MATERIALIZED (
    SELECT ctid AS tid FROM penstock.job_active WHERE stage = 1 AND run_at <= $1
    ORDER BY run_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE penstock.job_active AS j SET stage = 0 FROM t WHERE j.ctid = t.tid
RETURNING j.queue;

-- What a claim has to know first: whether jobs have fallen due, whether there are external changes,
-- whether limits, tenants or ages matter, and which queues are open.
-- name: _any_due
EXISTS (SELECT 1 FROM penstock.job_active WHERE stage = 1 AND run_at <= {_now})

-- name: _any_external_change
(
    EXISTS (SELECT 1 FROM penstock.arrival) OR EXISTS (SELECT 1 FROM penstock.newcomer)
    OR EXISTS (SELECT 1 FROM penstock.seal)
)

-- Whether jobs are held by limits, or set aside under one of these names; NULL stands for all.
-- name: _any_held
EXISTS (SELECT 1 FROM penstock.job_active WHERE stage = 0 AND held IS NOT NULL) AND (
        h.holders IS NULL
        OR EXISTS (
            SELECT 1 FROM penstock.job_active
            WHERE stage = 0 AND held < 'unknown:' AND held IS NOT NULL
        )
        OR EXISTS (
            SELECT 1 FROM unnest(h.holders) AS k CROSS JOIN LATERAL (
                SELECT 1 FROM penstock.job_active
                WHERE stage = 0 AND held = k AND held IS NOT NULL LIMIT 1
            ) AS j
        )
    )

-- name: _any_limited
(
    {_any_held}
    OR EXISTS (
        SELECT 1 FROM penstock.job_active
        WHERE stage = 0 AND tenant IS NOT NULL AND held IS NULL
    )
    OR EXISTS (
        SELECT 1 FROM penstock.job_active
        WHERE stage = 0 AND throttle IS NOT NULL AND held IS NULL
    )
    OR EXISTS (SELECT 1 FROM penstock."limit" WHERE kind = 'task')
    OR EXISTS (
        SELECT 1 FROM penstock.queue
        WHERE concurrency IS NOT NULL OR rate IS NOT NULL OR promote_after IS NOT NULL
    )
)

-- The open queues with indexes of their own, and '' if there are merged ones.
-- name: _open_queues
ARRAY(
        SELECT name FROM penstock.queue WHERE merged <> 1 AND paused_until <= {_now} ORDER BY name
    ) || CASE WHEN EXISTS (SELECT 1 FROM penstock.queue WHERE merged = 1) THEN '{""}'::text[] END

-- name: claimable
SELECT {_any_due}, {_any_external_change}, {_any_limited}, {_open_queues}
FROM (SELECT $2::text[] AS holders) AS h;

-- The same for queues that a worker names, merged or not.
-- name: claimable_named
SELECT
    {_any_due}, {_any_external_change}, {_any_limited},
    ARRAY(
        SELECT q.name FROM unnest($2::text[]) AS n JOIN penstock.queue AS q ON q.name = n COLLATE "C"
        WHERE q.paused_until <= $1 ORDER BY q.name
    )
FROM (SELECT $3::text[] AS holders) AS h;

-- name: queues_with_ready
SELECT q.name, true, q.merged FROM penstock.queue AS q
WHERE q.merged <> 1 AND q.paused_until <= $1 AND {_ready};

-- name: named_with_ready
SELECT q.name, true, q.merged
FROM json_array_elements_text($2::json) AS n JOIN penstock.queue AS q ON q.name = n COLLATE "C"
WHERE q.paused_until <= $1 AND {_ready};

-- The name under which a job is set aside by claims that do not know its task.
-- name: _holder
'unknown:' || coalesce(j.task_version, 1) || ':' || j.task

-- The next jobs of one queue that no other transaction has locked, from a position on.
-- name: _picked
SELECT
        j.ctid AS tid, j.id, j.version AS previous, -j.priority AS rank, j.run_at, {_holder} AS holder
    FROM penstock.job_active AS j
    WHERE j.queue = q.name AND j.stage = 0 AND j.tenant IS NULL AND j.held IS NULL
    AND j.throttle IS NULL
    AND (-j.priority, j.run_at, j.id) >= (q.rank, q.run_at, q.id)
    ORDER BY -j.priority, j.run_at, j.id

-- The same for all merged queues, except some. Jobs of a queue that left the merged index a moment
-- ago may still be in it.
-- name: _picked_merged
SELECT
        j.ctid AS tid, j.id, j.version AS previous, -j.priority AS rank, j.run_at, {_holder} AS holder
    FROM penstock.job_active AS j
    WHERE j.stage = 0 AND j.merged AND j.held IS NULL AND j.throttle IS NULL
    AND (-j.priority, j.run_at, j.id) >= (m.rank, m.run_at, m.id)
    AND (SELECT q.merged FROM penstock.queue AS q WHERE q.name = j.queue) = 1
    AND j.queue <> ALL ($16::text[])
    ORDER BY -j.priority, j.run_at, j.id

-- Whether what the previous claim found still holds, checked in the claim itself. Without
-- expectations, the transaction has checked already.
-- name: _expected
outlook AS MATERIALIZED (
    SELECT $10::text[] IS NULL OR NOT ({_any_due} OR {_any_external_change} OR {_any_limited})
    AND $10 = CASE WHEN $11::text[] IS NULL THEN {_open_queues} ELSE ARRAY(
        SELECT q.name FROM unnest($11) AS n JOIN penstock.queue AS q ON q.name = n COLLATE "C"
        WHERE q.paused_until <= {_now} ORDER BY q.name
    ) END AS holds
    FROM (SELECT $12::text[] AS holders) AS h
)

-- The jobs that a claim takes: all that it met, or none if any is of a task that it does not know.
-- name: _known
fit AS MATERIALIZED (
    SELECT NOT EXISTS (SELECT 1 FROM met WHERE holder <> ALL ($12)) AS whole
),
picked AS MATERIALIZED (
    SELECT m.* FROM fit CROSS JOIN met AS m WHERE fit.whole
    ORDER BY m.rank, m.run_at, m.id
),

-- name: _claimed
numbered AS MATERIALIZED (
    SELECT p.*, nextval('penstock.log_id') AS token FROM picked AS p
    WHERE penstock.check_move(0, 'claimed', 'running')
),
started AS (
    UPDATE penstock.job_active AS j SET
        stage = 3,
        version = n.token,
        token = n.token,
        attempt = j.attempt + 1,
        started_at = {_now},
        expires_at = {_now} + j.lease_time,
        worker = $2,
        held = NULL
    FROM numbered AS n WHERE j.ctid = n.tid
    RETURNING n.rank AS place, n.run_at AS since, n.previous, {_columns}
),
entry AS (
    INSERT INTO penstock.log (
        id, job_id, previous, at, day, event, state, queue, actor, token, duration
    )
    SELECT
        token, id, previous, {_now}, {_now} / 86400000000, 'claimed', 'running', queue, $2, token,
        greatest(0, {_now} - greatest(run_at, enqueued_at))
    FROM started
),
counted AS (
    INSERT INTO penstock.delta (id, queue, stage, n)
    SELECT t.last, t.queue, s.stage, s.sign * t.n
    FROM (SELECT queue, count(*) AS n, max(token) AS last FROM started GROUP BY queue) AS t
    CROSS JOIN (VALUES (0, -1), (3, 1)) AS s (stage, sign)
),
{_receipt}

-- name: _answer
SELECT o.holds AND f.whole, s.*
FROM outlook AS o CROSS JOIN fit AS f LEFT JOIN started AS s ON true
ORDER BY s.place, s.since, s.id

-- name: claim_of_one
WITH {_expected},
q (name, rank, run_at, id) AS (
    SELECT $5, $6::bigint, $7::bigint, $8::bigint FROM outlook WHERE holds
),
met AS MATERIALIZED (
    SELECT p.* FROM q CROSS JOIN LATERAL ({_picked} LIMIT $9 FOR UPDATE SKIP LOCKED) AS p
),
{_known}
{_claimed}
{_answer};

-- One job of each queue: how long that takes tells how many dead tuples precede it.
-- name: any_ready
SELECT count(*) + (
    SELECT count(*) FROM (
        SELECT 1 FROM penstock.job_active AS j
        WHERE '' = ANY ($1) AND j.stage = 0 AND j.merged AND j.held IS NULL
        ORDER BY -j.priority, j.run_at, j.id LIMIT 1
    ) AS m
)
FROM unnest($1::text[]) AS q (name) CROSS JOIN LATERAL (
    SELECT 1 FROM penstock.job_active AS j
    WHERE j.queue = q.name AND j.stage = 0 AND j.tenant IS NULL AND j.held IS NULL
    AND j.throttle IS NULL
    ORDER BY -j.priority, j.run_at, j.id LIMIT 1
) AS p;

-- First how many of each queue: jobs that are not taken must not stay locked for others.
-- name: claim_of_many
WITH {_expected},
q (name, rank, run_at, id) AS (
    SELECT u.* FROM outlook
    CROSS JOIN unnest($5::text[], $6::bigint[], $7::bigint[], $8::bigint[]) AS u WHERE holds
),
wanted AS MATERIALIZED (
    SELECT name, rank, run_at, id, count(*) AS n FROM (
        SELECT q.* FROM q CROSS JOIN LATERAL ({_picked} LIMIT $9) AS p
        ORDER BY p.rank, p.run_at, p.id LIMIT $9
    ) AS t GROUP BY name, rank, run_at, id
),
met AS MATERIALIZED (
    SELECT p.* FROM wanted AS q CROSS JOIN LATERAL (
        {_picked} LIMIT q.n FOR UPDATE SKIP LOCKED
    ) AS p
),
{_known}
{_claimed}
{_answer};

-- The same, with all merged queues as one more.
-- name: claim_of_all
WITH {_expected},
q (name, rank, run_at, id) AS (
    SELECT u.* FROM outlook
    CROSS JOIN unnest($5::text[], $6::bigint[], $7::bigint[], $8::bigint[]) AS u WHERE holds
),
m (rank, run_at, id) AS (
    SELECT $13::bigint, $14::bigint, $15::bigint FROM outlook WHERE holds
),
wanted AS MATERIALIZED (
    SELECT name, rank, run_at, id, count(*) AS n FROM (
        SELECT t.name, t.rank, t.run_at, t.id FROM (
            SELECT q.*, p.rank AS a, p.run_at AS b, p.id AS c
            FROM q CROSS JOIN LATERAL ({_picked} LIMIT $9) AS p
            UNION ALL
            SELECT NULL, m.*, p.rank, p.run_at, p.id
            FROM m CROSS JOIN LATERAL ({_picked_merged} LIMIT $9) AS p
        ) AS t
        ORDER BY t.a, t.b, t.c LIMIT $9
    ) AS t GROUP BY name, rank, run_at, id
),
met AS MATERIALIZED (
    SELECT p.* FROM wanted AS q CROSS JOIN LATERAL (
        {_picked} LIMIT q.n FOR UPDATE SKIP LOCKED
    ) AS p
    WHERE q.name IS NOT NULL
    UNION ALL
    SELECT p.* FROM wanted AS m CROSS JOIN LATERAL (
        {_picked_merged} LIMIT m.n FOR UPDATE OF j SKIP LOCKED
    ) AS p
    WHERE m.name IS NULL
),
{_known}
{_claimed}
{_answer};

-- By tags: the same, of each queue and tag.
-- name: _picked_tagged
SELECT t.job_id AS id, -t.priority AS rank, t.run_at, {_holder} AS holder
    FROM penstock.ready_tag AS t CROSS JOIN LATERAL (
        SELECT stage, tenant, held, throttle, task, task_version FROM penstock.job_active
        WHERE id = t.job_id OFFSET 0
    ) AS j
    WHERE t.queue = q.name AND t.tag = q.tag AND j.stage = 0 AND j.tenant IS NULL
    AND j.held IS NULL AND j.throttle IS NULL
    ORDER BY -t.priority, t.tenant, t.run_at, t.job_id

-- name: _picked_merged_tagged
SELECT t.job_id AS id, -t.priority AS rank, t.run_at, {_holder} AS holder
    FROM penstock.ready_tag AS t CROSS JOIN LATERAL (
        SELECT stage, tenant, held, throttle, task, task_version FROM penstock.job_active
        WHERE id = t.job_id OFFSET 0
    ) AS j
    WHERE t.merged AND t.tag = m.tag AND j.stage = 0 AND j.tenant IS NULL
    AND j.held IS NULL AND j.throttle IS NULL
    AND (SELECT q.merged FROM penstock.queue AS q WHERE q.name = t.queue) = 1
    AND t.queue <> ALL ($8::text[])
    ORDER BY -t.priority, t.run_at, t.job_id

-- name: claim_tagged
WITH q (name, tag) AS (
    SELECT n, t FROM unnest($5::text[]) AS n CROSS JOIN unnest($6::text[]) AS t WHERE n <> ''
),
m (tag) AS (
    SELECT t FROM unnest($6::text[]) AS t WHERE '' = ANY ($5)
),
wanted AS MATERIALIZED (
    SELECT rank, run_at, id, holder FROM q CROSS JOIN LATERAL ({_picked_tagged} LIMIT $7) AS p
    UNION
    SELECT rank, run_at, id, holder FROM m CROSS JOIN LATERAL ({_picked_merged_tagged} LIMIT $7) AS p
    ORDER BY rank, run_at, id LIMIT $7
),
fit AS MATERIALIZED (
    SELECT NOT EXISTS (SELECT 1 FROM wanted WHERE holder <> ALL ($9::text[])) AS whole
),
picked AS MATERIALIZED (
    SELECT j.tid, w.id, j.previous, w.rank, w.run_at
    FROM fit CROSS JOIN wanted AS w CROSS JOIN LATERAL (
        SELECT ctid AS tid, version AS previous FROM penstock.job_active
        WHERE id = w.id AND stage + 0 = 0 FOR UPDATE SKIP LOCKED
    ) AS j
    WHERE fit.whole
),
{_claimed}
SELECT f.whole, s.* FROM fit AS f LEFT JOIN started AS s ON true ORDER BY s.place, s.since, s.id;

-- The queries of a claim where limits, tenants or ages matter, under an exclusive lock.
-- name: open_queues
SELECT
    q.name, q.concurrency, q.rate, q.rate_window, q.promote_after, r.starts,
    EXISTS (
        SELECT 1 FROM penstock.job_active
        WHERE queue = q.name AND stage = 0 AND tenant IS NOT NULL AND held IS NULL OFFSET 0
    ),
    CASE WHEN q.concurrency IS NULL THEN 0 ELSE (
        SELECT coalesce(sum(n), 0)::bigint FROM (
            SELECT n FROM penstock.total WHERE queue = q.name AND stage = 3
            UNION ALL
            SELECT n FROM penstock.delta
            WHERE id > (SELECT value FROM penstock.meta WHERE name = 'folded')
            AND queue = q.name AND stage = 3
        ) AS t
    ) END,
    (
        SELECT coalesce(json_agg(json_build_array(level, tenant))::text, '[]')
        FROM penstock.turn WHERE queue = q.name
    ),
    (
        SELECT coalesce(json_agg(p)::text, '[]') FROM generate_series(0, 10) AS p
        WHERE EXISTS (
            SELECT 1 FROM penstock.job_active
            WHERE queue = q.name AND -priority = -p
            AND stage = 0 AND tenant IS NULL AND held IS NULL OFFSET 0
        )
    ),
    (
        SELECT coalesce(json_agg(p)::text, '[]') FROM generate_series(0, 10) AS p
        WHERE EXISTS (
            SELECT 1 FROM penstock.job_active
            WHERE queue = q.name AND -priority = -p
            AND stage = 0 AND tenant IS NOT NULL AND held IS NULL OFFSET 0
        )
    )
FROM penstock.queue AS q LEFT JOIN penstock.rate AS r ON r.queue = q.name
WHERE q.name IN (SELECT json_array_elements_text($1::json));

-- name: running_by_task
SELECT task, count(*) FROM penstock.job_active
WHERE stage = 3 AND task IN (SELECT json_array_elements_text($1::json)) GROUP BY task;

-- name: running_of_throttle
SELECT count(*) FROM penstock.job_active
WHERE throttle = $1 AND throttle IS NOT NULL AND stage = 3;

-- Held jobs are indexed apart from ready ones, and each limit that holds any has a running job: a
-- claim meets at most as many limits as there are running jobs.
-- Jobs of tasks that claims did not know are the last of them, under the names in the second query.
-- name: holding_limits
WITH RECURSIVE holder (held) AS (
    SELECT min(held) FROM penstock.job_active
    WHERE stage = 0 AND held IS NOT NULL AND held < 'unknown:'
    UNION ALL
    SELECT (
        SELECT min(j.held) FROM penstock.job_active AS j
        WHERE j.stage = 0 AND j.held IS NOT NULL AND j.held > holder.held AND j.held < 'unknown:'
    )
    FROM holder WHERE holder.held IS NOT NULL
)
SELECT held FROM holder WHERE held IS NOT NULL;

-- name: holding_tasks
WITH RECURSIVE holder (held) AS (
    SELECT min(held) FROM penstock.job_active
    WHERE stage = 0 AND held IS NOT NULL AND held >= 'unknown:'
    UNION ALL
    SELECT (
        SELECT min(j.held) FROM penstock.job_active AS j
        WHERE j.stage = 0 AND j.held IS NOT NULL AND j.held > holder.held
    )
    FROM holder WHERE holder.held IS NOT NULL
)
SELECT held FROM holder WHERE held IS NOT NULL LIMIT $1;

-- From one task to the next, and some jobs of each. The queue is '' for all merged ones together.
-- name: set_aside
WITH RECURSIVE holder (held) AS (
    SELECT min(held) FROM penstock.job_active
    WHERE stage = 0 AND held IS NOT NULL AND held >= 'unknown:'
    UNION ALL
    SELECT (
        SELECT min(j.held) FROM penstock.job_active AS j
        WHERE j.stage = 0 AND j.held IS NOT NULL AND j.held > holder.held
    )
    FROM holder WHERE holder.held IS NOT NULL
)
SELECT h.held, j.place, count(*), min(j.run_at) FROM holder AS h CROSS JOIN LATERAL (
    SELECT CASE WHEN merged THEN '' ELSE queue END AS place, run_at FROM penstock.job_active
    WHERE stage = 0 AND held = h.held AND held IS NOT NULL LIMIT $1
) AS j
GROUP BY h.held, j.place ORDER BY h.held, j.place;

-- name: holding_tasks_among
SELECT h FROM json_array_elements_text($1::json) AS h
WHERE EXISTS (
    SELECT 1 FROM penstock.job_active WHERE stage = 0 AND held = h AND held IS NOT NULL OFFSET 0
);

-- name: held_groups
WITH RECURSIVE place (tenant, queue, priority) AS (
    (
        SELECT coalesce(tenant, ''), CASE WHEN merged THEN '' ELSE queue END, priority
        FROM penstock.job_active
        WHERE stage = 0 AND held = $1 AND held IS NOT NULL
        ORDER BY coalesce(tenant, ''), CASE WHEN merged THEN '' ELSE queue END, priority LIMIT 1
    )
    UNION ALL
    SELECT n.tenant, n.queue, n.priority FROM place AS p CROSS JOIN LATERAL (
        SELECT coalesce(j.tenant, '') AS tenant, CASE WHEN j.merged THEN '' ELSE j.queue END AS queue, j.priority
        FROM penstock.job_active AS j
        WHERE j.stage = 0 AND j.held = $1 AND j.held IS NOT NULL
        AND (coalesce(j.tenant, ''), CASE WHEN j.merged THEN '' ELSE j.queue END, j.priority)
        > (p.tenant, p.queue, p.priority)
        ORDER BY coalesce(j.tenant, ''), CASE WHEN j.merged THEN '' ELSE j.queue END, j.priority LIMIT 1
    ) AS n
)
SELECT tenant, queue, priority FROM place;

-- name: release_held
WITH t AS MATERIALIZED (
    SELECT ctid AS tid FROM penstock.job_active
    WHERE stage = 0 AND held = $1 AND held IS NOT NULL
    AND coalesce(tenant, '') = $2 AND CASE WHEN merged THEN '' ELSE queue END = $3
    AND priority = $4
    AND (
        $3 <> '' OR (SELECT q.merged FROM penstock.queue AS q WHERE q.name = queue) = 1
        AND queue NOT IN (SELECT json_array_elements_text($6::json))
    )
    ORDER BY run_at, id LIMIT nullif($5::bigint, -1)
)
UPDATE penstock.job_active AS j SET held = NULL FROM t WHERE j.ctid = t.tid;

-- Whether any limit on running jobs is in force. A settle asks, to notify other processes.
-- name: _limited
SELECT
    EXISTS (SELECT 1 FROM penstock.job_active WHERE stage = 0 AND held IS NOT NULL)
    OR EXISTS (
        SELECT 1 FROM penstock.job_active
        WHERE stage = 0 AND throttle IS NOT NULL AND held IS NULL
    )
    OR EXISTS (SELECT 1 FROM penstock."limit" WHERE kind = 'task')
    OR EXISTS (SELECT 1 FROM penstock.queue WHERE concurrency IS NOT NULL)

-- name: any_limit
{_limited};

-- Whether a queue has a job that could start, as far as its own limits go.
-- name: _ready
(
    EXISTS (
        SELECT 1 FROM penstock.job_active AS j
        WHERE j.queue = q.name AND j.stage = 0 AND j.tenant IS NULL AND j.held IS NULL OFFSET 0
    )
    OR EXISTS (
        SELECT 1 FROM penstock.job_active AS j
        WHERE j.queue = q.name AND j.stage = 0 AND j.tenant IS NOT NULL AND j.held IS NULL OFFSET 0
    )
    OR EXISTS (
        SELECT 1 FROM penstock.job_active AS j
        WHERE CASE WHEN j.merged THEN '' ELSE j.queue END = q.name
        AND j.stage = 0 AND j.held IS NOT NULL OFFSET 0
    )
    OR EXISTS (
        SELECT 1 FROM penstock.job_active AS j
        WHERE j.queue = q.name AND j.merged AND j.stage + 0 = 0 AND num_nonnulls(j.held) > 0 OFFSET 0
    )
)

-- name: any_queue_has_room
SELECT EXISTS (
    SELECT 1 FROM json_array_elements_text($1::json) AS n
    JOIN penstock.queue AS q ON q.name = n
    WHERE q.concurrency IS NOT NULL AND q.paused_until <= $2 AND {_ready}
    AND q.concurrency > (
        SELECT count(*) FROM penstock.job_active AS j WHERE j.queue = q.name AND j.stage = 3
    )
);

-- Claims by tag do not mark held jobs: where there are tags, any limit may hold jobs.
-- name: holding_limits_among
SELECT h FROM json_array_elements_text($1::json) AS h
WHERE EXISTS (
    SELECT 1 FROM penstock.job_active WHERE stage = 0 AND held = h AND held IS NOT NULL OFFSET 0
)
OR EXISTS (SELECT 1 FROM penstock.ready_tag);

-- name: hold_jobs
WITH t AS MATERIALIZED (
    SELECT j.tid FROM (SELECT json_array_elements_text($2::json)::bigint AS id) AS p
    CROSS JOIN {_active} WHERE j.stage = 0
)
UPDATE penstock.job_active AS j SET held = $1 FROM t WHERE j.ctid = t.tid;

-- The priorities of ready jobs.
-- name: merged_levels
SELECT p::integer FROM generate_series(0, 10) AS p CROSS JOIN LATERAL (
    SELECT 1 FROM penstock.job_active
    WHERE -priority = -p AND stage = 0 AND merged AND held IS NULL
    ORDER BY -priority, run_at, id LIMIT 1
) AS j;

-- Each tenant with its first job: a round has one for each.
-- name: tenants
WITH RECURSIVE turn (tenant, run_at, id, task, throttle, version) AS (
    (
        SELECT tenant, run_at, id, task, throttle, coalesce(task_version, 1) FROM penstock.job_active
        WHERE queue = $1 AND -priority = -$2::bigint AND stage = 0
        AND tenant IS NOT NULL AND held IS NULL AND tenant > $3
        ORDER BY queue, -priority, tenant, run_at, id LIMIT 1
    )
    UNION ALL
    SELECT n.* FROM turn CROSS JOIN LATERAL (
        SELECT j.tenant, j.run_at, j.id, j.task, j.throttle, coalesce(j.task_version, 1)
        FROM penstock.job_active AS j
        WHERE j.queue = $1 AND -j.priority = -$2::bigint AND j.stage = 0
        AND j.tenant IS NOT NULL AND j.held IS NULL AND j.tenant > turn.tenant
        ORDER BY j.queue, -j.priority, j.tenant, j.run_at, j.id LIMIT 1
    ) AS n
)
SELECT tenant, run_at, id, task, throttle, version FROM turn LIMIT $4;

-- name: tenants_tagged
WITH RECURSIVE turn (tenant) AS (
    SELECT min(tenant) FROM penstock.ready_tag
    WHERE queue = $1 AND tag = $5 AND -priority = -$2::bigint AND tenant > $3
    UNION ALL
    SELECT (
        SELECT min(t.tenant) FROM penstock.ready_tag AS t
        WHERE t.queue = $1 AND t.tag = $5 AND -t.priority = -$2::bigint
        AND t.tenant > turn.tenant
    )
    FROM turn WHERE turn.tenant IS NOT NULL
)
SELECT tenant FROM turn WHERE tenant IS NOT NULL LIMIT $4;

-- name: pick_level
SELECT coalesce(json_agg(json_build_array(run_at, id, task, throttle, version))::text, '[]') FROM (
    SELECT run_at, id, task, throttle, coalesce(task_version, 1) AS version FROM penstock.job_active
    WHERE queue = $1 AND -priority = -$2::bigint AND stage = 0 AND tenant IS NULL AND held IS NULL
    AND (run_at, id) > ($3, $4)
    ORDER BY run_at, id LIMIT $5
) AS t;

-- name: pick_merged_level
SELECT coalesce(json_agg(json_build_array(run_at, id, task, throttle, version, queue))::text, '[]')
FROM (
    SELECT run_at, id, task, throttle, coalesce(task_version, 1) AS version, queue FROM penstock.job_active AS j
    WHERE stage = 0 AND merged AND held IS NULL AND -priority = -$2::bigint
    AND (run_at, id) > ($3, $4)
    AND (SELECT q.merged FROM penstock.queue AS q WHERE q.name = j.queue) = 1
    AND queue NOT IN (SELECT json_array_elements_text($1::json))
    ORDER BY run_at, id LIMIT $5
) AS t;

-- By tag, without those that are set aside under other names than these.
-- name: pick_merged_level_tagged
SELECT coalesce(json_agg(json_build_array(run_at, job_id, task, throttle, version, queue))::text, '[]')
FROM (
    SELECT t.run_at, t.job_id, j.task, j.throttle, j.version, t.queue FROM penstock.ready_tag AS t
    CROSS JOIN LATERAL (
        SELECT task, throttle, held, coalesce(task_version, 1) AS version FROM penstock.job_active
        WHERE id = t.job_id OFFSET 0
    ) AS j
    WHERE t.merged AND t.tag = $6 AND -t.priority = -$2::bigint
    AND (t.run_at, t.job_id) > ($3, $4)
    AND (SELECT q.merged FROM penstock.queue AS q WHERE q.name = t.queue) = 1
    AND t.queue NOT IN (SELECT json_array_elements_text($1::json))
    AND (
        j.held IS NULL OR j.held < 'unknown:' OR $7::text IS NULL
        OR j.held IN (SELECT json_array_elements_text($7::json))
    )
    ORDER BY t.run_at, t.job_id LIMIT $5
) AS t;

-- name: pick_share
SELECT coalesce(json_agg(json_build_array(run_at, id, task, throttle, version))::text, '[]') FROM (
    SELECT run_at, id, task, throttle, coalesce(task_version, 1) AS version FROM penstock.job_active
    WHERE queue = $1 AND -priority = -$2::bigint AND tenant = $6
    AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
    AND (run_at, id) > ($3, $4)
    ORDER BY run_at, id LIMIT $5
) AS t;

-- name: pick_level_tagged
SELECT coalesce(json_agg(json_build_array(run_at, job_id, task, throttle, version))::text, '[]') FROM (
    SELECT t.run_at, t.job_id, j.task, j.throttle, j.version FROM penstock.ready_tag AS t
    CROSS JOIN LATERAL (
        SELECT task, throttle, held, coalesce(task_version, 1) AS version FROM penstock.job_active
        WHERE id = t.job_id OFFSET 0
    ) AS j
    WHERE t.queue = $1 AND t.tag = $6 AND -t.priority = -$2::bigint AND t.tenant = $7
    AND (t.run_at, t.job_id) > ($3, $4)
    AND (
        j.held IS NULL OR j.held < 'unknown:' OR $8::text IS NULL
        OR j.held IN (SELECT json_array_elements_text($8::json))
    )
    ORDER BY t.run_at, t.job_id LIMIT $5
) AS t;

-- The jobs that are set aside under a name, of one tenant, queue (or '' for the merged ones, except
-- some) and priority, from a position on.
-- name: pick_aside
SELECT coalesce(json_agg(json_build_array(run_at, id, task, throttle, version, queue))::text, '[]')
FROM (
    SELECT run_at, id, task, throttle, coalesce(task_version, 1) AS version, queue FROM penstock.job_active AS j
    WHERE stage = 0 AND held = $6 AND held IS NOT NULL
    AND coalesce(tenant, '') = $7 AND CASE WHEN merged THEN '' ELSE queue END = $1
    AND priority = $2::bigint AND (run_at, id) > ($3, $4)
    AND (
        $1 <> '' OR (SELECT q.merged FROM penstock.queue AS q WHERE q.name = j.queue) = 1
        AND queue NOT IN (SELECT json_array_elements_text($8::json))
    )
    ORDER BY run_at, id LIMIT $5
) AS t;

-- name: set_turn
INSERT INTO penstock.turn (queue, level, tenant) VALUES ($1, $2, $3)
ON CONFLICT (queue, level) DO UPDATE SET tenant = excluded.tenant;

-- name: set_starts
INSERT INTO penstock.rate (queue, starts) VALUES ($1, $2)
ON CONFLICT (queue) DO UPDATE SET starts = excluded.starts;

-- name: start
WITH picked AS MATERIALIZED (
    SELECT j.tid, j.id, j.version AS previous, p.n AS rank, j.run_at
    FROM unnest($5::bigint[]) WITH ORDINALITY AS p (id, n) CROSS JOIN {_active}
    ORDER BY p.n
),
{_claimed}
SELECT * FROM started ORDER BY place;

-- name: jobs
SELECT {_columns} FROM unnest($1::bigint[]) WITH ORDINALITY AS p (id, n) CROSS JOIN {_any_job}
ORDER BY p.n;

-- Skips jobs that another transaction is changing: their lease then ends by itself.
-- name: renew
WITH held AS MATERIALIZED (
    SELECT j.tid FROM json_array_elements($2::json) AS p CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.job_active
        WHERE id = (p ->> 0)::bigint AND token = (p ->> 1)::bigint AND worker = p ->> 2
        AND stage + 0 = 3 FOR UPDATE SKIP LOCKED
    ) AS j
)
UPDATE penstock.job_active AS j SET expires_at = $1 + j.lease_time
FROM held WHERE j.ctid = held.tid
RETURNING j.id;

-- Jobs that another transaction is changing count as gone: the caller tries again.
-- name: versions
SELECT p.n, j.version, j.stage, j.expires_at, j.needs, j.awaited::integer
FROM unnest($1::bigint[]) WITH ORDINALITY AS p (id, n) CROSS JOIN LATERAL (
    SELECT * FROM penstock.job_active WHERE id = p.id FOR UPDATE SKIP LOCKED
) AS j;

-- name: versions_finished
SELECT p.n, j.version, j.stage, j.expires_at, j.needs, j.awaited::integer
FROM unnest($1::bigint[]) WITH ORDINALITY AS p (id, n) CROSS JOIN LATERAL (
    SELECT * FROM penstock.job WHERE id = p.id AND shelf <> 0 FOR UPDATE SKIP LOCKED
) AS j;

-- Ends running jobs without a key and dependents in one statement, and moves them to their partition;
-- returns the versions of those that had not changed. It decides in SQL, because reading them first
-- would need an exclusive lock and more round trips.
-- name: _held
held AS MATERIALIZED (
    SELECT w.n, w.outcome, w.said, w.kept, w.reason, w.detail, j.*
    FROM unnest(
        $1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]
    ) WITH ORDINALITY AS w (id, version, outcome, said, kept, reason, detail, n)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, * FROM penstock.job_active
        WHERE id = w.id AND version = w.version AND NOT awaited AND needs = 0 AND key IS NULL
        AND NOT EXISTS (SELECT 1 FROM penstock.seal)
        FOR UPDATE SKIP LOCKED
    ) AS j
    WHERE penstock.check_move(3, $9, $10)
),
-- The deleted row decides: a lease that another process has just renewed has another ctid.
gone AS (
    DELETE FROM penstock.job_active AS j USING held AS h WHERE j.ctid = h.tid RETURNING h.*
),
numbered AS MATERIALIZED (
    SELECT g.*, nextval('penstock.log_id') AS number FROM gone AS g
),
entry AS (
    INSERT INTO penstock.log (
        id, job_id, previous, at, day, event, state, queue, actor, token, duration, reason, error,
        detail
    )
    SELECT
        number, id, version, $8, $8::bigint / 86400000000, $9, $10, queue, $11, token,
        $8 - started_at, reason, said, detail
    FROM numbered
),
counted AS (
    INSERT INTO penstock.delta (id, queue, stage, n)
    SELECT t.last, t.queue, s.stage, s.sign * t.n
    FROM (SELECT queue, count(*) AS n, max(number) AS last FROM numbered GROUP BY queue) AS t
    CROSS JOIN (VALUES (3, -1), ($12::integer, 1)) AS s (stage, sign)
)

-- name: finish_plain
WITH {_held},
kept AS (
    INSERT INTO penstock.job (
        id, version, token, run_at, enqueued_at, lease_time, started_at, finished_at, shelf,
        attempt, stage, priority, queue, task, worker, body, timeout, dedupe, scope,
        tags, retry, correlation, tenant, parent, throttle, trace, error, result, merged,
        task_version
    )
    SELECT
        id, number, token, run_at, enqueued_at, lease_time, started_at, $8,
        2 * ($8::bigint / 86400000000) + ($12 = 5)::integer, coalesce($13::integer, attempt), $12,
        priority, queue, task, worker, body, timeout, dedupe, scope, tags, retry, correlation,
        tenant, parent, throttle, trace, kept, outcome, merged, task_version
    FROM numbered
)
SELECT n, number, ({_limited}) FROM numbered;

-- The log comes first, while the jobs still have their previous versions.
-- name: log_moved
INSERT INTO penstock.log (
    id, job_id, previous, at, day, event, state, queue, actor, token, duration, reason, error
)
SELECT
    p.number, j.id, j.version, $3, $3::bigint / 86400000000, $4, $5, j.queue, $6,
    CASE WHEN j.stage = 3 THEN j.token END,
    CASE WHEN j.stage = 3 AND $5 <> 'running' THEN $3 - j.started_at END,
    $7, $8
FROM (
    SELECT number, value::bigint AS id
    FROM ROWS FROM (unnest($1::bigint[]), json_array_elements_text($2::json)) AS v (number, value)
) AS p
CROSS JOIN {_any_job};

-- The same for jobs with details: pairs of a job and its detail.
-- name: log_detailed
INSERT INTO penstock.log (
    id, job_id, previous, at, day, event, state, queue, actor, token, duration, reason, error,
    detail
)
SELECT
    p.number, j.id, j.version, $3, $3::bigint / 86400000000, $4, $5, j.queue, $6,
    CASE WHEN j.stage = 3 THEN j.token END,
    CASE WHEN j.stage = 3 AND $5 <> 'running' THEN $3 - j.started_at END,
    $7, $8, p.detail
FROM (
    SELECT number, (value ->> 0)::bigint AS id, value ->> 1 AS detail
    FROM ROWS FROM (unnest($1::bigint[]), json_array_elements($2::json)) AS v (number, value)
) AS p
CROSS JOIN {_any_job};

-- Moves a job to the partition of its new stage.
-- name: _moved
INSERT INTO penstock.job (
    shelf, stage, version, attempt, run_at, finished_at, error, result, started_at, worker, held,
    id, token, enqueued_at, lease_time, needs, awaited, priority, queue, task, body, timeout, key,
    dedupe, scope, tags, retry, correlation, tenant, parent, throttle, trace, task_version, merged
)
SELECT
    CASE
        WHEN $3::integer < 4 THEN 0
        ELSE 2 * ($6::bigint / 86400000000) + ($3 = 5)::integer
    END,
    $3, g.number, coalesce($4::integer, g.attempt), coalesce($5::bigint, g.run_at), $6, $7, $8,
    CASE WHEN $3 >= 3 THEN g.started_at END,
    CASE WHEN $3 >= 3 THEN g.worker END,
    CASE WHEN $3 = 0 THEN g.held END,
    g.id, g.token, g.enqueued_at, g.lease_time, g.needs, g.awaited, g.priority, g.queue, g.task,
    g.body, g.timeout, g.key, g.dedupe, g.scope, g.tags, g.retry, g.correlation, g.tenant,
    g.parent, g.throttle, g.trace, g.task_version,
    coalesce((SELECT q.merged = 1 FROM penstock.queue AS q WHERE q.name = g.queue), false)
FROM gone AS g

-- name: move
WITH {_targets},
gone AS (
    DELETE FROM penstock.job_active AS j USING t WHERE j.ctid = t.tid RETURNING t.number, j.*
)
{_moved};

-- name: reset
WITH t AS MATERIALIZED (
    SELECT p.number, j.part, j.tid FROM (
        SELECT number, value::bigint AS id
        FROM ROWS FROM (unnest($1::bigint[]), json_array_elements_text($2::json)) AS v (number, value)
    ) AS p
    CROSS JOIN {_stored}
),
gone AS (
    DELETE FROM penstock.job AS j USING t
    WHERE j.ctid = t.tid AND j.tableoid = t.part RETURNING t.number, j.*
)
{_moved};

-- name: update_lease
WITH t AS MATERIALIZED (
    SELECT p.number, j.part, j.tid FROM (
        SELECT number, value::bigint AS id
        FROM ROWS FROM (unnest($1::bigint[]), json_array_elements_text($2::json)) AS v (number, value)
    ) AS p
    CROSS JOIN {_stored}
)
UPDATE penstock.job AS j SET
    version = t.number,
    cancel_requested = CASE WHEN j.shelf = 0 THEN $3 ELSE j.cancel_requested END,
    expires_at = CASE WHEN j.shelf = 0 THEN coalesce($4 + j.lease_time, j.expires_at) END
FROM t WHERE j.ctid = t.tid AND j.tableoid = t.part;

-- name: reprioritise
WITH {_targets}
UPDATE penstock.job_active AS j SET version = t.number, priority = $3
FROM t WHERE j.ctid = t.tid;

-- The index of a key has the visible job first, then the blocked ones by age, then the running one:
-- each answer is at an end, and found however many are blocked.
-- A job that was reset may be older than the visible one of its key.
-- The facts for `key_line.rearranged`: of each key the visible job, the oldest blocked one and the
-- one that runs, however many are blocked behind them; `stage = 3` would scan all that run. A job
-- that is not linked yet cannot begin, as if it needed another.
-- name: key_lines
SELECT k, j.id, j.stage, j.needs + j.arriving::integer, j.run_at
FROM json_array_elements_text($1::json) AS k CROSS JOIN LATERAL (
    (
        SELECT * FROM penstock.job_active
        WHERE key = k AND key IS NOT NULL AND stage < 2 ORDER BY key, stage, id LIMIT 1
    )
    UNION ALL
    (
        SELECT * FROM penstock.job_active
        WHERE key = k AND key IS NOT NULL AND stage = 2 ORDER BY key, stage, id LIMIT 1
    )
    UNION ALL
    (
        SELECT * FROM penstock.job_active
        WHERE key = k AND key IS NOT NULL AND stage > 2 ORDER BY key, stage, id LIMIT 1
    )
) AS j;

-- Those of these jobs that are blocked.
-- name: blocked_jobs
SELECT j.id, j.key, j.needs, j.run_at FROM {_ids} CROSS JOIN {_active} WHERE j.stage = 2;

-- Moves jobs from one stage to another, unless they have left the first.
-- name: restage
WITH t AS MATERIALIZED (SELECT j.tid FROM {_ids} CROSS JOIN {_active})
UPDATE penstock.job_active AS j SET stage = $3
FROM t WHERE j.ctid = t.tid AND j.stage = $2
RETURNING j.id, j.queue;

-- Whether other programs inserted rows that are no jobs yet.
-- Every read begins with this one. Without the view of its schema, a program is refused.
-- name: external_rows
SELECT EXISTS (SELECT 1 FROM penstock.newcomer) FROM penstock.schema_{schema};

-- Makes jobs of them; returns how many. The function decides in SQL, because the rows come from
-- programs that do not run this package.
-- name: import_external_rows
SELECT penstock.adopt();

-- name: any_external_change
SELECT EXISTS (SELECT 1 FROM penstock.arrival);

-- Jobs that committed transactions of callers and other programs added or ended.
-- name: external_changes
WITH arrived AS (DELETE FROM penstock.arrival RETURNING *)
SELECT job_id, ended, actor, key, needed, on_failure, state FROM arrived ORDER BY job_id;

-- Marks such jobs as linked, with the number of jobs that they wait for.
-- name: link_external_jobs
WITH t AS MATERIALIZED (
    SELECT j.tid, (p ->> 1)::integer AS needs
    FROM json_array_elements($1::json) AS p CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.job_active WHERE id = (p ->> 0)::bigint OFFSET 0
    ) AS j
)
UPDATE penstock.job_active AS j SET arriving = false, needs = t.needs
FROM t WHERE j.ctid = t.tid;

-- What a call inside a caller's transaction has to know first.
-- name: caller_transaction
SELECT
    CAST(pg_current_xact_id() AS text),
    to_regprocedure('penstock.add_within(text)') IS NOT NULL AND CAST($1 AS text) IS NOT NULL;

-- NULL, and nothing is added, if a queue is missing, or if other programs inserted rows that are no
-- jobs yet: what the caller's transaction creates or imports keeps others waiting until it ends.
-- name: add_within
SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM penstock.newcomer) AND NOT EXISTS (
    SELECT 1 FROM json_array_elements(CAST(call AS json) -> 'jobs') AS new
    WHERE NOT EXISTS (SELECT 1 FROM penstock.queue WHERE name = new ->> 'queue')
) THEN penstock.add_within(call) END
FROM penstock.schema_{schema}, (SELECT CAST($1 AS text) AS call) AS given;

-- For what the store could not prepare on a connection of its own.
-- name: add_within_unprepared
SELECT penstock.add_within(CAST($1 AS text)) FROM penstock.schema_{schema}, penstock.adopt();

-- name: finish_within
SELECT penstock.finish_within(CAST($1 AS text)) FROM penstock.schema_{schema};

-- name: jobs_within
SELECT coalesce(json_agg(json_build_array({_columns}))::text, '[]')
FROM json_array_elements_text(CAST($1 AS json)) AS i (value)
CROSS JOIN LATERAL (SELECT CAST(value AS bigint) AS id) AS p
CROSS JOIN {_any_job};

-- name: tail_of_key
SELECT (
    SELECT id FROM penstock.job_active
    WHERE key = $1 AND key IS NOT NULL AND stage < 3
    ORDER BY key DESC, stage DESC, id DESC LIMIT 1
);

-- name: stages
SELECT j.id, j.stage FROM {_ids} CROSS JOIN {_any_job};

-- name: add_edges
INSERT INTO penstock.edge (needed, job_id, on_failure, resolved)
SELECT (value ->> 0)::bigint, (value ->> 1)::bigint, value ->> 2, (value ->> 3)::boolean
FROM json_array_elements($1::json) AS e (value) ON CONFLICT DO NOTHING;

-- name: mark_awaited
WITH t AS MATERIALIZED (
    SELECT j.tid FROM {_ids} CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.job_active
        WHERE id = p.id AND NOT awaited FOR UPDATE SKIP LOCKED
    ) AS j
)
UPDATE penstock.job_active AS j SET awaited = true FROM t WHERE j.ctid = t.tid;

-- name: waiting_edges
SELECT e.needed, e.job_id, e.on_failure FROM {_ids} CROSS JOIN LATERAL (
    SELECT * FROM penstock.edge WHERE needed = p.id OFFSET 0
) AS e
WHERE NOT e.resolved;

-- name: resolve_ended
WITH t AS MATERIALIZED (
    SELECT e.tid FROM {_ids} CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.edge WHERE needed = p.id OFFSET 0
    ) AS e
)
UPDATE penstock.edge AS e SET resolved = true FROM t WHERE e.ctid = t.tid;

-- name: decrement_needs
WITH t AS MATERIALIZED (
    SELECT p.n, j.part, j.tid FROM (
        SELECT (value ->> 0)::bigint AS id, (value ->> 1)::integer AS n
        FROM json_array_elements($1::json) AS v (value)
    ) AS p
    CROSS JOIN {_stored}
)
UPDATE penstock.job AS j SET needs = j.needs - t.n
FROM t WHERE j.ctid = t.tid AND j.tableoid = t.part;

-- A replacing job waits for what the replaced one still waited for.
-- name: inherit_edges
INSERT INTO penstock.edge (needed, job_id, on_failure, resolved)
SELECT needed, $2, on_failure, false FROM penstock.edge WHERE job_id = $1 AND NOT resolved
ON CONFLICT DO NOTHING;

-- Dependents of the first job depend on the second instead.
-- name: hand_over_edges
INSERT INTO penstock.edge (needed, job_id, on_failure, resolved)
SELECT $2, e.job_id, e.on_failure, false
FROM (SELECT json_array_elements_text($3::json)::bigint AS id) AS p CROSS JOIN LATERAL (
    SELECT * FROM penstock.edge WHERE needed = $1 AND job_id = p.id OFFSET 0
) AS e
WHERE NOT e.resolved
ON CONFLICT DO NOTHING;

-- name: resolve_edges
WITH t AS MATERIALIZED (
    SELECT e.tid
    FROM (SELECT json_array_elements_text($2::json)::bigint AS id) AS p CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.edge WHERE needed = $1 AND job_id = p.id OFFSET 0
    ) AS e
)
UPDATE penstock.edge AS e SET resolved = true FROM t WHERE e.ctid = t.tid;

-- name: recount_needs
WITH t AS MATERIALIZED (SELECT j.part, j.tid FROM {_ids} CROSS JOIN {_stored})
UPDATE penstock.job AS j SET needs = (
    SELECT count(*) FROM penstock.edge AS e WHERE e.job_id = j.id AND NOT e.resolved
)
FROM t WHERE j.ctid = t.tid AND j.tableoid = t.part;

-- A job and all that have to end before it begins: by edges, and by the order of their keys.
-- A blocked job of a key is preceded by the blocked one before it, and by what is visible or runs.
-- name: predecessors
WITH RECURSIVE ahead (id) AS (
    SELECT $1::bigint
    UNION
    SELECT n.id FROM ahead CROSS JOIN LATERAL (
        SELECT e.needed AS id FROM penstock.edge AS e WHERE e.job_id = ahead.id AND NOT e.resolved
        UNION ALL
        SELECT (
            SELECT max(b.id) FROM penstock.job_active AS b
            WHERE b.key = j.key AND b.key IS NOT NULL AND b.stage = 2 AND b.id < j.id
        )
        FROM penstock.job_active AS j
        WHERE j.id = ahead.id AND j.stage = 2 AND j.key IS NOT NULL
        UNION ALL
        SELECT v.id FROM penstock.job_active AS j CROSS JOIN LATERAL (
            SELECT id, stage FROM penstock.job_active WHERE key = j.key AND key IS NOT NULL
            AND stage <> 2 OFFSET 0
        ) AS v
        WHERE j.id = ahead.id AND j.stage = 2
    ) AS n
)
SELECT id FROM ahead WHERE id IS NOT NULL;

-- name: behind_in_key
SELECT min(j.id) FROM (SELECT json_array_elements_text($3::json)::bigint AS id) AS p
CROSS JOIN {_active} WHERE j.key = $1 AND j.id > $2;

-- name: any_forward_edge
SELECT EXISTS (SELECT 1 FROM penstock.edge WHERE NOT resolved AND needed > job_id);

-- name: edges
SELECT e.needed, e.job_id, e.on_failure, e.resolved FROM {_ids} CROSS JOIN LATERAL (
    SELECT * FROM penstock.edge WHERE needed = p.id
    UNION ALL
    SELECT * FROM penstock.edge WHERE job_id = p.id
) AS e
GROUP BY 1, 2, 3, 4 ORDER BY 2, 1;

-- name: open_edges
SELECT e.needed, e.job_id, e.on_failure, e.resolved FROM {_ids} CROSS JOIN LATERAL (
    SELECT * FROM penstock.edge WHERE job_id = p.id OFFSET 0
) AS e
WHERE NOT e.resolved ORDER BY e.job_id, e.needed;

-- name: expired
SELECT coalesce(json_agg(id ORDER BY expires_at)::text, '[]') FROM (
    SELECT id, expires_at FROM penstock.job_active WHERE stage = 3 AND expires_at <= $1
    ORDER BY expires_at LIMIT $2
) AS t;

-- name: totals
SELECT queue, stage, sum(n)::bigint FROM (
    SELECT queue, stage, n FROM penstock.total
    UNION ALL
    SELECT queue, stage, n FROM penstock.delta
    WHERE id > (SELECT value FROM penstock.meta WHERE name = 'folded')
) AS t
GROUP BY queue, stage HAVING sum(n) <> 0;

-- name: totals_of
SELECT queue, stage, sum(n)::bigint FROM (
    SELECT t.queue, t.stage, t.n FROM json_array_elements_text($1::json) AS q
    JOIN penstock.total AS t ON t.queue = q.value COLLATE "C"
    UNION ALL
    SELECT queue, stage, n FROM penstock.delta
    WHERE id > (SELECT value FROM penstock.meta WHERE name = 'folded')
    AND queue IN (SELECT value COLLATE "C" FROM json_array_elements_text($1::json))
) AS t
GROUP BY queue, stage HAVING sum(n) <> 0;

-- name: total_summary
SELECT stage, sum(n)::bigint FROM (
    SELECT queue, stage, n FROM penstock.total
    UNION ALL
    SELECT queue, stage, n FROM penstock.delta
    WHERE id > (SELECT value FROM penstock.meta WHERE name = 'folded')
) AS t
WHERE queue NOT IN (SELECT value COLLATE "C" FROM json_array_elements_text($1::json))
GROUP BY stage HAVING sum(n) <> 0;

-- name: fold_totals
WITH done AS (
    UPDATE penstock.meta SET value = $2 WHERE name = 'folded' AND value = $1 RETURNING value
),
gone AS (
    DELETE FROM penstock.delta WHERE id > $1 AND id <= $2 AND EXISTS (SELECT 1 FROM done)
    RETURNING queue, stage, n
)
INSERT INTO penstock.total (queue, stage, n)
SELECT queue, stage, sum(n) FROM gone GROUP BY queue, stage
ON CONFLICT (queue, stage) DO UPDATE SET n = total.n + excluded.n;

-- name: folded_totals
SELECT value, penstock.complete() FROM penstock.meta WHERE name = 'folded';

-- Skips from one tag to the next, without visiting its jobs.
-- name: ready_tags
WITH RECURSIVE ready (tag) AS (
    SELECT min(tag) FROM penstock.ready_tag WHERE queue = $1
    UNION ALL
    SELECT (
        SELECT min(t.tag) FROM penstock.ready_tag AS t WHERE t.queue = $1 AND t.tag > ready.tag
    )
    FROM ready WHERE ready.tag IS NOT NULL
)
SELECT coalesce(json_agg(tag)::text, '[]') FROM (
    SELECT tag FROM ready WHERE tag IS NOT NULL LIMIT $2
) AS t;

-- name: ready_tags_among
SELECT coalesce(json_agg(tag ORDER BY tag)::text, '[]') FROM (
    SELECT tag FROM json_array_elements_text($3::json) AS a (tag)
    WHERE EXISTS (SELECT 1 FROM penstock.ready_tag AS t WHERE t.queue = $1 AND t.tag = a.tag)
    ORDER BY tag COLLATE "C" LIMIT $2
) AS t;

-- Skips from one key to the next. The oldest pending job of each stage is at the beginning of its
-- part of the index.
-- name: keys
WITH RECURSIVE held (key) AS (
    SELECT min(key) FROM penstock.job_active WHERE key > $1 AND key IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(j.key) FROM penstock.job_active AS j
        WHERE j.key > held.key AND j.key IS NOT NULL
    )
    FROM held WHERE held.key IS NOT NULL
)
SELECT h.key, coalesce((
    SELECT id FROM (
        SELECT id, stage FROM penstock.job_active
        WHERE key = h.key AND key IS NOT NULL ORDER BY key DESC, stage DESC LIMIT 1
    ) AS last WHERE stage = 3
), (
    SELECT min((
        SELECT id FROM penstock.job_active
        WHERE key = h.key AND key IS NOT NULL AND stage = s ORDER BY key, stage, id LIMIT 1
    ))
    FROM generate_series(0, 2) AS s
)), (
    SELECT count(*) FROM (
        SELECT 1 FROM penstock.job_active
        WHERE key = h.key AND key IS NOT NULL ORDER BY key, stage, id LIMIT $3
    ) AS line
)
FROM (SELECT key FROM held WHERE key IS NOT NULL LIMIT $2) AS h;

-- The oldest job of each priority of a queue is at the beginning of its part of the index, and so is
-- that of each tenant; held jobs are looked up group by group.
-- name: oldest_ready
SELECT q.name, min((
    SELECT run_at FROM penstock.job_active
    WHERE queue = q.name AND -priority = -p AND stage = 0 AND tenant IS NULL AND held IS NULL
    ORDER BY run_at LIMIT 1
))
FROM (SELECT value COLLATE "C" AS name FROM json_array_elements_text($1::json)) AS q
CROSS JOIN generate_series(0, 10) AS p
GROUP BY q.name;

-- name: ready_queues
SELECT coalesce(json_agg(queue), '[]')::text FROM (
    SELECT queue FROM (
        SELECT queue, n FROM penstock.total WHERE stage = 0
        UNION ALL
        SELECT queue, n FROM penstock.delta
        WHERE stage = 0 AND id > (SELECT value FROM penstock.meta WHERE name = 'folded')
    ) AS t
    GROUP BY queue HAVING sum(n) > 0
) AS ready;

-- name: oldest_of_tenants
WITH RECURSIVE share (queue, priority, tenant) AS (
    SELECT q.name, p, (
        SELECT min(tenant) FROM penstock.job_active
        WHERE queue = q.name AND -priority = -p
        AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
    )
    FROM (SELECT value COLLATE "C" AS name FROM json_array_elements_text($1::json)) AS q
    CROSS JOIN generate_series(0, 10) AS p
    UNION ALL
    SELECT s.queue, s.priority, (
        SELECT min(j.tenant) FROM penstock.job_active AS j
        WHERE j.queue = s.queue AND -j.priority = -s.priority AND j.tenant > s.tenant
        AND j.stage = 0 AND j.tenant IS NOT NULL AND j.held IS NULL
    )
    FROM share AS s WHERE s.tenant IS NOT NULL
)
SELECT s.queue, min((
    SELECT run_at FROM penstock.job_active
    WHERE queue = s.queue AND -priority = -s.priority AND tenant = s.tenant
    AND stage = 0 AND tenant IS NOT NULL AND held IS NULL
    ORDER BY run_at LIMIT 1
))
FROM share AS s WHERE s.tenant IS NOT NULL GROUP BY s.queue;

-- name: oldest_held
SELECT run_at FROM penstock.job_active
WHERE stage = 0 AND held = $1 AND held IS NOT NULL
AND coalesce(tenant, '') = $2 AND CASE WHEN merged THEN '' ELSE queue END = $3
AND priority = $4
ORDER BY run_at LIMIT 1;

-- name: oldest_held_merged
SELECT queue, min(run_at) FROM penstock.job_active
WHERE stage = 0 AND held IS NOT NULL AND merged GROUP BY queue;

-- name: backlog
SELECT count(*), max(id) FROM penstock.job_active
WHERE ($1::text IS NULL OR queue = $1) AND id <= $2;

-- name: queues
SELECT name, paused_until, max_pending, concurrency, rate, rate_window, promote_after
FROM penstock.queue WHERE name > $1 AND ($2 = '' OR position($2 IN name) > 0)
ORDER BY name LIMIT $3;

-- name: queues_named
SELECT name, paused_until, max_pending, concurrency, rate, rate_window, promote_after
FROM penstock.queue
WHERE name IN (SELECT value COLLATE "C" FROM json_array_elements_text($1::json)) ORDER BY name;

-- name: count_queues
SELECT count(*), count(*) FILTER (WHERE paused_until > $2) FROM penstock.queue
WHERE name NOT IN (SELECT value COLLATE "C" FROM json_array_elements_text($1::json));

-- name: configure
INSERT INTO penstock.queue (
    name, paused_until, max_pending, concurrency, rate, rate_window, promote_after
) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (name) DO UPDATE SET
    paused_until = excluded.paused_until,
    max_pending = excluded.max_pending,
    concurrency = excluded.concurrency,
    rate = excluded.rate,
    rate_window = excluded.rate_window,
    promote_after = excluded.promote_after,
    merged = CASE queue.merged WHEN 1 THEN 2 ELSE queue.merged END;

-- name: set_limit
INSERT INTO penstock."limit" (kind, name, concurrency) VALUES ($1, $2, $3)
ON CONFLICT (kind, name) DO UPDATE SET concurrency = excluded.concurrency;

-- name: remove_limit
DELETE FROM penstock."limit" WHERE kind = $1 AND name = $2;

-- name: limits
SELECT kind, name, concurrency FROM penstock."limit" ORDER BY kind, name;

-- Whether the job of an entry is still there.
-- name: _existing_job
(
    EXISTS (SELECT 1 FROM penstock.job_active AS j WHERE j.id = l.job_id OFFSET 0)
    OR EXISTS (SELECT 1 FROM penstock.job AS j WHERE j.id = l.job_id AND j.shelf <> 0 OFFSET 0)
)

-- Entries up to which the log is complete. Those of removed jobs go with their day.
-- name: log
SELECT
    l.id, l.job_id, l.at, l.event, l.state, l.actor, l.token, l.duration, l.reason, l.error,
    l.detail
FROM penstock.log AS l
WHERE l.id > $1 AND l.id <= $3 AND {_existing_job}
ORDER BY l.id LIMIT $2;

-- To be asked before the log is read: entries below it have all committed.
-- name: complete_log
SELECT penstock.complete();

-- name: _entry
LATERAL (
    SELECT tableoid AS part, ctid AS tid, * FROM penstock.log WHERE id = chain.id OFFSET 0
) AS l

-- The entries of jobs, from the newest of each back.
-- name: _chain
SELECT j.version FROM {_ids} CROSS JOIN {_stored}
    UNION ALL
    SELECT l.previous FROM chain CROSS JOIN {_entry} WHERE l.previous IS NOT NULL

-- name: log_of_job
WITH RECURSIVE chain (id) AS (
    SELECT version FROM penstock.job WHERE id = $1
    UNION ALL
    SELECT l.previous FROM chain CROSS JOIN {_entry} WHERE l.previous IS NOT NULL
)
SELECT
    l.id, l.job_id, l.at, l.event, l.state, l.actor, l.token, l.duration, l.reason, l.error,
    l.detail
FROM chain CROSS JOIN {_entry}
WHERE l.id > $2 ORDER BY l.id LIMIT $3;

-- name: logs_of_jobs
WITH RECURSIVE chain (id) AS (
    {_chain}
)
SELECT
    l.id, l.job_id, l.at, l.event, l.state, l.actor, l.token, l.duration, l.reason, l.error,
    l.detail
FROM chain CROSS JOIN {_entry} ORDER BY l.id;

-- name: deletable
SELECT coalesce(json_agg(j.id)::text, '[]')
FROM (
    SELECT (value ->> 0)::bigint AS id, (value ->> 1)::bigint AS version
    FROM json_array_elements($1::json) AS v (value)
) AS p
CROSS JOIN {_stored}
WHERE j.version = p.version
AND (j.shelf <> 0 OR EXISTS (SELECT 1 FROM penstock.seal WHERE passage = 'left'));

-- name: source
SELECT value FROM penstock.meta WHERE name = 'source';

-- name: restored_ids
SELECT o.original, o.job_id
FROM (SELECT json_array_elements_text($2::json)::bigint AS id) AS p CROSS JOIN LATERAL (
    SELECT original, job_id FROM penstock.origin WHERE source = $1 AND original = p.id OFFSET 0
) AS o
UNION ALL
SELECT j.id, j.id
FROM (SELECT json_array_elements_text($2::json)::bigint AS id) AS p CROSS JOIN {_stored}
WHERE $1 = (SELECT value FROM penstock.meta WHERE name = 'source');

-- name: add_restored_id
INSERT INTO penstock.origin (source, original, job_id) VALUES ($1, $2, $3);

-- Locks the sequence until the transaction ends.
-- name: lock_job_ids
ALTER SEQUENCE penstock.job_id NO CYCLE;

-- name: lock_log_ids
ALTER SEQUENCE penstock.log_id NO CYCLE;

-- name: remember_last_ids
SELECT
    CASE WHEN $1::bigint > 0 THEN setval('penstock.job_id', $1) END,
    CASE WHEN $2::bigint > 0 THEN setval('penstock.log_id', $2) END;

-- name: restore_job
INSERT INTO penstock.job (
    id, stage, version, attempt, token, run_at, started_at, finished_at, worker, queue, task,
    priority, enqueued_at, lease_time, merged, timeout, key, dedupe, scope, tags, retry,
    correlation, tenant, parent, throttle, trace, task_version, needs, error, result, body, shelf
) VALUES (
    $1, $2::bigint, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
    $21, $22, $23, $24, $25, $26, $27, coalesce($28::bigint, 0), $29, $30, $31,
    CASE WHEN $2::bigint < 4 THEN 0 ELSE 2 * ($32::bigint / 86400000000) + ($2 = 5)::integer END
);

-- name: restore_log
INSERT INTO penstock.log (
    id, job_id, previous, at, day, event, state, actor, token, duration, reason, error, detail,
    taken_over, queue
) VALUES (
    $1, $2, $3, $4, $15::bigint / 86400000000, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14
);

-- name: restore_line
INSERT INTO penstock.line (job_id, id, at, level, text, attempt)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: migration_lock
SELECT passage, peer, place FROM penstock.seal;

-- name: drop_migration_lock
DELETE FROM penstock.seal;

-- name: put_migration_lock
INSERT INTO penstock.seal (passage, peer, place) VALUES ($1, $2, $3);

-- name: running_tokens
SELECT j.id, j.token FROM {_ids} CROSS JOIN {_active} WHERE j.stage = 3;

-- name: write_progress
INSERT INTO penstock.progress (job_id, done, total, note, at, started_at, start)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (job_id) DO UPDATE SET
    done = excluded.done, total = excluded.total, note = excluded.note, at = excluded.at,
    started_at = excluded.started_at, start = excluded.start;

-- name: write_checkpoint
INSERT INTO penstock.checkpoint (job_id, body) VALUES ($1, $2)
ON CONFLICT (job_id) DO UPDATE SET body = excluded.body;

-- name: add_line
INSERT INTO penstock.line (job_id, id, at, level, text, attempt)
SELECT $1, coalesce(max(id), 0) + 1, $2, $3, $4, $5 FROM penstock.line WHERE job_id = $1;

-- name: drop_lines
DELETE FROM penstock.line
WHERE job_id = $1 AND id <= (SELECT max(id) FROM penstock.line WHERE job_id = $1) - $2;

-- The ctids of what belongs to the jobs `p`.
-- name: _progress_of
(
    SELECT d.tid FROM p CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.progress WHERE job_id = p.id OFFSET 0
    ) AS d
) AS t

-- name: _checkpoint_of
(
    SELECT d.tid FROM p CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.checkpoint WHERE job_id = p.id OFFSET 0
    ) AS d
) AS t

-- name: _line_of
(
    SELECT d.tid FROM p CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.line WHERE job_id = p.id OFFSET 0
    ) AS d
) AS t

-- name: _tags_of
(
    SELECT d.tid FROM p CROSS JOIN LATERAL json_array_elements_text(p.tags::json) AS w (tag)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.tag WHERE tag = w.tag AND job_id = p.id OFFSET 0
    ) AS d
) AS t

-- name: _edges_of
(
    SELECT DISTINCT e.tid FROM p CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM penstock.edge WHERE needed = p.id
        UNION ALL
        SELECT ctid FROM penstock.edge WHERE job_id = p.id
    ) AS e
) AS t

-- name: clear_progress
WITH p AS MATERIALIZED (SELECT json_array_elements_text($1::json)::bigint AS id)
DELETE FROM penstock.progress AS d USING {_progress_of} WHERE d.ctid = t.tid;

-- name: clear_checkpoints
WITH p AS MATERIALIZED (SELECT json_array_elements_text($1::json)::bigint AS id)
DELETE FROM penstock.checkpoint AS d USING {_checkpoint_of} WHERE d.ctid = t.tid;

-- name: progress
SELECT r.job_id, r.done, r.total, r.note, r.at, r.started_at, r.start
FROM {_ids} CROSS JOIN LATERAL (
    SELECT * FROM penstock.progress WHERE job_id = p.id OFFSET 0
) AS r;

-- name: checkpoint
SELECT c.body, j.stage = 3 FROM penstock.job AS j
JOIN penstock.checkpoint AS c ON c.job_id = j.id
WHERE j.id = $1 AND j.stage <> 4;

-- name: checkpoints
SELECT c.job_id, c.body FROM {_ids}
CROSS JOIN LATERAL (SELECT * FROM penstock.checkpoint WHERE job_id = p.id OFFSET 0) AS c
CROSS JOIN {_stored} WHERE j.stage <> 4;

-- name: lines_of_jobs
SELECT l.job_id, l.id, l.at, l.level, l.text, l.attempt
FROM {_ids} CROSS JOIN LATERAL (SELECT * FROM penstock.line WHERE job_id = p.id OFFSET 0) AS l
ORDER BY l.job_id, l.id;

-- name: lines
SELECT id, at, level, text, attempt FROM penstock.line
WHERE job_id = $1 AND id > $2 ORDER BY id LIMIT $3;

-- Takes the lock for dropping partitions, unless another transaction holds it.
-- name: try_lock_partitions
SELECT pg_try_advisory_xact_lock('penstock.meta'::regclass::oid::integer, 2);

-- The days of finished jobs, and whether it is the partition of failed ones.
-- name: partitions
SELECT regexp_replace(c.relname, '\D', '', 'g')::integer, c.relname LIKE '%_failed'
FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = 'penstock.job'::regclass AND c.relname <> 'job_active';

-- name: log_days
SELECT regexp_replace(c.relname, '\D', '', 'g')::integer
FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = 'penstock.log'::regclass;

-- Removes what belongs to the jobs of a partition, before it is dropped.
-- name: clear_partition
WITH p AS MATERIALIZED (SELECT id, queue, stage, tags FROM penstock.job WHERE shelf = $1),
counted AS (
    INSERT INTO penstock.delta (id, queue, stage, n)
    SELECT nextval('penstock.log_id'), queue, stage, -count(*) FROM p GROUP BY queue, stage
),
progress AS (DELETE FROM penstock.progress AS d USING {_progress_of} WHERE d.ctid = t.tid),
checkpoint AS (DELETE FROM penstock.checkpoint AS d USING {_checkpoint_of} WHERE d.ctid = t.tid),
line AS (DELETE FROM penstock.line AS d USING {_line_of} WHERE d.ctid = t.tid),
edge AS (DELETE FROM penstock.edge AS d USING {_edges_of} WHERE d.ctid = t.tid),
tagged AS (DELETE FROM penstock.tag AS d USING {_tags_of} WHERE d.ctid = t.tid)
SELECT count(*), coalesce(json_agg(DISTINCT queue)::text, '[]') FROM p;

-- Deletes mirrored jobs of a partition one by one: their rows have to go with them.
-- name: clear_mirrored
DELETE FROM penstock.job WHERE shelf = $1
AND encode(convert_to(queue, 'UTF8') || '\x00'::bytea, 'escape') IN (
    SELECT encode(tgargs, 'escape') FROM pg_trigger
    WHERE tgrelid = 'penstock.job'::regclass AND tgname ~ '^mirror_.*_removed$'
);

-- Moves entries of jobs that still exist to a day that stays.
-- name: keep_log_entries
UPDATE penstock.log AS l SET day = $2
WHERE l.day = $1 AND {_existing_job};

-- name: prunable
SELECT coalesce(json_agg(id)::text, '[]') FROM (
    SELECT id FROM penstock.job
    WHERE shelf > 0 AND shelf <= 2 * ($2::bigint / 86400000000) + 1
    AND stage = $1 AND finished_at <= $2 LIMIT $3
) AS t;

-- name: prune_log
WITH RECURSIVE chain (id) AS (
    {_chain}
),
t AS MATERIALIZED (SELECT l.part, l.tid FROM chain CROSS JOIN {_entry})
DELETE FROM penstock.log AS l USING t WHERE l.ctid = t.tid AND l.tableoid = t.part;

-- name: prune_edges
WITH p AS MATERIALIZED (SELECT json_array_elements_text($1::json)::bigint AS id)
DELETE FROM penstock.edge AS d USING {_edges_of} WHERE d.ctid = t.tid;

-- What else belongs to jobs.
-- name: prune_payloads
WITH p AS MATERIALIZED (SELECT j.id, j.tags FROM {_ids} CROSS JOIN {_stored}),
progress AS (DELETE FROM penstock.progress AS d USING {_progress_of} WHERE d.ctid = t.tid),
checkpoint AS (DELETE FROM penstock.checkpoint AS d USING {_checkpoint_of} WHERE d.ctid = t.tid),
line AS (DELETE FROM penstock.line AS d USING {_line_of} WHERE d.ctid = t.tid)
DELETE FROM penstock.tag AS d USING {_tags_of} WHERE d.ctid = t.tid;

-- name: prune_jobs
WITH t AS MATERIALIZED (SELECT j.part, j.tid FROM {_ids} CROSS JOIN {_stored})
DELETE FROM penstock.job AS j USING t WHERE j.ctid = t.tid AND j.tableoid = t.part
RETURNING j.queue, j.stage;

-- The last entry that was rolled up, the first that was not, and the newest.
-- name: rolled_up
SELECT
    m.value,
    (SELECT min(id) FROM penstock.log WHERE id > m.value AND id <= $1),
    (SELECT max(id) FROM penstock.log WHERE id > m.value AND id <= $1)
FROM penstock.meta AS m WHERE m.name = 'digested';

-- One step for a portion of the log.
-- name: sums
SELECT
    at / 60000000 AS minute, queue, event,
    CASE
        WHEN duration IS NULL OR event = 'snoozed' THEN 0
        ELSE 1 + width_bucket(
            duration - 1,
            ARRAY[$3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19]::bigint[]
        )
    END AS bucket,
    count(*),
    sum(CASE WHEN duration > 0 AND event <> 'snoozed' THEN duration ELSE 0 END)::bigint
FROM (
    SELECT at, queue, event, duration FROM penstock.log AS l
    WHERE id BETWEEN $1 AND $2 AND taken_over IS NULL AND {_existing_job}
) AS l
GROUP BY bucket, event, minute, queue;

-- name: log_size
SELECT count(*) FROM penstock.log WHERE id BETWEEN $1 AND $2;

-- name: any_old_history
SELECT 1 FROM penstock.history WHERE minute < $1 LIMIT 1;

-- name: add_history
INSERT INTO penstock.history AS h (minute, queue, event, bucket, n, micros)
SELECT
    (v ->> 0)::bigint, v ->> 1, v ->> 2, (v ->> 3)::integer, (v ->> 4)::bigint, (v ->> 5)::bigint
FROM json_array_elements($1::json) AS v
ON CONFLICT (minute, queue, event, bucket)
DO UPDATE SET n = h.n + excluded.n, micros = h.micros + excluded.micros;

-- Events of queues without counters of their own are added to those of all such queues.
-- name: add_counters
INSERT INTO penstock.counter AS c (queue, event, bucket, n, micros)
SELECT
    coalesce(s.queue, ''), v ->> 2, (v ->> 3)::integer, sum((v ->> 4)::bigint),
    sum((v ->> 5)::bigint)
FROM json_array_elements($1::json) AS v
LEFT JOIN penstock.series AS s ON s.queue = (v ->> 1) COLLATE "C" GROUP BY 1, 2, 3
ON CONFLICT (queue, event, bucket)
DO UPDATE SET n = c.n + excluded.n, micros = c.micros + excluded.micros;

-- name: set_rolled_up
UPDATE penstock.meta SET value = $2 WHERE name = 'digested' AND value = $1 RETURNING value;

-- name: drop_old_history
WITH t AS MATERIALIZED (
    SELECT ctid AS tid FROM penstock.history WHERE minute < $1 LIMIT $2
)
DELETE FROM penstock.history AS h USING t WHERE h.ctid = t.tid;

-- Steps start at 1970.
-- name: history
SELECT
    minute - minute % $1::bigint AS step, queue, event, bucket, sum(n)::bigint,
    sum(micros)::bigint
FROM penstock.history
WHERE minute >= $2 AND minute < $3 AND queue <> ''
GROUP BY 1, 2, 3, 4;

-- name: history_of
SELECT
    h.minute - h.minute % $1::bigint AS step, h.queue, h.event, h.bucket, sum(h.n)::bigint,
    sum(h.micros)::bigint
FROM json_array_elements_text($4::json) AS q
JOIN penstock.history AS h
ON h.queue = q.value COLLATE "C" AND h.minute >= $2 AND h.minute < $3
GROUP BY 1, 2, 3, 4;

-- name: counters
SELECT 0, queue, event, bucket, n, micros FROM penstock.counter;

-- name: series
SELECT s.queue FROM penstock.series AS s
WHERE EXISTS (SELECT 1 FROM penstock.queue WHERE name = s.queue) ORDER BY s.queue;

-- How many there may be, 0 for the default; locked until the transaction ends.
-- name: series_limit
SELECT value FROM penstock.meta WHERE name = 'series' FOR UPDATE;

-- name: limit_series
UPDATE penstock.meta SET value = $1 WHERE name = 'series';

-- name: any_gone_series
SELECT 1 FROM penstock.series AS s
WHERE NOT EXISTS (SELECT 1 FROM penstock.queue WHERE name = s.queue) LIMIT 1;

-- Queues without counters are found after those that have some, which are few.
-- name: without_series
SELECT q.name FROM penstock.queue AS q
WHERE NOT EXISTS (SELECT 1 FROM penstock.series WHERE queue = q.name) AND q.name <> $2
ORDER BY q.name LIMIT greatest(0, $1 - (SELECT count(*) FROM penstock.series));

-- name: drop_counters
DELETE FROM penstock.counter WHERE queue IN (
    SELECT s.queue FROM penstock.series AS s
    WHERE NOT EXISTS (SELECT 1 FROM penstock.queue WHERE name = s.queue)
);

-- name: drop_series
DELETE FROM penstock.series
WHERE NOT EXISTS (SELECT 1 FROM penstock.queue WHERE name = penstock.series.queue);

-- name: add_series
INSERT INTO penstock.series SELECT value FROM json_array_elements_text($1::json)
ON CONFLICT DO NOTHING;

-- The time, when the next job falls due or a pause ends, and whether a rate may hold jobs.
-- name: next_change
SELECT
    penstock.now(),
    least(
        (SELECT min(run_at) FROM penstock.job_active WHERE stage = 1 AND run_at > $1),
        (
            SELECT min(paused_until) FROM penstock.queue
            WHERE paused_until > 0 AND paused_until > $1 AND paused_until < 9223372036854775807
        )
    ),
    EXISTS (SELECT 1 FROM penstock.queue WHERE rate IS NOT NULL);

-- name: rates_in_force
SELECT q.rate, q.rate_window, r.starts FROM penstock.queue AS q
JOIN penstock.rate AS r ON r.queue = q.name
WHERE q.rate IS NOT NULL AND q.paused_until <= $1
AND {_ready};

-- The beginnings of a search; the store appends the conditions.
-- name: _tagged
penstock.tag AS t
    CROSS JOIN LATERAL (SELECT * FROM penstock.job WHERE id = t.job_id OFFSET 0) AS j

-- name: find
SELECT {_columns} FROM penstock.job AS j WHERE

-- name: find_tagged
SELECT {_columns} FROM {_tagged} WHERE t.tag = $1 AND

-- name: find_ids
SELECT j.id FROM penstock.job AS j WHERE

-- name: find_ids_tagged
SELECT j.id FROM {_tagged} WHERE t.tag = $1 AND

-- name: tally
SELECT j.stage, count(*) FROM penstock.job AS j WHERE

-- name: tally_tagged
SELECT j.stage, count(*) FROM {_tagged} WHERE t.tag = $1 AND

-- name: _schedule
name, version, next_at, last_at, last_job, paused, declared, job, cron, every, timezone, missed,
    overlap

-- name: schedules
SELECT {_schedule} FROM penstock.schedule ORDER BY name;

-- name: schedules_named
SELECT {_schedule} FROM penstock.schedule
WHERE name IN (SELECT json_array_elements_text($1::json)) ORDER BY name;

-- name: schedule_version
SELECT version, next_at, paused FROM penstock.schedule WHERE name = $1;

-- name: next_schedule_version
UPDATE penstock.meta SET value = value + 1 WHERE name = 'last_schedule' RETURNING value;

-- name: put_schedule
INSERT INTO penstock.schedule (
    name, version, next_at, last_at, last_job, paused, declared, task, job, cron, every, timezone,
    missed, overlap
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT (name) DO UPDATE SET
    version = excluded.version, next_at = excluded.next_at, last_at = excluded.last_at,
    last_job = excluded.last_job, paused = excluded.paused, declared = excluded.declared,
    task = excluded.task, job = excluded.job, cron = excluded.cron, every = excluded.every,
    timezone = excluded.timezone, missed = excluded.missed, overlap = excluded.overlap;

-- name: drop_schedule
DELETE FROM penstock.schedule WHERE name = $1 RETURNING name;

-- name: due_schedules
SELECT {_schedule} FROM penstock.schedule
WHERE NOT paused AND next_at <= $1
AND task IN (SELECT json_array_elements_text($2::json))
AND (NOT declared OR name IN (SELECT json_array_elements_text($3::json)))
ORDER BY next_at LIMIT $4;

-- name: next_schedule
SELECT next_at FROM penstock.schedule
WHERE NOT paused AND next_at > $1
AND task IN (SELECT json_array_elements_text($2::json))
AND (NOT declared OR name IN (SELECT json_array_elements_text($3::json)))
ORDER BY next_at LIMIT 1;

-- name: schedule_fired
UPDATE penstock.schedule SET
    version = $2, next_at = $3, last_at = coalesce($4, last_at), last_job = coalesce($5, last_job)
WHERE name = $1;

-- For entries that were written in this transaction.
-- name: log_reason
UPDATE penstock.log SET reason = $1 WHERE id = $2;

-- name: tokens
SELECT name, digest, scopes, created_at, expires_at FROM penstock.token ORDER BY name;

-- name: add_token
INSERT INTO penstock.token (name, digest, scopes, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING RETURNING name;

-- name: drop_token
DELETE FROM penstock.token WHERE name = $1 RETURNING name;

-- name: heartbeat
INSERT INTO penstock.worker (
    name, host, pid, queues, tags, concurrency, started_at, seen_at, tasks, schema_version
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, {schema})
ON CONFLICT (name) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, queues = excluded.queues, tags = excluded.tags,
    concurrency = excluded.concurrency, started_at = excluded.started_at,
    seen_at = excluded.seen_at, tasks = excluded.tasks, schema_version = excluded.schema_version
RETURNING draining;

-- name: drain_worker
UPDATE penstock.worker SET draining = 1 WHERE name = $1 RETURNING name;

-- name: deregister
DELETE FROM penstock.worker WHERE name IN (SELECT json_array_elements_text($1::json))
RETURNING coalesce(host, name), seen_at, tasks;

-- name: remember_tasks
INSERT INTO penstock.departed_task (name, host, seen_at, task)
SELECT DISTINCT ON (value ->> 'name') value ->> 'name', $1, $2::bigint, value::text
FROM json_array_elements($3::json)
ON CONFLICT (name) DO UPDATE SET
    host = excluded.host, seen_at = excluded.seen_at, task = excluded.task
WHERE excluded.seen_at >= departed_task.seen_at;

-- Forgets those that left before a time, and the oldest of those that are too many.
-- name: forget_tasks
DELETE FROM penstock.departed_task
WHERE seen_at < $1 OR name IN (
    SELECT name FROM penstock.departed_task ORDER BY seen_at DESC, name OFFSET $2
);

-- name: departed_tasks
SELECT host, seen_at, task FROM penstock.departed_task ORDER BY name;

-- name: workers
SELECT name, host, pid, queues, tags, concurrency, started_at, seen_at, draining, tasks
FROM penstock.worker;

-- A worker was last seen when it claimed a lease, or renewed it a whole lease before its end.
-- name: holdings
SELECT
    worker, count(*), min(started_at), min(expires_at),
    max(greatest(started_at, expires_at - lease_time))
FROM penstock.job_active WHERE stage = 3 GROUP BY worker;

-- The installed trigger function of a mirror.
-- name: mirror
SELECT prosrc FROM pg_proc WHERE oid = to_regprocedure($1);

-- The bytes of all tables with their indexes, and the dead rows in them.
-- name: size
SELECT sum(pg_total_relation_size(relid))::bigint, sum(n_dead_tup)::bigint
FROM pg_stat_user_tables WHERE schemaname = (
    SELECT nspname FROM pg_class JOIN pg_namespace AS n ON relnamespace = n.oid
    WHERE pg_class.oid = 'penstock.worker'::regclass
);
