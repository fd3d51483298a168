-- version: 7
--
-- The views and triggers of the store: what runs inside the database, whichever program writes.
-- They hold no data. When the version above rises, the next process that opens the store drops
-- them all and creates these, in one transaction. Raise it with every change here, and with every
-- change of `TRANSITIONS` in `core/lifecycle.py`.
--
-- 1. Triggers that keep derived tables current.
-- 2. SQL verbs for other programs.
-- 3. The path of plain jobs.

-- 1. Derived tables ---------------------------------------------------------------------------

-- A job becomes ready, is claimed, gets another priority or line, is removed: penstock_ready_tag
-- follows.
CREATE TRIGGER penstock_tags_ready AFTER UPDATE OF stage ON penstock_job
WHEN NEW.tags IS NOT NULL AND NEW.stage = 0
BEGIN
    INSERT OR IGNORE INTO penstock_ready_tag (
        queue, tag, priority, tenant, run_at, job_id, merged
    )
    SELECT NEW.queue, value, NEW.priority, ifnull(NEW.tenant, ''), NEW.run_at, NEW.id, NEW.merged
    FROM json_each(NEW.tags);
END;

CREATE TRIGGER penstock_tags_taken BEFORE UPDATE OF stage ON penstock_job
WHEN OLD.tags IS NOT NULL AND OLD.stage = 0
BEGIN
    DELETE FROM penstock_ready_tag
    WHERE queue = OLD.queue AND tag IN (SELECT value FROM json_each(OLD.tags))
    AND priority = OLD.priority AND tenant = ifnull(OLD.tenant, '')
    AND run_at = OLD.run_at AND job_id = OLD.id;
END;

CREATE TRIGGER penstock_tags_reprioritised AFTER UPDATE OF priority ON penstock_job
WHEN NEW.tags IS NOT NULL AND NEW.stage = 0 AND NEW.priority <> OLD.priority
BEGIN
    UPDATE penstock_ready_tag SET priority = NEW.priority
    WHERE queue = NEW.queue AND tag IN (SELECT value FROM json_each(NEW.tags))
    AND priority = OLD.priority AND tenant = ifnull(NEW.tenant, '')
    AND run_at = NEW.run_at AND job_id = NEW.id;
END;

CREATE TRIGGER penstock_tags_unmerged AFTER UPDATE OF merged ON penstock_job
WHEN NEW.tags IS NOT NULL AND NEW.stage = 0
BEGIN
    UPDATE penstock_ready_tag SET merged = NEW.merged
    WHERE queue = NEW.queue AND tag IN (SELECT value FROM json_each(NEW.tags))
    AND priority = NEW.priority AND tenant = ifnull(NEW.tenant, '')
    AND run_at = NEW.run_at AND job_id = NEW.id;
END;

-- Ready jobs are removed only from a store whose jobs have left.
CREATE TRIGGER penstock_ready_tags_removed AFTER DELETE ON penstock_job
WHEN OLD.tags IS NOT NULL AND OLD.stage = 0
BEGIN
    DELETE FROM penstock_ready_tag
    WHERE queue = OLD.queue AND tag IN (SELECT value FROM json_each(OLD.tags))
    AND priority = OLD.priority AND tenant = ifnull(OLD.tenant, '')
    AND run_at = OLD.run_at AND job_id = OLD.id;
END;

-- Whatever removes a job removes its tags and what it reported.
CREATE TRIGGER penstock_tags_removed AFTER DELETE ON penstock_job
WHEN OLD.tags IS NOT NULL
BEGIN
    DELETE FROM penstock_tag
    WHERE tag IN (SELECT value FROM json_each(OLD.tags)) AND job_id = OLD.id;
END;

CREATE TRIGGER penstock_notes_removed AFTER DELETE ON penstock_job
BEGIN
    DELETE FROM penstock_progress WHERE job_id = OLD.id;
    DELETE FROM penstock_checkpoint WHERE job_id = OLD.id;
    DELETE FROM penstock_line WHERE job_id = OLD.id;
END;

-- Queues are counted as they come and go. There may be 100,000, unless a limit says otherwise.
CREATE TRIGGER penstock_queue_added AFTER INSERT ON penstock_queue
BEGIN
    UPDATE penstock_meta SET value = value + 1 WHERE name = 'queues';
    SELECT RAISE(ABORT, 'penstock: the store has reached its limit of queues')
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

