-- Delivering the messages of the outbox, and what a consumer has had of them.

-- The messages of one topic, the longest due first: one that nobody here listens to is passed over without being read.
CREATE INDEX due_by_topic ON settled.outbox (topic, due_at) WHERE due_at IS NOT NULL;

-- What a message is never changes, nor does anything of one that was delivered; it is taken only when it is due, and only who has
-- taken it can say that it was delivered. It goes when it was delivered and its action is over.
CREATE FUNCTION settled.guard_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.delivered_at IS NULL THEN
            RAISE EXCEPTION 'the message % was not delivered and is kept', OLD.id USING ERRCODE = 'ST001';
        ELSIF EXISTS (SELECT FROM settled.actions WHERE tenant = OLD.tenant AND id = OLD.action_id
                AND state IN ('planned', 'approved', 'running', 'unknown', 'compensation_pending')) THEN
            RAISE EXCEPTION 'the action of the message % is open, and it is kept', OLD.id USING ERRCODE = 'ST001';
        END IF;
        RETURN OLD;
    END IF;
    IF OLD.delivered_at IS NOT NULL OR (NEW.created_at, NEW.position, NEW.tenant, NEW.action_id, NEW.id)
            <> (OLD.created_at, OLD.position, OLD.tenant, OLD.action_id, OLD.id)
        OR (NEW.topic, NEW.payload::text) IS DISTINCT FROM (OLD.topic, OLD.payload::text) THEN
        RAISE EXCEPTION 'what the message % is, and that it was delivered, never change', OLD.id USING ERRCODE = 'ST001';
    END IF;
    IF NEW.fencing_token = OLD.fencing_token AND (NEW.delivered_at IS NULL OR OLD.owner IS NOT NULL)
            AND (OLD.dead_at IS NULL OR NEW.dead_at IS NULL AND NEW.attempt = 0 AND NEW.delivered_at IS NULL)
        OR NEW.fencing_token = OLD.fencing_token + 1 AND OLD.due_at <= settled.now()
            AND NEW.due_at IS NOT NULL AND NEW.lease_until IS NOT NULL AND NEW.owner IS NOT NULL THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the message % is not due, or not yours', OLD.id USING ERRCODE = 'ST001';
END $$;
CREATE TRIGGER guard BEFORE UPDATE OR DELETE ON settled.outbox FOR EACH ROW EXECUTE FUNCTION settled.guard_outbox();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON settled.outbox EXECUTE FUNCTION settled.guard_truncate();

-- Which messages a consumer has had. The same as in inbox.sql, for a consumer that has a database of its own.
CREATE TABLE IF NOT EXISTS settled.inbox (
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    message_id text        NOT NULL,
    consumer   text        NOT NULL,
    PRIMARY KEY (message_id, consumer)
);
CREATE INDEX IF NOT EXISTS inbox_by_age ON settled.inbox USING brin (at);
