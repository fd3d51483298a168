-- One row while jobs move between this store and another, and after they have left.
CREATE TABLE penstock_seal (
    passage TEXT NOT NULL,
    peer INTEGER NOT NULL,
    place TEXT NOT NULL
);

-- Ready jobs are removed only from a store whose jobs have left.
CREATE TRIGGER penstock_ready_tags_removed AFTER DELETE ON penstock_job
WHEN OLD.tags IS NOT NULL AND OLD.stage = 0
BEGIN
    DELETE FROM penstock_ready_tag
    WHERE queue = OLD.queue AND tag IN (SELECT value FROM json_each(OLD.tags))
    AND priority = OLD.priority AND tenant = ifnull(OLD.tenant, '')
    AND run_at = OLD.run_at AND job_id = OLD.id;
END;