CREATE TRIGGER penstock_newcomer_noted AFTER INSERT ON penstock_newcomer
WHEN NEW.at_once
BEGIN
    DELETE FROM penstock_newcomer;
END;

-- 2. SQL verbs --------------------------------------------------------------------------------
--
-- For programs and triggers that only have SQL. To call a verb is to insert a row:
--
--     INSERT INTO penstock_add (queue, task, body) VALUES ('mails', 'send', '{"order": 1}');
--     INSERT INTO penstock_call (verb, job_id, worker) VALUES ('claim', 7, 'me');
--
-- Each has the effects of the verb in Python: state, token, attempt, totals, the next job of a
-- key, and one log entry. Which moves are allowed is looked up in penstock_transition. A verb
-- that is refused fails with an error that begins with 'penstock:'.
--
-- No statement here may meet a conflict that it does not resolve itself: a program that inserts
-- with OR REPLACE or OR IGNORE imposes that on every statement of every trigger it fires.

CREATE VIEW penstock_now (at) AS
SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000;

CREATE VIEW penstock_next_log (id) AS
SELECT max(ifnull((SELECT max(id) FROM penstock_log), 0), value) + 1
FROM penstock_meta WHERE name = 'last_log';

-- The jobs that a program may claim now, also those of tasks that no worker knows. Queues with a rate
-- and jobs with a throttle are left to workers.
CREATE VIEW penstock_claimable (id, queue, stage) AS
SELECT j.id, j.queue, j.stage FROM penstock_job AS j
CROSS JOIN penstock_queue AS q ON q.name = j.queue
WHERE (j.stage = 0 OR j.stage = 1 AND j.run_at <= (SELECT at FROM penstock_now))
AND (j.held IS NULL OR j.held >= 'unknown:') AND j.throttle IS NULL AND q.rate IS NULL
AND q.paused_until <= (SELECT at FROM penstock_now)
AND (q.concurrency IS NULL OR q.concurrency > ifnull(
    (SELECT n FROM penstock_total WHERE queue = j.queue AND stage = 3), 0
))
AND NOT EXISTS (
    SELECT 1 FROM penstock_limit AS l WHERE l.kind = 'task' AND l.name = j.task
    AND l.concurrency <= (
        SELECT count(*) FROM penstock_job AS r WHERE r.stage = 3 AND r.task = j.task
    )
)
AND NOT EXISTS (SELECT 1 FROM penstock_seal);

-- Adds a job, whose id is the highest there is. `lease_time` is 30 seconds by default. Many rows
-- come this way at once, so no statement here selects what it inserts: SQLite would fill a table
-- in memory each time, because triggers follow, which takes 10 to 20 microseconds.
CREATE VIEW penstock_add (
    queue, task, body, priority, run_at, lease_time, key, dedupe, tenant, retry, attempt, actor, at
) AS SELECT
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
WHERE false;

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
    -- Tenants get an index of their own for the queue, as in `sql/queue_names.py`.
    UPDATE penstock_queue SET merged = 2
    WHERE name = NEW.queue AND merged = 1 AND NEW.tenant IS NOT NULL
    AND (SELECT count(*) FROM (SELECT 1 FROM penstock_queue WHERE merged <> 1 LIMIT 100)) < 100;
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

CREATE VIEW penstock_call (
    verb, job_id, token, worker, expires_at, run_at, priority, error, permanent, result, reason,
    actor, at
) AS SELECT
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
WHERE false;

-- The verbs are made of the following steps. One job is counted under another stage:
CREATE VIEW penstock_shift (queue, before, after) AS SELECT NULL, NULL, NULL WHERE false;

CREATE TRIGGER penstock_shifted INSTEAD OF INSERT ON penstock_shift
BEGIN
    UPDATE penstock_total SET n = n - 1 WHERE queue = NEW.queue AND stage = NEW.before;
    INSERT INTO penstock_total (queue, stage, n) VALUES (NEW.queue, NEW.after, 1)
    ON CONFLICT DO UPDATE SET n = n + 1;
END;

-- One job gets another stage because of what happened to others:
CREATE VIEW penstock_restage (job_id, stage) AS SELECT NULL, NULL WHERE false;

CREATE TRIGGER penstock_restaged INSTEAD OF INSERT ON penstock_restage
BEGIN
    INSERT INTO penstock_shift SELECT queue, stage, NEW.stage FROM penstock_job
    WHERE id = NEW.job_id;
    UPDATE penstock_job SET stage = NEW.stage WHERE id = NEW.job_id;
