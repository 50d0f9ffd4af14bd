-- The ledger: actions, their events, and the decisions that asked for them.
-- Everything lives in its own schema, so that the host's search_path does not matter.

CREATE SCHEMA IF NOT EXISTS settled;

-- The only clock of the ledger. A test may set `settled.now`; nothing else does.
CREATE FUNCTION settled.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(nullif(current_setting('settled.now', true), '')::timestamptz, clock_timestamp())
$$;

-- Columns that never change stand first, since Postgres leaves an unchanged prefix out of the log of an update; and within
-- each part those of fixed width, which need no padding then.
CREATE TABLE settled.actions (
    planned_at        timestamptz NOT NULL,
    window_until      timestamptz NOT NULL,
    occurrence        integer     NOT NULL,
    tenant            text        NOT NULL,
    id                text        NOT NULL,
    thread_id         text        NOT NULL,
    tool              text        NOT NULL,
    contract_version  text        NOT NULL,
    intent            bytea       NOT NULL,
    idempotency_key   text        NOT NULL,
    fingerprint       bytea       NOT NULL,
    business_key      bytea,
    arguments         json        NOT NULL,
    summary           text        NOT NULL,
    requester         text,
    correlation_id    text,
    trace_context     text,
    repeat_of         text,
    -- what follows moves
    version           integer     NOT NULL DEFAULT 1,
    fencing_token     integer     NOT NULL DEFAULT 0,
    attempt           integer     NOT NULL DEFAULT 0,
    queries           integer     NOT NULL DEFAULT 0,
    started_at        timestamptz,
    lease_until       timestamptz,
    deadline_at       timestamptz,
    in_flight_until   timestamptz,
    next_query_at     timestamptz,
    escalated_at      timestamptz,
    approved_until    timestamptz,
    settled_at        timestamptz,
    may_change        boolean,
    state             text        NOT NULL,
    trigger           text        NOT NULL,
    previous          text,
    approver          text,
    owner             text,
    code              text,
    reason            text,
    receipt           text,
    evidence          text,
    result            json,
    PRIMARY KEY (id, tenant)
);

-- The tenant stands first in no index. There it would make each of them look usable for any statement: with a plan made
-- while the table was empty, a lookup by id then reads through the tenant's whole intent index.
CREATE UNIQUE INDEX one_action_per_intent ON settled.actions (intent, occurrence, tenant);
CREATE UNIQUE INDEX one_effect_per_business_key ON settled.actions (business_key, tenant)
    WHERE business_key IS NOT NULL;
-- No index of this table looks at a column that a success changes, also not in its WHERE: then settling stays within the
-- page (HOT) and writes to no index at all. So an action gives its business key back by setting it to NULL.
CREATE INDEX actions_of_thread ON settled.actions (thread_id, tenant);

-- No foreign key to actions: it would lock and log the action's row once more for each event.
CREATE TABLE settled.events (
    id              bigint      GENERATED ALWAYS AS IDENTITY,
    at              timestamptz NOT NULL,
    attempt         smallint    NOT NULL,
    tenant          text        NOT NULL,
    action_id       text        NOT NULL,
    from_state      text,
    to_state        text        NOT NULL,
    trigger         text        NOT NULL,
    actor           text,
    correlation_id  text,
    trace_context   text,
    detail          json,
    PRIMARY KEY (action_id, tenant, id)
);

-- Which action a decision (a tool call of an AI message, with its arguments) has met.
CREATE TABLE settled.decisions (
    tenant     text  NOT NULL,
    decision   bytea NOT NULL,
    action_id  text  NOT NULL,
    PRIMARY KEY (decision, tenant)
);

