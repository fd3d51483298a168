-- Workers announce their tasks, and jobs carry the version of the task that enqueued them.

ALTER TABLE penstock.job ADD COLUMN task_version integer;
ALTER TABLE penstock.worker ADD COLUMN tasks text;

-- no switch