END;

-- The oldest blocked job of a key becomes visible, unless one is visible or runs:
CREATE VIEW penstock_unblock (key, at) AS SELECT NULL, NULL WHERE false;

CREATE TRIGGER penstock_unblocked INSTEAD OF INSERT ON penstock_unblock
WHEN NEW.key IS NOT NULL
BEGIN
    INSERT INTO penstock_restage
    SELECT id, run_at > NEW.at FROM penstock_job
    WHERE id = (
        SELECT id FROM penstock_job
        WHERE key = NEW.key AND key IS NOT NULL AND stage < 4 ORDER BY stage, id LIMIT 1
    )
    AND stage = 2 AND needs = 0
    AND 3 <> (
        SELECT stage FROM penstock_job
        WHERE key = NEW.key AND key IS NOT NULL AND stage < 4 ORDER BY stage DESC LIMIT 1
    );
END;

-- The allowed moves of a job, by its id:
CREATE VIEW penstock_allowed (job_id, stage, event, next) AS
SELECT j.id, j.stage, t.event, t.next FROM penstock_job AS j
CROSS JOIN penstock_stage AS s ON s.stage = j.stage
CROSS JOIN penstock_transition AS t ON t.state = s.state;

-- A job moves to another state, or back to pending:
CREATE VIEW penstock_move (
    job_id, event, state, attempt, run_at, error, result, reason, actor, at
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE false;

CREATE TRIGGER penstock_moved INSTEAD OF INSERT ON penstock_move
BEGIN
    SELECT RAISE(ABORT, 'penstock: jobs move between this store and another')
    WHERE EXISTS (SELECT 1 FROM penstock_seal);
    SELECT RAISE(ABORT, 'penstock: the job is not in a state for this')
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock_allowed
        WHERE job_id = NEW.job_id AND event = NEW.event AND next = NEW.state
    );
    INSERT INTO penstock_log (
        id, job_id, previous, at, event, state, actor, token, duration, reason, error
    )
    SELECT
        (SELECT id FROM penstock_next_log), j.id, j.version, NEW.at, NEW.event, NEW.state,
        ifnull(NEW.actor, 'sql'),
        CASE WHEN j.stage = 3 THEN j.token END,
        CASE WHEN j.stage = 3 THEN NEW.at - j.started_at END,
        NEW.reason, NEW.error
    FROM penstock_job AS j WHERE j.id = NEW.job_id;
    INSERT INTO penstock_arrival (job_id, state, actor)
    SELECT id, NEW.state, ifnull(NEW.actor, 'sql') FROM penstock_job
    WHERE id = NEW.job_id AND awaited AND NEW.state <> 'pending'
    AND NOT EXISTS (SELECT 1 FROM penstock_arrival WHERE job_id = NEW.job_id);
    INSERT INTO penstock_shift
    SELECT
        queue, stage,
        CASE
            WHEN NEW.state <> 'pending'
            THEN (SELECT stage FROM penstock_stage WHERE state = NEW.state)
            WHEN key IS NOT NULL OR needs THEN 2
            ELSE NEW.run_at > NEW.at
        END
    FROM penstock_job WHERE id = NEW.job_id;
    UPDATE penstock_job SET
        stage = CASE
            WHEN NEW.state <> 'pending'
            THEN (SELECT stage FROM penstock_stage WHERE state = NEW.state)
            WHEN key IS NOT NULL OR needs THEN 2
            ELSE NEW.run_at > NEW.at
        END,
        version = (SELECT max(id) FROM penstock_log),
        attempt = NEW.attempt,
        run_at = CASE WHEN NEW.state = 'pending' THEN NEW.run_at ELSE run_at END,
        finished_at = CASE WHEN NEW.state <> 'pending' THEN NEW.at END,
        error = CASE
            WHEN NEW.event NOT IN ('done', 'reset') THEN ifnull(nullif(NEW.error, ''), error)
        END,
        result = NEW.result,
        started_at = CASE WHEN NEW.state <> 'pending' THEN started_at END,
        worker = CASE WHEN NEW.state <> 'pending' THEN worker END,
        expires_at = NULL,
        cancel_requested = 0
    WHERE id = NEW.job_id;
    DELETE FROM penstock_checkpoint WHERE job_id = NEW.job_id AND NEW.event IN ('done', 'reset');
    DELETE FROM penstock_progress WHERE job_id = NEW.job_id AND NEW.event = 'reset';
    -- A job that was reset may be older than the visible one of its key.
    INSERT INTO penstock_restage
    SELECT v.id, 2 FROM penstock_job AS v
    WHERE NEW.event = 'reset' AND v.id = (
        SELECT id FROM penstock_job
        WHERE key = (SELECT key FROM penstock_job WHERE id = NEW.job_id)
        AND key IS NOT NULL AND stage < 4 ORDER BY stage, id LIMIT 1
    )
    AND v.stage < 2 AND v.id > NEW.job_id;
    INSERT INTO penstock_unblock
    SELECT key, NEW.at FROM penstock_job WHERE id = NEW.job_id AND key IS NOT NULL;
