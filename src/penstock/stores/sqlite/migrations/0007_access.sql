-- Who may reach the store from outside. The secret itself is stored nowhere; `scopes` is JSON.
CREATE TABLE penstock_token (
    name TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) WITHOUT ROWID;
