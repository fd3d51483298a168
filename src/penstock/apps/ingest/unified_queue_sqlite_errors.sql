-- Record when an item fails: a program may set no time, or fail it twice with the same message. A time
-- that it sets is kept.
CREATE TRIGGER unified_queue_failed AFTER UPDATE OF status ON unified_queue
WHEN NEW.last_error_at IS OLD.last_error_at AND (
    NEW.status = 'failed' AND OLD.status <> 'failed'
    OR NEW.status = 'pending' AND OLD.status = 'in_progress' AND (
        NEW.retry_count > OLD.retry_count
        OR NEW.error_message IS NOT NULL AND NEW.error_message IS NOT OLD.error_message
    )
)
BEGIN
    UPDATE unified_queue SET last_error_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
    WHERE queue_id = NEW.queue_id;
END;

-- Messages of our own errors used to include a traceback.
UPDATE unified_queue SET error_message = {sentence(error_message)}
WHERE instr(error_message, char(10) || 'Traceback (most recent call last)') > 0;