END;

-- A job stays in its state, and the log gets an entry:
CREATE VIEW penstock_note (job_id, event, reason, actor, at) AS
SELECT NULL, NULL, NULL, NULL, NULL WHERE false;

CREATE TRIGGER penstock_noted INSTEAD OF INSERT ON penstock_note
BEGIN
    SELECT RAISE(ABORT, 'penstock: the job is not in a state for this')
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock_allowed AS a
        CROSS JOIN penstock_stage AS s ON s.stage = a.stage AND s.state = a.next
        WHERE a.job_id = NEW.job_id AND a.event = NEW.event
    );
    INSERT INTO penstock_log (id, job_id, previous, at, event, state, actor, token, reason)
    SELECT
        (SELECT id FROM penstock_next_log), j.id, j.version, NEW.at, NEW.event, s.state,
        ifnull(NEW.actor, 'sql'), CASE WHEN j.stage = 3 THEN j.token END, NEW.reason
    FROM penstock_job AS j CROSS JOIN penstock_stage AS s ON s.stage = j.stage
    WHERE j.id = NEW.job_id;
    UPDATE penstock_job SET version = (SELECT max(id) FROM penstock_log) WHERE id = NEW.job_id;
END;

CREATE TRIGGER penstock_call_unknown INSTEAD OF INSERT ON penstock_call
WHEN NEW.verb NOT IN (
    'claim', 'renew', 'done', 'fail', 'release', 'expire', 'cancel', 'reset', 'reprioritise',
    'refuse'
) OR NEW.verb IS NULL
BEGIN
    SELECT RAISE(ABORT, 'penstock: there is no such verb');
END;

-- 'claim' gives a job to a worker, until `expires_at` or for its lease time.
CREATE TRIGGER penstock_call_claim INSTEAD OF INSERT ON penstock_call
WHEN NEW.verb = 'claim'
BEGIN
    SELECT RAISE(ABORT, 'penstock: the job cannot be claimed now')
    WHERE NOT EXISTS (SELECT 1 FROM penstock_claimable WHERE id = NEW.job_id)
    OR NOT EXISTS (
        SELECT 1 FROM penstock_allowed
        WHERE job_id = NEW.job_id AND event = 'claimed' AND next = 'running'
    );
    INSERT INTO penstock_log (id, job_id, previous, at, event, state, actor, token, duration)
    SELECT
        n.id, j.id, j.version, t.at, 'claimed', 'running', ifnull(NEW.worker, 'sql'), n.id,
        max(0, t.at - max(j.run_at, j.enqueued_at))
    FROM penstock_job AS j CROSS JOIN penstock_next_log AS n
    CROSS JOIN (SELECT ifnull(NEW.at, (SELECT at FROM penstock_now)) AS at) AS t
    WHERE j.id = NEW.job_id;
    INSERT INTO penstock_shift SELECT queue, stage, 3 FROM penstock_job WHERE id = NEW.job_id;
    UPDATE penstock_job SET
        stage = 3,
        version = (SELECT max(id) FROM penstock_log),
        token = (SELECT max(id) FROM penstock_log),
        attempt = attempt + 1,
        started_at = (SELECT at FROM penstock_log ORDER BY id DESC LIMIT 1),
        expires_at = ifnull(
            NEW.expires_at, (SELECT at FROM penstock_log ORDER BY id DESC LIMIT 1) + lease_time
        ),
        worker = ifnull(NEW.worker, 'sql')
    WHERE id = NEW.job_id;
END;

