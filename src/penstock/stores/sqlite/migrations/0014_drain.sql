-- Whether a worker was asked to take no more jobs and to end with those that it has.
ALTER TABLE penstock_worker ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;
