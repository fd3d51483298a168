-- Verbs for programs and triggers that have SQL alone. To call one is to insert a row:
--
--     INSERT INTO penstock_add (queue, task, body) VALUES ('mails', 'send', '{"order": 1}');
--     INSERT INTO penstock_call (verb, job_id, worker) VALUES ('claim', 7, 'me');
--
-- Each has the effects of the verb in Python: state, token, attempt, totals, the next of a key, and
-- one entry of the log. What is not allowed fails with an error that begins with 'penstock:'.
-- No statement here can meet a conflict that it does not resolve itself: whoever inserts with OR
-- REPLACE or OR IGNORE imposes that on every other statement of every trigger.

CREATE VIEW penstock_now (at) AS
SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000;

CREATE VIEW penstock_next_log (id) AS
SELECT max(ifnull((SELECT max(id) FROM penstock_log), 0), value) + 1
FROM penstock_meta WHERE name = 'last_log';

-- Jobs that have ended so, and that others wait for: what that means for those is written with the
-- next claim, by the code that every store shares.
CREATE TABLE penstock_arrival (
    job_id INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    actor TEXT NOT NULL
);

-- What a program may take now. A queue with a rate, and jobs with a throttle, are left to workers.
CREATE VIEW penstock_claimable (id, queue, stage) AS
SELECT j.id, j.queue, j.stage FROM penstock_job AS j
CROSS JOIN penstock_queue AS q ON q.name = j.queue
WHERE (j.stage = 0 OR j.stage = 1 AND j.run_at <= (SELECT at FROM penstock_now))
AND j.held IS NULL AND j.throttle IS NULL AND NOT q.paused AND q.rate IS NULL
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

