-- Chains: several actions in an order, each with a key of its own. A run of a chain is one row, and each step that was begun another.

-- What never changes stands first.
CREATE TABLE settled.chains (
    begun_at        timestamptz NOT NULL,
    occurrence      integer     NOT NULL,
    tenant          text        NOT NULL,
    id              text        NOT NULL,
    thread_id       text        NOT NULL,
    name            text        NOT NULL,
    intent          bytea       NOT NULL CHECK (length(intent) = 20),
    root            bytea       NOT NULL CHECK (length(root) = 20),  -- the intent of which this one is a deliberate repeat, or itself
    fingerprint     bytea       NOT NULL CHECK (length(fingerprint) = 32),
    input           json        NOT NULL,
    summary         text        NOT NULL,
    steps           text[]      NOT NULL,  -- by name, and each one's tool, as they were when it began
    tools           text[]      NOT NULL,
    irreversible    text[]      NOT NULL,  -- the steps without a way back
    on_failure      text        NOT NULL CHECK (on_failure IN ('stop', 'compensate')),
    requester       text,
    roles           text[]      NOT NULL,
    correlation_id  text,
    repeat_of       text,
    -- what follows moves
    version         integer     NOT NULL DEFAULT 1,
    turned_at       timestamptz,           -- since then it goes back: what was done is undone
    ended_at        timestamptz,
    ended_as        text        CHECK (ended_as IN ('succeeded', 'stopped', 'compensated')),
    failed_step     text,
    code            text,
    reason          text,
    PRIMARY KEY (id, tenant),
    CHECK ((ended_at IS NULL) = (ended_as IS NULL)),
    CHECK ((turned_at IS NULL) = (failed_step IS NULL)),
    CHECK (ended_as IS NULL OR (ended_as = 'compensated') = (turned_at IS NOT NULL))
);
CREATE UNIQUE INDEX one_chain_per_intent ON settled.chains (intent, occurrence, tenant);
CREATE INDEX chains_of_thread ON settled.chains (thread_id, tenant);
CREATE INDEX open_chains ON settled.chains (begun_at, tenant) WHERE ended_at IS NULL;

-- A step's arguments and the id of its action are written down before the action begins, so that whoever comes after a crash
-- begins the same one, or finds it.
CREATE TABLE settled.chain_steps (
    begun_at     timestamptz NOT NULL,
    position     smallint    NOT NULL,  -- from 0
    tenant       text        NOT NULL,
    chain_id     text        NOT NULL,
    name         text        NOT NULL,
    tool         text        NOT NULL,
    is_reversible boolean    NOT NULL,
    -- what follows moves
    tries        integer     NOT NULL DEFAULT 1,
    finished_at  timestamptz,           -- of what has no action: a read, or what a person did
    undone_at    timestamptz,           -- by a person; what an action has undone, the action says
    action_id    text,
    arguments    json,
    code         text,                  -- why it could not begin, or why a read has no result
    reason       text,
    finished_by  text,
    note         text,
    receipt      text,
    result       json,
    undone_by    text,
    undo_note    text,
    undo_reason  text,                  -- why its undoing could not begin
    PRIMARY KEY (chain_id, tenant, position)
);
CREATE INDEX step_of_action ON settled.chain_steps (action_id, tenant) WHERE action_id IS NOT NULL;

CREATE FUNCTION settled.guard_chains() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.ended_at IS NULL THEN
            RAISE EXCEPTION 'chain % is open and cannot be deleted', OLD.id USING ERRCODE = 'ST001';
        END IF;
        RETURN OLD;
    END IF;
    IF (NEW.begun_at, NEW.occurrence, NEW.tenant, NEW.id, NEW.thread_id, NEW.name, NEW.intent, NEW.root, NEW.fingerprint, NEW.input::text,
            NEW.summary, NEW.steps, NEW.tools, NEW.irreversible, NEW.on_failure, NEW.roles)
        <> (OLD.begun_at, OLD.occurrence, OLD.tenant, OLD.id, OLD.thread_id, OLD.name, OLD.intent, OLD.root, OLD.fingerprint, OLD.input::text,
            OLD.summary, OLD.steps, OLD.tools, OLD.irreversible, OLD.on_failure, OLD.roles)
        OR (NEW.requester, NEW.correlation_id, NEW.repeat_of) IS DISTINCT FROM (OLD.requester, OLD.correlation_id, OLD.repeat_of) THEN
        RAISE EXCEPTION 'what the chain % intends never changes', OLD.id USING ERRCODE = 'ST001';
    END IF;
    IF OLD.ended_at IS NOT NULL OR (OLD.turned_at IS NOT NULL AND NEW.turned_at IS DISTINCT FROM OLD.turned_at)
        OR NEW.version <> OLD.version + 1 THEN
        RAISE EXCEPTION 'the chain % moves only on, and one step at a time', OLD.id USING ERRCODE = 'ST001';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION settled.guard_chain_steps() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF EXISTS (SELECT FROM settled.chains WHERE tenant = OLD.tenant AND id = OLD.chain_id) THEN
            RAISE EXCEPTION 'a step goes only with its chain' USING ERRCODE = 'ST001';
        END IF;
        RETURN OLD;  -- a purge: the chain went first
    END IF;
    IF (NEW.begun_at, NEW.position, NEW.tenant, NEW.chain_id, NEW.name, NEW.tool, NEW.is_reversible)
            <> (OLD.begun_at, OLD.position, OLD.tenant, OLD.chain_id, OLD.name, OLD.tool, OLD.is_reversible)
        OR (OLD.finished_at IS NOT NULL AND (NEW.finished_at, NEW.action_id, NEW.finished_by, NEW.receipt, NEW.result::text)
            IS DISTINCT FROM (OLD.finished_at, OLD.action_id, OLD.finished_by, OLD.receipt, OLD.result::text))
        OR (OLD.undone_at IS NOT NULL AND NEW.undone_at IS DISTINCT FROM OLD.undone_at) THEN
        RAISE EXCEPTION 'what the step % of % was, and what came of it, never changes', OLD.name, OLD.chain_id USING ERRCODE = 'ST001';
    END IF;
    IF NEW.action_id IS DISTINCT FROM OLD.action_id AND EXISTS (
        SELECT FROM settled.actions WHERE tenant = OLD.tenant AND id = OLD.action_id AND state NOT IN ('failed', 'cancelled')) THEN
        RAISE EXCEPTION 'the step % of % keeps the action that it has', OLD.name, OLD.chain_id USING ERRCODE = 'ST001';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER guard BEFORE UPDATE OR DELETE ON settled.chains FOR EACH ROW EXECUTE FUNCTION settled.guard_chains();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON settled.chains EXECUTE FUNCTION settled.guard_truncate();
CREATE TRIGGER guard BEFORE UPDATE OR DELETE ON settled.chain_steps FOR EACH ROW EXECUTE FUNCTION settled.guard_chain_steps();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON settled.chain_steps EXECUTE FUNCTION settled.guard_truncate();
