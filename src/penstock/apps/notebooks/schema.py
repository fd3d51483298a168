"""The tables of notebooks, in the database of the store."""

from penstock import Tables

_SQLITE = """
CREATE TABLE notebooks_notebook (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, path TEXT NOT NULL UNIQUE,
    git INTEGER NOT NULL, settings TEXT NOT NULL, created INTEGER NOT NULL
);
CREATE TABLE notebooks_file (
    id INTEGER PRIMARY KEY, notebook INTEGER NOT NULL, path TEXT NOT NULL, folded TEXT NOT NULL,
    size INTEGER NOT NULL, hash TEXT NOT NULL, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL,
    mime TEXT NOT NULL, title TEXT, description TEXT, properties TEXT NOT NULL,
    created INTEGER NOT NULL, updated INTEGER NOT NULL, version INTEGER NOT NULL,
    UNIQUE (notebook, path)
);
CREATE INDEX notebooks_file_folded ON notebooks_file (notebook, folded);
CREATE INDEX notebooks_file_hash ON notebooks_file (notebook, hash);
CREATE TABLE notebooks_touch (
    job INTEGER NOT NULL, notebook INTEGER NOT NULL, folded TEXT NOT NULL, path TEXT NOT NULL,
    file INTEGER, moves_to TEXT, staged TEXT, operation TEXT,
    PRIMARY KEY (notebook, folded, job, path)
);
CREATE INDEX notebooks_touch_job ON notebooks_touch (job);
CREATE INDEX notebooks_touch_file ON notebooks_touch (file) WHERE file IS NOT NULL;
CREATE TABLE notebooks_uncommitted (
    notebook INTEGER NOT NULL, path TEXT NOT NULL, change INTEGER NOT NULL,
    PRIMARY KEY (notebook, path)
);
CREATE TABLE notebooks_number (name TEXT PRIMARY KEY, last INTEGER NOT NULL);
INSERT INTO notebooks_number VALUES ('notebook', 0), ('file', 0), ('change', 0);
"""

_CONTENT = """
CREATE TABLE notebooks_content (
    name TEXT PRIMARY KEY, content BLOB NOT NULL, stored INTEGER NOT NULL
);
"""

# Where the repository of a notebook is (a notebook of an earlier version has none recorded), why
# commits fail, and why a path is held.
_REPOSITORY = """
ALTER TABLE notebooks_notebook ADD COLUMN work_tree TEXT;
ALTER TABLE notebooks_notebook ADD COLUMN git_directory TEXT;
ALTER TABLE notebooks_notebook ADD COLUMN joined INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notebooks_notebook ADD COLUMN problem TEXT;
ALTER TABLE notebooks_uncommitted ADD COLUMN held TEXT;
"""

# Text is compared by its bytes, as paths are: a folder's files stand in one range.
_POSTGRES = (
    _SQLITE.replace("INTEGER PRIMARY KEY", "BIGINT PRIMARY KEY")
    .replace("INTEGER", "BIGINT")
    .replace("path TEXT NOT NULL", 'path TEXT COLLATE "C" NOT NULL')
    .replace("folded TEXT NOT NULL", 'folded TEXT COLLATE "C" NOT NULL')
)

TABLES = Tables(
    sqlite=(_SQLITE, _CONTENT, _REPOSITORY),
    postgres=(
        _POSTGRES,
        _CONTENT.replace("BLOB", "BYTEA").replace("INTEGER", "BIGINT"),
        _REPOSITORY.replace("INTEGER", "BIGINT"),
    ),
)
