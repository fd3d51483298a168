-- What `verify` asks, and what `repair` does. These read whole tables, unlike `queries.sql`.

-- How many jobs and log entries there are.
-- name: numbers
SELECT (SELECT count(*) FROM penstock_job), (SELECT count(*) FROM penstock_log);

-- Log entries that do not follow an earlier one of the same job.
-- name: broken_links
SELECT l.job_id, l.id FROM penstock_log AS l
LEFT JOIN penstock_log AS p ON p.id = l.previous
WHERE l.previous IS NOT NULL AND (p.id IS NULL OR p.job_id <> l.job_id OR p.id >= l.id)
LIMIT ?;

-- Jobs whose version is not a log entry of theirs.
-- name: wrong_versions
SELECT j.id, j.version FROM penstock_job AS j
LEFT JOIN penstock_log AS l ON l.id = j.version
WHERE l.id IS NULL OR l.job_id <> j.id
LIMIT ?;

-- What belongs to no job.
-- name: strays
SELECT 'log entry ' || id, job_id FROM penstock_log
WHERE job_id NOT IN (SELECT id FROM penstock_job)
UNION ALL
SELECT 'payload', job_id FROM penstock_payload WHERE job_id NOT IN (SELECT id FROM penstock_job)
UNION ALL
SELECT 'tag ' || tag, job_id FROM penstock_tag WHERE job_id NOT IN (SELECT id FROM penstock_job)
UNION ALL
SELECT 'dependency', job_id FROM penstock_edge WHERE job_id NOT IN (SELECT id FROM penstock_job)
UNION ALL
SELECT 'progress', job_id FROM penstock_progress
WHERE job_id NOT IN (SELECT id FROM penstock_job)
UNION ALL
SELECT 'checkpoint', job_id FROM penstock_checkpoint
WHERE job_id NOT IN (SELECT id FROM penstock_job)
UNION ALL
SELECT 'line', job_id FROM penstock_line WHERE job_id NOT IN (SELECT id FROM penstock_job)
LIMIT ?;

-- Jobs whose tags are indexed otherwise than they are.
-- name: wrong_tags
SELECT DISTINCT job_id FROM (
    SELECT r.job_id FROM penstock_ready_tag AS r
    LEFT JOIN penstock_job AS j ON j.id = r.job_id
    WHERE j.id IS NULL OR j.stage <> 0 OR j.queue <> r.queue OR j.priority <> r.priority
    OR j.run_at <> r.run_at OR ifnull(j.tenant, '') <> r.tenant OR j.merged <> r.merged
    OR r.tag NOT IN (SELECT value FROM json_each(j.tags))
    UNION ALL
    SELECT j.id FROM penstock_job AS j CROSS JOIN json_each(j.tags) AS t
    WHERE j.tags IS NOT NULL AND j.stage = 0 AND NOT EXISTS (
        SELECT 1 FROM penstock_ready_tag AS r
        WHERE r.queue = j.queue AND r.tag = t.value AND r.priority = j.priority
        AND r.tenant = ifnull(j.tenant, '') AND r.run_at = j.run_at AND r.job_id = j.id
    )
    UNION ALL
    SELECT j.id FROM penstock_job AS j CROSS JOIN json_each(j.tags) AS t
    WHERE j.tags IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM penstock_tag AS g WHERE g.tag = t.value AND g.job_id = j.id
    )
)
LIMIT ?;

-- Jobs that other programs changed; what follows is written with the next claim.
-- name: expected
SELECT job_id FROM penstock_arrival;

-- Jobs that ended while others still wait for them.
-- name: ended_needed
SELECT DISTINCT e.needed, s.state FROM penstock_edge AS e
JOIN penstock_job AS j ON j.id = e.needed
JOIN penstock_stage AS s ON s.stage = j.stage
WHERE NOT e.resolved AND j.stage >= 4;

-- Jobs that nothing blocks, if they have no key.
-- name: blocked_by_nothing
SELECT id FROM penstock_job WHERE stage = 2 AND needs = 0 AND key IS NULL;

-- name: clean
DELETE FROM penstock_payload WHERE job_id NOT IN (SELECT id FROM penstock_job);
DELETE FROM penstock_tag WHERE job_id NOT IN (SELECT id FROM penstock_job);
DELETE FROM penstock_edge WHERE job_id NOT IN (SELECT id FROM penstock_job);
DELETE FROM penstock_progress WHERE job_id NOT IN (SELECT id FROM penstock_job);
DELETE FROM penstock_checkpoint WHERE job_id NOT IN (SELECT id FROM penstock_job);
DELETE FROM penstock_line WHERE job_id NOT IN (SELECT id FROM penstock_job);
UPDATE penstock_edge SET resolved = 1
WHERE NOT resolved AND needed NOT IN (SELECT id FROM penstock_job);
UPDATE penstock_job SET needs = (
    SELECT count(*) FROM penstock_edge AS e WHERE e.job_id = penstock_job.id AND NOT e.resolved
)
WHERE stage < 4;
UPDATE penstock_job SET stage = 2 WHERE stage < 2 AND needs > 0;
INSERT OR IGNORE INTO penstock_tag (tag, job_id)
SELECT t.value, j.id FROM penstock_job AS j CROSS JOIN json_each(j.tags) AS t
WHERE j.tags IS NOT NULL;

-- name: recount
DELETE FROM penstock_ready_tag;
INSERT OR IGNORE INTO penstock_ready_tag (queue, tag, priority, tenant, run_at, job_id, merged)
SELECT j.queue, t.value, j.priority, ifnull(j.tenant, ''), j.run_at, j.id, j.merged
FROM penstock_job AS j CROSS JOIN json_each(j.tags) AS t
WHERE j.tags IS NOT NULL AND j.stage = 0;
DELETE FROM penstock_total;
INSERT INTO penstock_total (queue, stage, n)
SELECT queue, stage, count(*) FROM penstock_job GROUP BY queue, stage;
