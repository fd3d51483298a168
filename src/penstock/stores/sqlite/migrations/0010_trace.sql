-- The W3C traceparent of who enqueued the job, for tracing.
ALTER TABLE penstock_job ADD COLUMN trace TEXT;
