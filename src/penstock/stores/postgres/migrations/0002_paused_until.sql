-- Until when a queue is paused: 0 is not at all, the largest number for ever.
ALTER TABLE penstock.queue ADD COLUMN paused_until bigint NOT NULL DEFAULT 0;
UPDATE penstock.queue SET paused_until = 9223372036854775807 WHERE paused;
ALTER TABLE penstock.queue DROP COLUMN paused;
