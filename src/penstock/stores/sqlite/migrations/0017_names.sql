-- Costs that do not grow with the names of queues.
--
-- Each queue with a line of its own costs a claim one look. So only the first queues of a file have
-- one, and those that anyone has configured, paused, or uses with tenants. All others are merged:
-- their ready jobs are found in one index for all of them, in the order in which they start.
-- 0: a line of its own; 1: merged; 2: a line of its own, while some of its jobs still are merged.
ALTER TABLE penstock_queue ADD COLUMN merged INTEGER NOT NULL DEFAULT 0;
ALTER TABLE penstock_job ADD COLUMN merged INTEGER NOT NULL DEFAULT 0;
ALTER TABLE penstock_ready_tag ADD COLUMN merged INTEGER NOT NULL DEFAULT 0;

-- How many queues there are, how many of the first ones have lines of their own, and a number that
-- rises whenever a queue or a limit is configured.
INSERT INTO penstock_meta VALUES ('queues', 0), ('own_lines', 32), ('configured', 0);

-- Queues without jobs that nobody has configured.
DELETE FROM penstock_queue
WHERE paused_until = 0
AND coalesce(max_pending, concurrency, rate, promote_after) IS NULL
AND NOT EXISTS (SELECT 1 FROM penstock_total AS t WHERE t.queue = name AND t.n <> 0);
DELETE FROM penstock_total WHERE queue NOT IN (SELECT name FROM penstock_queue);
DELETE FROM penstock_turn WHERE queue NOT IN (SELECT name FROM penstock_queue);
DELETE FROM penstock_rate WHERE queue NOT IN (SELECT name FROM penstock_queue);
UPDATE penstock_meta SET value = (SELECT count(*) FROM penstock_queue) WHERE name = 'queues';

-- The others are merged where there are many.
UPDATE penstock_queue SET merged = 1
WHERE paused_until = 0
AND coalesce(max_pending, concurrency, rate, promote_after) IS NULL
AND (SELECT value FROM penstock_meta WHERE name = 'queues') > 32
AND NOT EXISTS (
    SELECT 1 FROM penstock_job AS j
    WHERE j.queue = name AND j.stage = 0 AND j.tenant IS NOT NULL AND j.held IS NULL
);
-- Also those of tenants whose jobs are finished: retried, they take turns.
UPDATE penstock_queue SET merged = 0
WHERE merged AND name IN (SELECT queue FROM penstock_job WHERE tenant IS NOT NULL);
UPDATE penstock_job SET merged = 1
WHERE stage < 4 AND queue IN (SELECT name FROM penstock_queue WHERE merged);
UPDATE penstock_ready_tag SET merged = 1
WHERE queue IN (SELECT name FROM penstock_queue WHERE merged);

CREATE INDEX penstock_job_merged ON penstock_job (priority DESC, run_at, id)
WHERE stage = 0 AND merged AND held IS NULL;
-- What limits hold in merged queues is one place, whose queue is ''.
DROP INDEX penstock_job_held;
CREATE INDEX penstock_job_held ON penstock_job (
    held, ifnull(tenant, ''), CASE WHEN merged THEN '' ELSE queue END, priority, run_at, id
)
WHERE stage = 0 AND held IS NOT NULL;
CREATE INDEX penstock_job_member ON penstock_job (queue) WHERE merged AND stage < 4;
CREATE INDEX penstock_ready_tag_merged ON penstock_ready_tag (tag, priority DESC, run_at, job_id)
WHERE merged;

CREATE INDEX penstock_queue_own ON penstock_queue (name) WHERE merged <> 1;
CREATE INDEX penstock_queue_leaving ON penstock_queue (name) WHERE merged = 2;
CREATE INDEX penstock_queue_limited ON penstock_queue (name) WHERE concurrency IS NOT NULL;
CREATE INDEX penstock_queue_rated ON penstock_queue (name) WHERE rate IS NOT NULL;
CREATE INDEX penstock_queue_paused ON penstock_queue (paused_until) WHERE paused_until > 0;

-- The limit of names, 100,000 unless there is another.
CREATE TRIGGER penstock_queue_added AFTER INSERT ON penstock_queue
BEGIN
    UPDATE penstock_meta SET value = value + 1 WHERE name = 'queues';
    SELECT RAISE(ABORT, 'penstock: the store has as many queues as its limit allows')
    FROM penstock_meta
    WHERE name = 'queues' AND value > ifnull(
        (SELECT concurrency FROM penstock_limit WHERE kind = 'queues' AND name = ''), 100000
    );
END;

CREATE TRIGGER penstock_queue_removed AFTER DELETE ON penstock_queue
BEGIN
    UPDATE penstock_meta SET value = value - 1 WHERE name = 'queues';
    DELETE FROM penstock_total WHERE queue = OLD.name;
    DELETE FROM penstock_turn WHERE queue = OLD.name;
    DELETE FROM penstock_rate WHERE queue = OLD.name;
