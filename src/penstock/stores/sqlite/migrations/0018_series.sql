-- The queues that have counters of their own: the busiest ones, so far. What the others have counted
-- is added up under the empty name.
CREATE TABLE penstock_series (queue TEXT PRIMARY KEY) WITHOUT ROWID;
-- How many there may be; 0 where nobody has said so.
INSERT INTO penstock_meta VALUES ('series', 0);
INSERT INTO penstock_series
SELECT queue FROM penstock_counter WHERE queue <> '(other)'
GROUP BY queue ORDER BY sum(n) DESC LIMIT 100;
INSERT INTO penstock_counter
SELECT '', event, bucket, sum(n), sum(micros) FROM penstock_counter
WHERE queue NOT IN (SELECT queue FROM penstock_series) GROUP BY event, bucket;
DELETE FROM penstock_counter
WHERE queue <> '' AND queue NOT IN (SELECT queue FROM penstock_series);

-- Under the empty name, what has happened in all queues together.
INSERT INTO penstock_history
SELECT minute, '', event, bucket, sum(n), sum(micros) FROM penstock_history
GROUP BY minute, event, bucket;
CREATE INDEX penstock_history_queue ON penstock_history (queue, minute);
