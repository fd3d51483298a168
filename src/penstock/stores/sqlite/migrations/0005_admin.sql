-- A number of its own for every store: what jobs come from, when they are taken over by another.
INSERT INTO penstock_meta VALUES ('source', random() & 0x7fffffffffffffff);

-- Which jobs were taken over from other stores. Outlives the jobs: a second import of the same
-- file must not run them again.
CREATE TABLE penstock_origin (
    source INTEGER NOT NULL,
    original INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    PRIMARY KEY (source, original)
) WITHOUT ROWID;

CREATE TRIGGER penstock_tags_reprioritised AFTER UPDATE OF priority ON penstock_job
WHEN NEW.tags IS NOT NULL AND NEW.stage = 0 AND NEW.priority <> OLD.priority
BEGIN
    UPDATE penstock_ready_tag SET priority = NEW.priority
    WHERE queue = NEW.queue AND tag IN (SELECT value FROM json_each(NEW.tags))
    AND priority = OLD.priority AND run_at = NEW.run_at AND job_id = NEW.id;
END;
