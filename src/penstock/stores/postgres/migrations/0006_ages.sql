-- What waiting adds to a priority: `promote_after` is micros, or from now on a JSON list of them.
ALTER TABLE penstock.queue ALTER COLUMN promote_after TYPE text;
