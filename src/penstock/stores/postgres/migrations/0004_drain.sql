-- Whether a worker was asked to take no more jobs and to end with those that it has.
ALTER TABLE penstock.worker ADD COLUMN draining bigint NOT NULL DEFAULT 0;
