-- Messages that are committed with the state, and the undoing of an action by another one.

ALTER TABLE settled.actions
    ADD COLUMN emits          boolean NOT NULL DEFAULT false,  -- its success has messages for the outbox
    ADD COLUMN compensates    text,                            -- the action that this one undoes
    ADD COLUMN compensated_by text;                            -- the action that undoes this one, the newest try of it

-- The messages of one action are delivered in their order; those of different actions do not wait for each other.
CREATE TABLE settled.outbox (
    created_at    timestamptz NOT NULL,
    position      smallint    NOT NULL,  -- from 1; 0 says that the messages are still to be made, from the action's result
    tenant        text        NOT NULL,
    action_id     text        NOT NULL,
    id            text        NOT NULL,  -- by which a consumer knows a repeat
    topic         text,
    payload       json,
    -- what follows moves
    attempt       integer     NOT NULL DEFAULT 0,
    fencing_token integer     NOT NULL DEFAULT 0,
    due_at        timestamptz,           -- NULL once it is delivered or dead
    lease_until   timestamptz,
    owner         text,
    delivered_at  timestamptz,
    dead_at       timestamptz,
    reason        text,                  -- why the last attempt did not deliver it
    PRIMARY KEY (action_id, tenant, position),
    CHECK ((position = 0) = (topic IS NULL)),
    CHECK ((due_at IS NULL) = (delivered_at IS NOT NULL OR dead_at IS NOT NULL)),
    CHECK (delivered_at IS NULL OR dead_at IS NULL)
);
CREATE UNIQUE INDEX one_message_per_id ON settled.outbox (id, tenant);
CREATE INDEX due_messages ON settled.outbox (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX dead_letters ON settled.outbox (dead_at, tenant) WHERE dead_at IS NOT NULL;

-- As in 0002, and: what is being undone names the action that undoes it; what an action is never changes, also in this.
CREATE OR REPLACE FUNCTION settled.guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (CASE NEW.state
            WHEN 'planned' THEN true
            WHEN 'approved' THEN NEW.approver IS NOT NULL
            WHEN 'running' THEN NEW.attempt >= 1 AND NEW.fencing_token >= 1
                AND NEW.approver IS NOT NULL AND NEW.owner IS NOT NULL
                AND NEW.started_at IS NOT NULL AND NEW.lease_until IS NOT NULL AND NEW.deadline_at IS NOT NULL
            WHEN 'succeeded' THEN NEW.result IS NOT NULL AND NEW.evidence IS NOT NULL
            WHEN 'unknown' THEN NEW.reason IS NOT NULL AND NEW.in_flight_until IS NOT NULL
            WHEN 'failed' THEN NEW.code IS NOT NULL AND NEW.reason IS NOT NULL AND NEW.may_change IS NOT NULL
            WHEN 'cancelled' THEN NEW.reason IS NOT NULL
            ELSE NEW.state IN ('compensation_pending', 'compensated') AND NEW.compensated_by IS NOT NULL END)
        AND (NEW.settled_at IS NULL) = (NEW.state IN ('planned', 'approved', 'running', 'unknown', 'compensation_pending'))
        AND (NEW.business_key IS NULL OR NEW.state NOT IN ('failed', 'cancelled', 'compensated'))
        AND (CASE WHEN TG_OP = 'INSERT'
            THEN NEW.version = 1 AND NEW.occurrence >= 0 AND length(NEW.intent) = 20 AND length(NEW.fingerprint) = 32
                AND (NEW.trigger, NEW.state) IN
                    (('plan', 'planned'), ('approve', 'approved'), ('claim', 'running'), ('deny', 'cancelled'))
                AND (NEW.asking IS NULL OR NEW.state = 'planned') AND NEW.compensated_by IS NULL
            ELSE (NEW.planned_at, NEW.window_until, NEW.occurrence, NEW.tenant, NEW.id, NEW.thread_id, NEW.tool, NEW.intent,
                    NEW.idempotency_key, NEW.fingerprint, NEW.arguments::text)
                = (OLD.planned_at, OLD.window_until, OLD.occurrence, OLD.tenant, OLD.id, OLD.thread_id, OLD.tool, OLD.intent,
                    OLD.idempotency_key, OLD.fingerprint, OLD.arguments::text)
                AND (NEW.business_key IS NOT DISTINCT FROM OLD.business_key
                    OR (NEW.business_key IS NULL AND NEW.state <> OLD.state))
                AND (NEW.summary, NEW.contract_version) = (OLD.summary, OLD.contract_version)
                AND (NEW.repeat_of, NEW.requester, NEW.correlation_id, NEW.supersedes, NEW.compensates, NEW.emits, NEW.settle_window, NEW.asking::text)
                    IS NOT DISTINCT FROM (OLD.repeat_of, OLD.requester, OLD.correlation_id, OLD.supersedes, OLD.compensates, OLD.emits, OLD.settle_window, OLD.asking::text)
                AND (NEW.compensated_by IS NOT DISTINCT FROM OLD.compensated_by OR NEW.state = 'compensation_pending' AND (NEW.version = OLD.version OR NEW.trigger = 'compensate'))
                AND (CASE WHEN NEW.version = OLD.version
                    THEN (NEW.state, NEW.trigger, NEW.fencing_token, NEW.attempt)
                        = (OLD.state, OLD.trigger, OLD.fencing_token, OLD.attempt)
                        AND (NEW.receipt, NEW.evidence, NEW.code, NEW.result::text, NEW.approver, NEW.approved_until, NEW.asked_until,
                            NEW.superseded_by)
                        IS NOT DISTINCT FROM (OLD.receipt, OLD.evidence, OLD.code, OLD.result::text, OLD.approver, OLD.approved_until, OLD.asked_until,
                            OLD.superseded_by)
                    ELSE NEW.version = OLD.version + 1 AND NEW.previous = OLD.state
                        AND settled.is_legal(OLD.state, NEW.trigger, NEW.state)
                        AND NEW.fencing_token = OLD.fencing_token + (NEW.trigger IN ('claim', 'release'))::integer
                        AND (NEW.superseded_by IS NOT DISTINCT FROM OLD.superseded_by OR NEW.trigger = 'supersede')
                        AND (CASE WHEN NEW.asking IS NOT NULL AND NEW.trigger = 'claim' THEN EXISTS (
                            SELECT FROM settled.approvals WHERE tenant = NEW.tenant AND action_id = NEW.id
                                AND decision = 'approve' AND fingerprint = NEW.fingerprint AND spent_at = NEW.started_at)
                            ELSE true END)
                    END)
            END) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = CASE
        WHEN TG_OP = 'INSERT' THEN format('an action cannot begin as %s by %s, or lacks what that state must hold', NEW.state, NEW.trigger)
        WHEN NEW.version = OLD.version + 1 AND NOT settled.is_legal(OLD.state, NEW.trigger, NEW.state)
            THEN format('an action that is %s cannot %s to %s', OLD.state, NEW.trigger, NEW.state)
        WHEN NEW.fencing_token <> OLD.fencing_token + (NEW.version > OLD.version AND NEW.trigger IN ('claim', 'release'))::integer
            THEN format('the fencing token of action %s rises by one with each claim and only then', OLD.id)
        WHEN NEW.version = OLD.version AND (NEW.state, NEW.trigger, NEW.attempt) <> (OLD.state, OLD.trigger, OLD.attempt)
            THEN format('action %s moves only by a transition', OLD.id)
        WHEN NEW.asking IS NOT NULL AND NEW.version = OLD.version + 1 AND NEW.trigger = 'claim'
            THEN format('action %s has no approval that this claim spends, or what it intends was changed', OLD.id)
        ELSE format('action %s lacks what %s must hold, or what it intends was changed', OLD.id, NEW.state) END;
END $$;