-- The machine of settled/state/machine.py; a test holds the two tables against each other.
CREATE FUNCTION settled.is_legal(from_state text, trigger text, to_state text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT from_state || ' ' || trigger || ' ' || to_state = ANY (ARRAY[
        'planned approve approved',
        'planned deny cancelled',
        'planned expire cancelled',
        'planned supersede cancelled',
        'planned withdraw cancelled',
        'approved claim running',
        'approved lapse planned',
        'approved supersede cancelled',
        'approved withdraw cancelled',
        'running succeed succeeded',
        'running fail failed',
        'running refuse running',
        'running lose unknown',
        'unknown find succeeded',
        'unknown succeed succeeded',
        'unknown release running',
        'unknown fail failed',
        'unknown escalate unknown',
        'succeeded compensate compensation_pending',
        'compensation_pending compensated compensated',
        'compensation_pending escalate compensation_pending'
    ])
$$;

-- For whoever bypasses Python: a row that lacks what its state must hold, an illegal step, a changed intent
-- or a lowered token is refused. One cached expression judges a lawful row; the same rules as CHECK constraints, or in the
-- trigger's own condition, would be parsed anew for each statement and cost a quarter of it.
CREATE FUNCTION settled.guard() RETURNS trigger LANGUAGE plpgsql AS $$
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
            ELSE NEW.state IN ('compensation_pending', 'compensated') END)
        AND (NEW.settled_at IS NULL) = (NEW.state IN ('planned', 'approved', 'running', 'unknown', 'compensation_pending'))
        AND (NEW.business_key IS NULL OR NEW.state NOT IN ('failed', 'cancelled', 'compensated'))
        AND (CASE WHEN TG_OP = 'INSERT'
            THEN NEW.version = 1 AND NEW.occurrence >= 0 AND length(NEW.intent) = 20 AND length(NEW.fingerprint) = 32
                AND (NEW.trigger, NEW.state) IN
                    (('plan', 'planned'), ('approve', 'approved'), ('claim', 'running'), ('deny', 'cancelled'))
            ELSE (NEW.planned_at, NEW.window_until, NEW.occurrence, NEW.tenant, NEW.id, NEW.thread_id, NEW.tool, NEW.intent,
                    NEW.idempotency_key, NEW.fingerprint, NEW.arguments::text)
                = (OLD.planned_at, OLD.window_until, OLD.occurrence, OLD.tenant, OLD.id, OLD.thread_id, OLD.tool, OLD.intent,
                    OLD.idempotency_key, OLD.fingerprint, OLD.arguments::text)
                AND (NEW.business_key IS NOT DISTINCT FROM OLD.business_key
                    OR (NEW.business_key IS NULL AND NEW.state <> OLD.state))
                AND (NEW.summary, NEW.contract_version) = (OLD.summary, OLD.contract_version)
                AND (NEW.repeat_of, NEW.requester, NEW.correlation_id)
                    IS NOT DISTINCT FROM (OLD.repeat_of, OLD.requester, OLD.correlation_id)
                AND (CASE WHEN NEW.version = OLD.version
                    THEN (NEW.state, NEW.trigger, NEW.fencing_token, NEW.attempt)
                        = (OLD.state, OLD.trigger, OLD.fencing_token, OLD.attempt)
                        AND (NEW.receipt, NEW.evidence, NEW.code, NEW.result::text)
                        IS NOT DISTINCT FROM (OLD.receipt, OLD.evidence, OLD.code, OLD.result::text)
                    ELSE NEW.version = OLD.version + 1 AND NEW.previous = OLD.state
                        AND settled.is_legal(OLD.state, NEW.trigger, NEW.state)
                        AND NEW.fencing_token = OLD.fencing_token + (NEW.trigger IN ('claim', 'release'))::integer
                    END)
            END) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'ST001', MESSAGE = CASE
        WHEN TG_OP = 'INSERT' THEN format('an action cannot begin as %s by %s, or lacks what that state must hold', NEW.state, NEW.trigger)
        WHEN NEW.version = OLD.version + 1 AND NOT settled.is_legal(OLD.state, NEW.trigger, NEW.state)
            THEN format('an action that is %s cannot %s to %s', OLD.state, NEW.trigger, NEW.state)
        WHEN NEW.fencing_token <> OLD.fencing_token
            THEN format('the fencing token of action %s rises by one with each claim and only then', OLD.id)
        WHEN NEW.version = OLD.version AND (NEW.state, NEW.trigger, NEW.attempt) <> (OLD.state, OLD.trigger, OLD.attempt)
            THEN format('action %s moves only by a transition', OLD.id)
        ELSE format('action %s lacks what %s must hold, or what it intends was changed', OLD.id, NEW.state) END;
END $$;

CREATE FUNCTION settled.guard_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state IN ('planned', 'approved', 'running', 'unknown', 'compensation_pending') THEN
        RAISE EXCEPTION 'action % is open and cannot be deleted', OLD.id USING ERRCODE = 'ST001';
    END IF;
    RETURN OLD;
END $$;

CREATE FUNCTION settled.guard_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND NOT EXISTS (
        SELECT FROM settled.actions WHERE tenant = OLD.tenant AND id = OLD.action_id) THEN
        RETURN OLD;  -- a purge: the action went first
    END IF;
    RAISE EXCEPTION 'events are only ever added' USING ERRCODE = 'ST001';
END $$;

CREATE FUNCTION settled.guard_decisions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND NOT EXISTS (
        SELECT FROM settled.actions WHERE tenant = OLD.tenant AND id = OLD.action_id) THEN
        RETURN OLD;  -- a purge: the action went first
    END IF;
    RAISE EXCEPTION 'a decision keeps the action that it has met' USING ERRCODE = 'ST001';
END $$;

CREATE FUNCTION settled.guard_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger cannot be truncated' USING ERRCODE = 'ST001';
END $$;

-- After, not before: a trigger that runs before an update locks and logs the row once more.
CREATE TRIGGER guard AFTER INSERT OR UPDATE ON settled.actions FOR EACH ROW EXECUTE FUNCTION settled.guard();
CREATE TRIGGER guard_delete BEFORE DELETE ON settled.actions FOR EACH ROW EXECUTE FUNCTION settled.guard_delete();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON settled.actions EXECUTE FUNCTION settled.guard_truncate();
CREATE TRIGGER guard_events BEFORE UPDATE OR DELETE ON settled.events FOR EACH ROW EXECUTE FUNCTION settled.guard_events();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON settled.events EXECUTE FUNCTION settled.guard_truncate();
CREATE TRIGGER guard_decisions BEFORE UPDATE OR DELETE ON settled.decisions FOR EACH ROW EXECUTE FUNCTION settled.guard_decisions();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON settled.decisions EXECUTE FUNCTION settled.guard_truncate();
