-- Approvals as single-use tickets, budgets, and what a person's edit links.

ALTER TABLE settled.actions
    ADD COLUMN asking        json,         -- the policy's verdict where a person is asked; frozen when the action is planned
    ADD COLUMN asked_until   timestamptz,  -- until when a person may decide
    ADD COLUMN supersedes    text,         -- the action that this one is the edited form of
    ADD COLUMN superseded_by text,
    ADD COLUMN settle_window interval;     -- how long an attempt may still take effect, as its contract said then

-- The manual queue, oldest first. No success changes this column, so settling stays HOT.
CREATE INDEX manual_queue ON settled.actions (escalated_at, tenant) WHERE escalated_at IS NOT NULL;

-- A ticket, not a status: bound when it is issued, decided once, and spent by the statement that claims its action.
CREATE TABLE settled.approvals (
    issued_at    timestamptz NOT NULL,
    valid_until  timestamptz,           -- the request's end; once approved, the permission's
    round        integer     NOT NULL,  -- 1, and one more each time a permission ended before it was used
    fingerprint  bytea       NOT NULL,
    tenant       text        NOT NULL,
    action_id    text        NOT NULL,
    tool         text        NOT NULL,
    summary      text        NOT NULL,
    scope        text        NOT NULL,
    requester    text,
    decided_at   timestamptz,
    spent_at     timestamptz,
    decision     text,
    decided_by   text,
    note         text,
    PRIMARY KEY (action_id, tenant, round)
);
CREATE INDEX open_approvals ON settled.approvals (valid_until, tenant) WHERE decision IS NULL;

CREATE FUNCTION settled.guard_approvals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF NOT EXISTS (SELECT FROM settled.actions WHERE tenant = OLD.tenant AND id = OLD.action_id) THEN
            RETURN OLD;  -- a purge: the action went first
        END IF;
        RAISE EXCEPTION 'an approval stays with its action' USING ERRCODE = 'ST001';
    END IF;
    IF (NEW.issued_at, NEW.round, NEW.fingerprint, NEW.tenant, NEW.action_id, NEW.tool, NEW.summary, NEW.scope)
            <> (OLD.issued_at, OLD.round, OLD.fingerprint, OLD.tenant, OLD.action_id, OLD.tool, OLD.summary, OLD.scope)
        OR NEW.requester IS DISTINCT FROM OLD.requester THEN
        RAISE EXCEPTION 'what an approval of action % is bound to never changes', OLD.action_id USING ERRCODE = 'ST001';
    END IF;
    IF OLD.decision IS NOT NULL AND (NEW.decision, NEW.decided_by, NEW.decided_at, NEW.valid_until, NEW.note)
            IS DISTINCT FROM (OLD.decision, OLD.decided_by, OLD.decided_at, OLD.valid_until, OLD.note) THEN
        RAISE EXCEPTION 'the first decision on action % is final', OLD.action_id USING ERRCODE = 'ST001';
    END IF;
    IF NEW.spent_at IS DISTINCT FROM OLD.spent_at AND (OLD.spent_at IS NOT NULL OR OLD.decision IS DISTINCT FROM 'approve') THEN
        RAISE EXCEPTION 'an approval of action % is spent once, after it was given', OLD.action_id USING ERRCODE = 'ST001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_approvals BEFORE UPDATE OR DELETE ON settled.approvals FOR EACH ROW EXECUTE FUNCTION settled.guard_approvals();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON settled.approvals EXECUTE FUNCTION settled.guard_truncate();

-- What claims have taken of a budget. A row goes when its action turns out not to have happened.
CREATE TABLE settled.reservations (
    at         timestamptz NOT NULL,
    budget     bytea       NOT NULL,
    tenant     text        NOT NULL,
    action_id  text        NOT NULL,
    amount     numeric     NOT NULL CHECK (amount >= 0),
    is_settled boolean     NOT NULL DEFAULT false,  -- noted by the next claim of the budget; `at` is the settling then
    PRIMARY KEY (action_id, budget, tenant)
);
CREATE INDEX used_of_budget ON settled.reservations (budget, at, tenant);
CREATE INDEX open_of_budget ON settled.reservations (budget, tenant) WHERE NOT is_settled;

