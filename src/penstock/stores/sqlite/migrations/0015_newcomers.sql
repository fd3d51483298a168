-- Rows of applications that other programs have added, and that have no job yet. To add such a row
-- costs no more than to note it here. Whoever is about to look at jobs deletes the notes first, in
-- their order, and a trigger of the application on that makes the job of each. Where an application
-- has a trigger on what else becomes of a row, it deletes them, too. A row whose job may be refused
-- is noted with `at_once`: its statement makes the job, or fails.
CREATE TABLE penstock_newcomer (
    id INTEGER PRIMARY KEY,
    source TEXT NOT NULL,
    row_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    at_once INTEGER NOT NULL DEFAULT 0
);

CREATE TRIGGER penstock_newcomer_noted AFTER INSERT ON penstock_newcomer
WHEN NEW.at_once
BEGIN
    DELETE FROM penstock_newcomer;
END;
