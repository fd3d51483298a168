-- Who may reach the store from outside. The secret itself is stored nowhere; `scopes` is JSON.
CREATE TABLE penstock_token (
    name TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) WITHOUT ROWID;

-- What workers say of themselves. `queues` (NULL: all) and `tags` are JSON.
CREATE TABLE penstock_worker (
    name TEXT PRIMARY KEY,
    host TEXT,
    pid INTEGER,
    queues TEXT,
    tags TEXT NOT NULL,
    concurrency INTEGER,
    started_at INTEGER,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;
