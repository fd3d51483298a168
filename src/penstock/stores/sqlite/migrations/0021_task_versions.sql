-- Workers announce their tasks, and jobs carry the version of the task that enqueued them.

ALTER TABLE penstock_job ADD COLUMN task_version INTEGER;
ALTER TABLE penstock_worker ADD COLUMN tasks TEXT;

-- no switch
