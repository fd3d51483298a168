-- Limits of running jobs and of starts; fair shares.

ALTER TABLE penstock_queue ADD COLUMN concurrency INTEGER;
ALTER TABLE penstock_queue ADD COLUMN rate INTEGER;
ALTER TABLE penstock_queue ADD COLUMN rate_window INTEGER;
ALTER TABLE penstock_queue ADD COLUMN promote_after INTEGER;

ALTER TABLE penstock_job ADD COLUMN throttle TEXT;
-- The limit that a ready job was found to be held by. Only a claim sets and clears it.
ALTER TABLE penstock_job ADD COLUMN held TEXT;

CREATE TABLE penstock_limit (
    kind TEXT NOT NULL, -- 'task', or 'throttle' with a prefix as its name
    name TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- The starts that a queue's rate still counts, as JSON.
CREATE TABLE penstock_rate (
    queue TEXT PRIMARY KEY,
    starts TEXT NOT NULL
) WITHOUT ROWID;

-- Which tenant was served last, per queue and level.
CREATE TABLE penstock_turn (
    queue TEXT NOT NULL,
    level INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    PRIMARY KEY (queue, level)
) WITHOUT ROWID;

-- A ready job stands in one of three indexes: in the common one, in its tenant's share, or apart
-- because a limit holds it. So each costs what the one before did.
DROP INDEX penstock_job_ready;
CREATE INDEX penstock_job_ready ON penstock_job (queue, priority DESC, run_at, id)
WHERE stage = 0 AND tenant IS NULL AND held IS NULL;
CREATE INDEX penstock_job_share ON penstock_job (queue, priority DESC, tenant, run_at, id)
WHERE stage = 0 AND tenant IS NOT NULL AND held IS NULL;
CREATE INDEX penstock_job_held
ON penstock_job (held, ifnull(tenant, ''), queue, priority, run_at, id)
WHERE stage = 0 AND held IS NOT NULL;

-- Whether a queue has ready jobs with a throttle, and how many of a throttle run.
CREATE INDEX penstock_job_throttled ON penstock_job (queue)
WHERE stage = 0 AND throttle IS NOT NULL AND held IS NULL;
CREATE INDEX penstock_job_throttle ON penstock_job (throttle)
WHERE stage = 3 AND throttle IS NOT NULL;