-- Whether each of the budgets ([{"budget": hex, "amount", "limit", "window_s"}], all of them or none) has room for its amount.
-- Locks each budget until the end of the claim, always in the same order. VOLATILE, so that each sum is read by a snapshot that
-- is taken after its lock: what a claim before this one has reserved is seen, and sixteen at once never overspend.
-- The great cost makes it the last condition that a claim tries.
CREATE FUNCTION settled.has_room(of_tenant text, budgets json, since timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE COST 100000 AS $$
DECLARE
    one record;
BEGIN
    IF current_setting('transaction_isolation') = 'repeatable read' AND json_array_length(budgets) > 0 THEN
        RAISE EXCEPTION 'a budget cannot be judged in a repeatable read: it sees no claim that came before its lock';
    END IF;
    FOR one IN SELECT decode(budget, 'hex') AS budget, amount, "limit" AS most, window_s
        FROM json_to_recordset(budgets) AS named (budget text, amount numeric, "limit" numeric, window_s float8)
        WHERE "limit" IS NOT NULL ORDER BY budget
    LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(encode(one.budget, 'hex') || of_tenant, 7369));
        -- What is not settled counts however old it is: it may take effect this minute.
        UPDATE settled.reservations AS taken SET is_settled = true, at = greatest(taken.at, actions.settled_at)
        FROM settled.actions WHERE taken.budget = one.budget AND taken.tenant = of_tenant AND NOT taken.is_settled
            AND actions.tenant = of_tenant AND actions.id = taken.action_id AND actions.settled_at IS NOT NULL;
        IF one.amount + coalesce((SELECT sum(amount) FROM settled.reservations AS taken WHERE taken.budget = one.budget
                AND taken.tenant = of_tenant AND (taken.at > since - one.window_s * interval '1 second' OR NOT taken.is_settled)),
                0) > one.most THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- As in 0001, and: the verdict and the link of an edit never change; a claim of what a person was asked for must spend a
-- ticket for its fingerprint in the same statement.
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
            ELSE NEW.state IN ('compensation_pending', 'compensated') END)
        AND (NEW.settled_at IS NULL) = (NEW.state IN ('planned', 'approved', 'running', 'unknown', 'compensation_pending'))
        AND (NEW.business_key IS NULL OR NEW.state NOT IN ('failed', 'cancelled', 'compensated'))
        AND (CASE WHEN TG_OP = 'INSERT'
            THEN NEW.version = 1 AND NEW.occurrence >= 0 AND length(NEW.intent) = 20 AND length(NEW.fingerprint) = 32
                AND (NEW.trigger, NEW.state) IN
                    (('plan', 'planned'), ('approve', 'approved'), ('claim', 'running'), ('deny', 'cancelled'))
                AND (NEW.asking IS NULL OR NEW.state = 'planned')
            ELSE (NEW.planned_at, NEW.window_until, NEW.occurrence, NEW.tenant, NEW.id, NEW.thread_id, NEW.tool, NEW.intent,
                    NEW.idempotency_key, NEW.fingerprint, NEW.arguments::text)
                = (OLD.planned_at, OLD.window_until, OLD.occurrence, OLD.tenant, OLD.id, OLD.thread_id, OLD.tool, OLD.intent,
                    OLD.idempotency_key, OLD.fingerprint, OLD.arguments::text)
                AND (NEW.business_key IS NOT DISTINCT FROM OLD.business_key
                    OR (NEW.business_key IS NULL AND NEW.state <> OLD.state))
                AND (NEW.summary, NEW.contract_version) = (OLD.summary, OLD.contract_version)
                AND (NEW.repeat_of, NEW.requester, NEW.correlation_id, NEW.supersedes, NEW.settle_window, NEW.asking::text)
                    IS NOT DISTINCT FROM (OLD.repeat_of, OLD.requester, OLD.correlation_id, OLD.supersedes, OLD.settle_window, OLD.asking::text)
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