-- 'renew', 'done', 'fail', 'release' and 'expire' are about a running job. `token`, if given, must
-- be that of its claim.
CREATE TRIGGER penstock_call_held INSTEAD OF INSERT ON penstock_call
WHEN NEW.verb IN ('renew', 'done', 'fail', 'release', 'expire')
BEGIN
    SELECT RAISE(ABORT, 'penstock: the job is not held by this claim')
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock_job
        WHERE id = NEW.job_id AND stage = 3 AND token = ifnull(NEW.token, token)
        AND (NEW.worker IS NULL OR worker = NEW.worker)
    );
    SELECT RAISE(ABORT, 'penstock: the lease of the job is not over')
    FROM penstock_job
    WHERE id = NEW.job_id AND NEW.verb = 'expire'
    AND expires_at > ifnull(NEW.at, (SELECT at FROM penstock_now));
    UPDATE penstock_job SET expires_at = ifnull(
        NEW.expires_at, ifnull(NEW.at, (SELECT at FROM penstock_now)) + lease_time
    )
    WHERE id = NEW.job_id AND NEW.verb = 'renew';
    INSERT INTO penstock_move (job_id, event, state, attempt, result, actor, at)
    SELECT
        id, 'done', 'done', attempt, NEW.result, ifnull(NEW.actor, worker),
        ifnull(NEW.at, (SELECT at FROM penstock_now))
    FROM penstock_job WHERE id = NEW.job_id AND NEW.verb = 'done';
    INSERT INTO penstock_move (job_id, event, state, attempt, run_at, reason, actor, at)
    SELECT
        j.id, 'snoozed', CASE WHEN j.cancel_requested THEN 'cancelled' ELSE 'pending' END,
        j.attempt - 1, max(t.at, ifnull(NEW.run_at, t.at)), NEW.reason,
        ifnull(NEW.actor, j.worker), t.at
    FROM penstock_job AS j
    CROSS JOIN (SELECT ifnull(NEW.at, (SELECT at FROM penstock_now)) AS at) AS t
    WHERE j.id = NEW.job_id AND NEW.verb = 'release';
    -- A cancel request wins over another attempt, which starts at once or not before `run_at`.
    INSERT INTO penstock_move
    SELECT
        id, event, CASE reason WHEN '' THEN 'pending' WHEN 'cancel was requested' THEN 'cancelled'
        ELSE 'failed' END,
        attempt, max(at, ifnull(NEW.run_at, at)), error, NULL, nullif(reason, ''), actor, at
    FROM (
        SELECT
            j.id, j.attempt, t.at,
            CASE NEW.verb WHEN 'fail' THEN 'failed' ELSE 'expired' END AS event,
            CASE NEW.verb
                WHEN 'fail' THEN ifnull(NEW.error, '')
                ELSE 'the lease of worker ' || j.worker || ' ran out'
            END AS error,
            CASE
                WHEN j.cancel_requested THEN 'cancel was requested'
                WHEN NEW.permanent THEN 'permanent error'
                WHEN j.attempt >= ifnull(j.retry ->> 'attempts', 3)
                THEN 'attempt ' || j.attempt || ' of ' || ifnull(j.retry ->> 'attempts', 3)
                ELSE ''
            END AS reason,
            ifnull(NEW.actor, CASE NEW.verb WHEN 'fail' THEN j.worker END) AS actor
        FROM penstock_job AS j
        CROSS JOIN (SELECT ifnull(NEW.at, (SELECT at FROM penstock_now)) AS at) AS t
        WHERE j.id = NEW.job_id AND NEW.verb IN ('fail', 'expire')
    );
END;

