-- The queues that have counters of their own: the busiest ones, so far. What the others have counted
-- is added up under the empty name.
CREATE TABLE penstock.series (queue text COLLATE "C" PRIMARY KEY);
-- How many there may be; 0 where nobody has said so.
INSERT INTO penstock.meta (name, value) VALUES ('series', 0);
INSERT INTO penstock.series
SELECT queue FROM penstock.counter WHERE queue <> '(other)'
GROUP BY queue ORDER BY sum(n) DESC LIMIT 100;
INSERT INTO penstock.counter
SELECT '', event, bucket, sum(n), sum(micros) FROM penstock.counter
WHERE queue NOT IN (SELECT queue FROM penstock.series) GROUP BY event, bucket;
DELETE FROM penstock.counter
WHERE queue <> '' AND queue NOT IN (SELECT queue FROM penstock.series);

-- Under the empty name, what has happened in all queues together.
INSERT INTO penstock.history
SELECT minute, '', event, bucket, sum(n), sum(micros) FROM penstock.history
GROUP BY minute, event, bucket;
CREATE INDEX history_queue ON penstock.history (queue, minute);