-- A new job; its id is the highest there is. `lease_time` is 30 seconds if it is not said. This is
-- where much comes at once, so that no statement selects what it inserts: for that, SQLite makes a
-- table in memory each time, where triggers follow, at 10 to 20 microseconds.
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
    INSERT INTO penstock_queue (name) VALUES (NEW.queue) ON CONFLICT DO NOTHING;
    INSERT INTO penstock_job (
        id, version, enqueued_at, stage, run_at, queue, task, priority, lease_time, key, dedupe,
        scope, tenant, retry, attempt
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
        ifnull(NEW.attempt, 0)
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

-- What verbs are made of: a number of jobs that goes from one place to another.
CREATE VIEW penstock_shift (queue, before, after) AS SELECT NULL, NULL, NULL WHERE false;

CREATE TRIGGER penstock_shifted INSTEAD OF INSERT ON penstock_shift
BEGIN
    UPDATE penstock_total SET n = n - 1 WHERE queue = NEW.queue AND stage = NEW.before;
    INSERT INTO penstock_total (queue, stage, n) VALUES (NEW.queue, NEW.after, 1)
    ON CONFLICT DO UPDATE SET n = n + 1;
END;

-- One job gets another stage, because of what happened to others.
CREATE VIEW penstock_restage (job_id, stage) AS SELECT NULL, NULL WHERE false;

CREATE TRIGGER penstock_restaged INSTEAD OF INSERT ON penstock_restage
BEGIN
    INSERT INTO penstock_shift SELECT queue, stage, NEW.stage FROM penstock_job
    WHERE id = NEW.job_id;
    UPDATE penstock_job SET stage = NEW.stage WHERE id = NEW.job_id;
END;

-- Of a key, the oldest blocked job becomes visible, unless one is visible or runs.
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

-- The next step of one job: see `Moving`.
CREATE VIEW penstock_move (
    job_id, event, state, attempt, run_at, error, result, reason, actor, at
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE false;

CREATE TRIGGER penstock_moved INSTEAD OF INSERT ON penstock_move
BEGIN
    SELECT RAISE(ABORT, 'penstock: jobs move between this store and another')
    WHERE EXISTS (SELECT 1 FROM penstock_seal);
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
        CASE NEW.state
            WHEN 'done' THEN 4 WHEN 'failed' THEN 5 WHEN 'cancelled' THEN 6 WHEN 'superseded' THEN 7
            ELSE CASE WHEN key IS NOT NULL OR needs THEN 2 ELSE NEW.run_at > NEW.at END
        END
    FROM penstock_job WHERE id = NEW.job_id;
    UPDATE penstock_job SET
        stage = CASE NEW.state
            WHEN 'done' THEN 4 WHEN 'failed' THEN 5 WHEN 'cancelled' THEN 6 WHEN 'superseded' THEN 7
            ELSE CASE WHEN key IS NOT NULL OR needs THEN 2 ELSE NEW.run_at > NEW.at END
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

-- An entry of the log about a job that stays where it is.
CREATE VIEW penstock_note (job_id, event, state, reason, actor, at) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL WHERE false;

CREATE TRIGGER penstock_noted INSTEAD OF INSERT ON penstock_note
BEGIN
    INSERT INTO penstock_log (id, job_id, previous, at, event, state, actor, token, duration, reason)
    SELECT
        (SELECT id FROM penstock_next_log), j.id, j.version, NEW.at, NEW.event, NEW.state,
        ifnull(NEW.actor, 'sql'),
        CASE WHEN j.stage = 3 THEN j.token END,
        CASE WHEN j.stage = 3 AND NEW.state <> 'running' THEN NEW.at - j.started_at END,
        NEW.reason
    FROM penstock_job AS j WHERE j.id = NEW.job_id;
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

-- A job for a worker, until `expires_at`, or for the time of its lease.
CREATE TRIGGER penstock_call_claim INSTEAD OF INSERT ON penstock_call
WHEN NEW.verb = 'claim'
BEGIN
    SELECT RAISE(ABORT, 'penstock: the job cannot be claimed now')
    WHERE NOT EXISTS (SELECT 1 FROM penstock_claimable WHERE id = NEW.job_id);
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

-- What follows is about a job that runs. `token`, if it is given, must be that of its claim.
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
    -- A cancel request wins over another attempt. The next is not before `run_at`, else at once.
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

CREATE TRIGGER penstock_call_steer INSTEAD OF INSERT ON penstock_call
WHEN NEW.verb IN ('cancel', 'reset', 'reprioritise', 'refuse')
BEGIN
    SELECT RAISE(ABORT, 'penstock: the job is not in a state for this')
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock_job WHERE id = NEW.job_id AND CASE NEW.verb
            WHEN 'cancel' THEN stage < 4
            WHEN 'reset' THEN stage < 3 OR stage IN (5, 6)
            WHEN 'reprioritise' THEN stage < 3 AND NEW.priority BETWEEN 0 AND 10
            ELSE 1
        END
    );
    SELECT RAISE(ABORT, 'penstock: an unfinished job has this dedupe key')
    FROM penstock_job AS j CROSS JOIN penstock_job AS r ON r.dedupe = j.dedupe
    WHERE j.id = NEW.job_id AND NEW.verb = 'reset' AND j.stage >= 4
    AND r.dedupe IS NOT NULL AND r.stage < 4;
    -- The order of a key may have gone on without it: that is looked at in Python.
    SELECT RAISE(ABORT, 'penstock: a job with a key that waits for others is reset in Python')
    FROM penstock_job AS j
    WHERE j.id = NEW.job_id AND NEW.verb = 'reset' AND j.key IS NOT NULL AND j.needs;
    INSERT INTO penstock_move (job_id, event, state, attempt, reason, actor, at)
    SELECT
        id, 'cancelled', 'cancelled', attempt, NEW.reason, NEW.actor,
        ifnull(NEW.at, (SELECT at FROM penstock_now))
    FROM penstock_job WHERE id = NEW.job_id AND NEW.verb = 'cancel' AND stage < 3;
    INSERT INTO penstock_note
    SELECT
        id, 'cancel_requested', 'running', NEW.reason, NEW.actor,
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
        id, 'reprioritised', 'pending',
        ifnull(NEW.reason, 'priority ' || priority || ' became ' || NEW.priority), NEW.actor,
        ifnull(NEW.at, (SELECT at FROM penstock_now))
    FROM penstock_job WHERE id = NEW.job_id AND NEW.verb = 'reprioritise';
    UPDATE penstock_job SET priority = NEW.priority
    WHERE id = NEW.job_id AND NEW.verb = 'reprioritise';
    INSERT INTO penstock_note
    SELECT
        id, 'refused', CASE
            WHEN stage < 3 THEN 'pending' WHEN stage = 3 THEN 'running' WHEN stage = 4 THEN 'done'
            WHEN stage = 5 THEN 'failed' WHEN stage = 6 THEN 'cancelled' ELSE 'superseded'
        END,
        NEW.reason, NEW.actor, ifnull(NEW.at, (SELECT at FROM penstock_now))
    FROM penstock_job WHERE id = NEW.job_id AND NEW.verb = 'refuse';
END;
