-- Sums of the log, per minute and for ever. Bucket 0 is for entries without a duration.
CREATE TABLE penstock_history (
    minute INTEGER NOT NULL, -- since 1970
    queue TEXT NOT NULL,
    event TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    n INTEGER NOT NULL,
    micros INTEGER NOT NULL,
    PRIMARY KEY (minute, queue, event, bucket)
) WITHOUT ROWID;

CREATE TABLE penstock_counter (
    queue TEXT NOT NULL,
    event TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    n INTEGER NOT NULL,
    micros INTEGER NOT NULL,
    PRIMARY KEY (queue, event, bucket)
) WITHOUT ROWID;

-- Whether an entry came along with an imported job: it happened elsewhere, and is not counted.
ALTER TABLE penstock_log ADD COLUMN taken_over INTEGER;

-- The newest entry that is in the sums. Older claims do not say how long their jobs had waited,
-- so that counting begins with what comes now.
INSERT INTO penstock_meta
SELECT 'digested', max(
    ifnull((SELECT max(id) FROM penstock_log), 0),
    (SELECT value FROM penstock_meta WHERE name = 'last_log')
);
