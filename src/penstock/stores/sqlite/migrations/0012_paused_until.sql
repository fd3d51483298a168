-- Until when a queue is paused: 0 is not at all, the largest number for ever.
ALTER TABLE penstock_queue ADD COLUMN paused_until INTEGER NOT NULL DEFAULT 0;
UPDATE penstock_queue SET paused_until = 9223372036854775807 WHERE paused;
ALTER TABLE penstock_queue DROP COLUMN paused;
