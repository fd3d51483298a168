-- What a worker gives along with an entry of the log, as JSON text.
ALTER TABLE penstock_log ADD COLUMN detail TEXT;
