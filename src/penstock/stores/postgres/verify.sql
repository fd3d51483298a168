-- What `verify` asks, and what `repair` does. These read whole tables, unlike `queries.sql`; names
-- are looked up in the store's schema.

-- How many jobs and log entries there are.
-- name: numbers
SELECT (SELECT count(*) FROM job), (SELECT count(*) FROM log);

-- Log entries that do not follow an earlier one of the same job.
-- name: broken_links
SELECT l.job_id, l.id FROM log AS l LEFT JOIN log AS p ON p.id = l.previous
WHERE l.previous IS NOT NULL AND (p.id IS NULL OR p.job_id <> l.job_id OR p.id >= l.id)
LIMIT ?;

-- Jobs whose version is not a log entry of theirs.
-- name: wrong_versions
SELECT j.id, j.version FROM job AS j LEFT JOIN log AS l ON l.id = j.version
WHERE l.id IS NULL OR l.job_id <> j.id
LIMIT ?;

-- What belongs to no job.
-- name: strays
SELECT what, s.job_id FROM (
    SELECT 'log entry ' || id AS what, job_id FROM log
    UNION ALL
    SELECT 'tag ' || tag, job_id FROM tag
    UNION ALL
    SELECT 'dependency', job_id FROM edge
    UNION ALL
    SELECT 'progress', job_id FROM progress
    UNION ALL
    SELECT 'checkpoint', job_id FROM checkpoint
    UNION ALL
    SELECT 'line', job_id FROM line
) AS s
LEFT JOIN job AS j ON j.id = s.job_id
WHERE j.id IS NULL
LIMIT ?;

-- Jobs whose tags are indexed otherwise than they are.
-- name: wrong_tags
SELECT DISTINCT job_id FROM (
    SELECT r.job_id FROM ready_tag AS r LEFT JOIN job_active AS j ON j.id = r.job_id
    WHERE j.id IS NULL OR j.stage <> 0 OR j.queue <> r.queue OR j.priority <> r.priority
    OR j.run_at <> r.run_at OR coalesce(j.tenant, '') <> r.tenant OR j.merged <> r.merged
    OR r.tag NOT IN (SELECT value COLLATE "C" FROM json_array_elements_text(j.tags::json))
    UNION ALL
    SELECT j.id FROM job_active AS j CROSS JOIN json_array_elements_text(j.tags::json) AS t (tag)
    LEFT JOIN ready_tag AS r ON r.queue = j.queue AND r.tag = t.tag COLLATE "C"
    AND r.job_id = j.id AND r.priority = j.priority AND r.run_at = j.run_at
    WHERE j.stage = 0 AND r.job_id IS NULL
    UNION ALL
    SELECT j.id FROM job AS j CROSS JOIN json_array_elements_text(j.tags::json) AS t (tag)
    LEFT JOIN tag AS g ON g.tag = t.tag COLLATE "C" AND g.job_id = j.id
    WHERE g.job_id IS NULL
) AS w
LIMIT ?;

-- Jobs that other programs changed; what follows is written with the next claim.
-- name: expected
SELECT job_id FROM arrival UNION SELECT id FROM job_active WHERE arriving;

-- Jobs that ended while others still wait for them.
-- name: ended_needed
SELECT DISTINCT e.needed, s.state FROM edge AS e
JOIN job AS j ON j.id = e.needed
JOIN stage AS s ON s.stage = j.stage
WHERE NOT e.resolved AND j.stage >= 4;

-- Jobs that nothing blocks, if they have no key.
-- name: blocked_by_nothing
SELECT id FROM job_active WHERE stage = 2 AND needs = 0 AND key IS NULL AND NOT arriving;

-- name: clean
DELETE FROM tag WHERE NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = tag.job_id);
DELETE FROM edge WHERE NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = edge.job_id);
DELETE FROM progress WHERE NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = progress.job_id);
DELETE FROM checkpoint WHERE NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = checkpoint.job_id);
DELETE FROM line WHERE NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = line.job_id);
UPDATE edge SET resolved = true
WHERE NOT resolved AND NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = edge.needed);
UPDATE job_active SET needs = n FROM (
    SELECT a.id, count(e.job_id)::integer AS n FROM job_active AS a
    LEFT JOIN edge AS e ON e.job_id = a.id AND NOT e.resolved
    GROUP BY a.id
) AS c
WHERE c.id = job_active.id AND needs <> n AND NOT arriving;
UPDATE job_active SET stage = 2 WHERE stage < 2 AND needs > 0;
INSERT INTO tag (tag, job_id)
SELECT t.tag, j.id FROM job AS j CROSS JOIN json_array_elements_text(j.tags::json) AS t (tag)
ON CONFLICT DO NOTHING;

-- name: recount
DELETE FROM ready_tag;
INSERT INTO ready_tag (queue, tag, priority, tenant, run_at, job_id, merged)
SELECT j.queue, t.tag, j.priority, coalesce(j.tenant, ''), j.run_at, j.id, j.merged
FROM job_active AS j CROSS JOIN json_array_elements_text(j.tags::json) AS t (tag)
WHERE j.stage = 0
ON CONFLICT DO NOTHING;
DELETE FROM delta;
DELETE FROM total;
INSERT INTO total (queue, stage, n) SELECT queue, stage, count(*) FROM job GROUP BY queue, stage;
