-- Programs say which schema they know, and read the view of that schema in every transaction.

ALTER TABLE penstock.worker ADD COLUMN schema_version bigint;

-- switch: a program whose schema has no view any more is refused
