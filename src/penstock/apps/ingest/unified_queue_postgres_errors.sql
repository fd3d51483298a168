-- Record when an item fails: a program may set no time, or fail it twice with the same message. A time
-- that it sets is kept. Triggers run in the order of their names: this one runs after
-- `unified_queue_refused`.
CREATE FUNCTION unified_queue_stamp_error() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    NEW.last_error_at := unified_queue_stamp(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    );
    RETURN NEW;
END $$;

CREATE TRIGGER unified_queue_stamped BEFORE UPDATE OF status ON unified_queue FOR EACH ROW
WHEN (
    NEW.last_error_at IS NOT DISTINCT FROM OLD.last_error_at AND (
        NEW.status = 'failed' AND OLD.status <> 'failed'
        OR NEW.status = 'pending' AND OLD.status = 'in_progress' AND (
            NEW.retry_count > OLD.retry_count
            OR NEW.error_message IS NOT NULL AND NEW.error_message IS DISTINCT FROM OLD.error_message
        )
    )
)
EXECUTE FUNCTION unified_queue_stamp_error();

-- Messages of our own errors used to include a traceback.
UPDATE unified_queue SET error_message = {sentence(error_message)}
WHERE strpos(error_message, chr(10) || 'Traceback (most recent call last)') > 0;
