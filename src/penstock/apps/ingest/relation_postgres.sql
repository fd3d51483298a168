-- The relation unified_queue in PostgreSQL.
SELECT 1;
-- mirror
UPDATE unified_queue SET status = status WHERE false
