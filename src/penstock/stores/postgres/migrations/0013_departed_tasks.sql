-- Remembers the tasks of workers that have left, for a while.

CREATE TABLE penstock.departed_task (
    name text COLLATE "C" PRIMARY KEY,
    host text,
    seen_at bigint NOT NULL,
    task text NOT NULL
);

-- no switch