END;

DROP TRIGGER penstock_tags_ready;
CREATE TRIGGER penstock_tags_ready AFTER UPDATE OF stage ON penstock_job
WHEN NEW.tags IS NOT NULL AND NEW.stage = 0
BEGIN
    INSERT OR IGNORE INTO penstock_ready_tag (
        queue, tag, priority, tenant, run_at, job_id, merged
    )
    SELECT NEW.queue, value, NEW.priority, ifnull(NEW.tenant, ''), NEW.run_at, NEW.id, NEW.merged
    FROM json_each(NEW.tags);
END;

CREATE TRIGGER penstock_tags_unmerged AFTER UPDATE OF merged ON penstock_job
WHEN NEW.tags IS NOT NULL AND NEW.stage = 0
BEGIN
    UPDATE penstock_ready_tag SET merged = NEW.merged
    WHERE queue = NEW.queue AND tag IN (SELECT value FROM json_each(NEW.tags))
    AND priority = NEW.priority AND tenant = ifnull(NEW.tenant, '')
    AND run_at = NEW.run_at AND job_id = NEW.id;
END;

-- As before, and merged where its queue is.
DROP TRIGGER penstock_added;
CREATE TRIGGER penstock_added INSTEAD OF INSERT ON penstock_add
BEGIN
    SELECT RAISE(ABORT, 'penstock: jobs move between this store and another')
    WHERE EXISTS (SELECT 1 FROM penstock_seal);
    SELECT RAISE(ABORT, 'penstock: the queue is full') FROM penstock_queue AS q
    WHERE q.name = NEW.queue AND q.max_pending <= (
        SELECT ifnull(sum(n), 0) FROM penstock_total WHERE queue = NEW.queue AND stage < 3
    );
    SELECT RAISE(ABORT, 'penstock: an unfinished job has this dedupe key')
    WHERE NEW.dedupe IS NOT NULL AND (
        EXISTS (
            SELECT 1 FROM penstock_job
            WHERE dedupe = NEW.dedupe AND dedupe IS NOT NULL AND stage < 3
        )
        OR EXISTS (
            SELECT 1 FROM penstock_job
            WHERE dedupe = NEW.dedupe AND dedupe IS NOT NULL AND stage = 3
        )
    );
    INSERT INTO penstock_queue (name, merged)
    VALUES (
        NEW.queue,
        (SELECT value FROM penstock_meta WHERE name = 'queues')
        >= (SELECT value FROM penstock_meta WHERE name = 'own_lines')
    )
    ON CONFLICT DO NOTHING;
    UPDATE penstock_queue SET merged = 2
    WHERE name = NEW.queue AND merged = 1 AND NEW.tenant IS NOT NULL;
    INSERT INTO penstock_job (
        id, version, enqueued_at, stage, run_at, queue, task, priority, lease_time, key, dedupe,
        scope, tenant, retry, attempt, merged
    )
    VALUES (
        (
            SELECT max(ifnull((SELECT max(id) FROM penstock_job), 0), value) + 1
            FROM penstock_meta WHERE name = 'last_job'
        ),
        (SELECT id FROM penstock_next_log),
        ifnull(NEW.at, (SELECT at FROM penstock_now)),
        CASE
            WHEN NEW.key IS NOT NULL AND EXISTS (
                SELECT 1 FROM penstock_job WHERE key = NEW.key AND key IS NOT NULL AND stage < 4
            ) THEN 2
            WHEN NEW.run_at IS NULL THEN 0
            ELSE NEW.run_at > ifnull(NEW.at, (SELECT at FROM penstock_now))
        END,
        coalesce(NEW.run_at, NEW.at, (SELECT at FROM penstock_now)), NEW.queue, NEW.task,
        ifnull(NEW.priority, 5), ifnull(NEW.lease_time, 30000000), NEW.key, NEW.dedupe,
        CASE WHEN NEW.dedupe IS NOT NULL THEN 'unfinished' END, NEW.tenant, NEW.retry,
        ifnull(NEW.attempt, 0), (SELECT merged = 1 FROM penstock_queue WHERE name = NEW.queue)
    );
    INSERT INTO penstock_payload (job_id, body)
    VALUES ((SELECT max(id) FROM penstock_job), ifnull(NEW.body, '{}'));
    INSERT INTO penstock_log (id, job_id, at, event, state, actor)
    SELECT version, id, enqueued_at, 'enqueued', 'pending', ifnull(NEW.actor, 'sql')
    FROM penstock_job ORDER BY id DESC LIMIT 1;
    INSERT INTO penstock_total (queue, stage, n)
    VALUES (NEW.queue, (SELECT stage FROM penstock_job ORDER BY id DESC LIMIT 1), 1)
    ON CONFLICT DO UPDATE SET n = n + 1;
END;
