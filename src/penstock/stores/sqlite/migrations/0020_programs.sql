-- Programs say which schema they know, and read the view of that schema in every transaction.

ALTER TABLE penstock_worker ADD COLUMN schema_version INTEGER;

-- switch: a program whose schema has no view any more is refused