-- 'cancel', 'reset', 'reprioritise' and 'refuse' are about any job that is in a state for them.
CREATE TRIGGER penstock_call_steer INSTEAD OF INSERT ON penstock_call
WHEN NEW.verb IN ('cancel', 'reset', 'reprioritise', 'refuse')
BEGIN
    -- Moves check the state themselves; this is for what they cannot know: no job, a running one,
    -- which only Python may reset, and a priority that does not exist.
    SELECT RAISE(ABORT, 'penstock: the job is not in a state for this')
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock_job WHERE id = NEW.job_id AND CASE NEW.verb
            WHEN 'reset' THEN stage <> 3
            WHEN 'reprioritise' THEN NEW.priority BETWEEN 0 AND 10
            ELSE 1
        END
    );
    SELECT RAISE(ABORT, 'penstock: an unfinished job has this dedupe key')
    FROM penstock_job AS j CROSS JOIN penstock_job AS r ON r.dedupe = j.dedupe
    WHERE j.id = NEW.job_id AND NEW.verb = 'reset' AND j.stage >= 4
    AND r.dedupe IS NOT NULL AND r.stage < 4;
    -- The line of the key may have gone on without it, which only Python can tell.
    SELECT RAISE(ABORT, 'penstock: a job with a key that waits for others is reset in Python')
    FROM penstock_job AS j
    WHERE j.id = NEW.job_id AND NEW.verb = 'reset' AND j.key IS NOT NULL AND j.needs;
    INSERT INTO penstock_move (job_id, event, state, attempt, reason, actor, at)
    SELECT
        id, 'cancelled', 'cancelled', attempt, NEW.reason, NEW.actor,
        ifnull(NEW.at, (SELECT at FROM penstock_now))
    FROM penstock_job WHERE id = NEW.job_id AND NEW.verb = 'cancel' AND stage <> 3;
    INSERT INTO penstock_note
    SELECT
        id, 'cancel_requested', NEW.reason, NEW.actor,
        ifnull(NEW.at, (SELECT at FROM penstock_now))
    FROM penstock_job WHERE id = NEW.job_id AND NEW.verb = 'cancel' AND stage = 3;
    UPDATE penstock_job SET cancel_requested = 1
    WHERE id = NEW.job_id AND NEW.verb = 'cancel' AND stage = 3;
    INSERT INTO penstock_move (job_id, event, state, attempt, run_at, reason, actor, at)
    SELECT j.id, 'reset', 'pending', 0, t.at, NEW.reason, NEW.actor, t.at
    FROM penstock_job AS j
    CROSS JOIN (SELECT ifnull(NEW.at, (SELECT at FROM penstock_now)) AS at) AS t
    WHERE j.id = NEW.job_id AND NEW.verb = 'reset';
    INSERT INTO penstock_note
    SELECT
        id, 'reprioritised',
        ifnull(NEW.reason, 'priority ' || priority || ' became ' || NEW.priority), NEW.actor,
        ifnull(NEW.at, (SELECT at FROM penstock_now))
    FROM penstock_job WHERE id = NEW.job_id AND NEW.verb = 'reprioritise';
    UPDATE penstock_job SET priority = NEW.priority
    WHERE id = NEW.job_id AND NEW.verb = 'reprioritise';
    INSERT INTO penstock_note
    SELECT id, 'refused', NEW.reason, NEW.actor, ifnull(NEW.at, (SELECT at FROM penstock_now))
    FROM penstock_job WHERE id = NEW.job_id AND NEW.verb = 'refuse';
END;

-- 3. Plain jobs -------------------------------------------------------------------------------

-- Adds one plain job, whose ids the statement `add_plain` chooses. Does nothing where more than
-- that decides: while external inserts wait for their jobs, while jobs move between stores, and
-- for a queue that is new or may become full.
CREATE VIEW penstock_plain (
    id, version, at, queue, task, priority, lease_time, body, actor, timeout, retry, correlation,
    parent, trace, task_version
) AS SELECT
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
WHERE false;

CREATE TRIGGER penstock_plain_added INSTEAD OF INSERT ON penstock_plain
BEGIN
    SELECT RAISE(IGNORE)
    WHERE EXISTS (SELECT 1 FROM penstock_newcomer) OR EXISTS (SELECT 1 FROM penstock_seal)
    OR NOT EXISTS (
        SELECT 1 FROM penstock_queue WHERE name = NEW.queue AND max_pending IS NULL
    );
    INSERT INTO penstock_job (
        id, version, enqueued_at, stage, run_at, queue, task, priority, lease_time, timeout, retry,
        correlation, parent, trace, task_version, merged
    )
    VALUES (
        NEW.id, NEW.version, NEW.at, 0, NEW.at, NEW.queue, NEW.task, NEW.priority, NEW.lease_time,
        NEW.timeout, NEW.retry, NEW.correlation, NEW.parent, NEW.trace, NEW.task_version,
        (SELECT merged = 1 FROM penstock_queue WHERE name = NEW.queue)
    );
    INSERT INTO penstock_payload (job_id, body) VALUES (NEW.id, NEW.body);
    INSERT INTO penstock_log (id, job_id, at, event, state, actor)
    VALUES (NEW.version, NEW.id, NEW.at, 'enqueued', 'pending', NEW.actor);
    INSERT INTO penstock_total (queue, stage, n) VALUES (NEW.queue, 0, 1)
    ON CONFLICT DO UPDATE SET n = n + 1;
END;
