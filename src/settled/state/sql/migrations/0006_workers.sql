-- What workers look at: actions that need somebody, and threads that were left in the middle of a turn.

-- New rows are found by their age, which never changes: settling still writes to no index.
CREATE INDEX planned_since ON settled.actions (planned_at);

-- How far the ledger has been read for open actions: 'new' right behind the clock, and 'planned' once more, so far behind it that
-- nothing which commits late is missed.
CREATE TABLE settled.frontiers (
    name text        PRIMARY KEY,
    at   timestamptz NOT NULL
);
INSERT INTO settled.frontiers (name, at) VALUES ('new', '-infinity'), ('planned', '-infinity');

-- Open actions that somebody must look at again, and when. It says nothing about them but that: the ledger decides.
CREATE TABLE settled.watched (
    due_at    timestamptz NOT NULL,
    tenant    text        NOT NULL,
    action_id text        NOT NULL,
    tool      text,                  -- without which nothing can be done for it now; NULL: anybody can
    PRIMARY KEY (action_id, tenant)
);
CREATE INDEX watched_due ON settled.watched (due_at);

-- What a person decides is looked at when its own conversation has had some seconds for it, whatever it was noted for before.
CREATE FUNCTION settled.notice_decision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO settled.watched AS known (due_at, tenant, action_id, tool)
    VALUES (settled.now() + interval '5 seconds', NEW.tenant, NEW.action_id, CASE NEW.decision WHEN 'approve' THEN NEW.tool END)
    ON CONFLICT (action_id, tenant) DO UPDATE SET due_at = least(known.due_at, excluded.due_at), tool = excluded.tool;
    RETURN NULL;
END $$;
CREATE TRIGGER notice AFTER UPDATE ON settled.approvals FOR EACH ROW
    WHEN (OLD.decision IS NULL AND NEW.decision IS NOT NULL AND NEW.decided_by IS NOT NULL) EXECUTE FUNCTION settled.notice_decision();

-- Threads that sessions with an `agent_name` run: which agent goes on with them, and on whose behalf.
CREATE TABLE settled.threads (
    last_at    timestamptz NOT NULL,
    tenant     text        NOT NULL,
    thread_id  text        NOT NULL,
    agent      text        NOT NULL,
    requester  text,
    roles      text[]      NOT NULL,
    language   text,
    open_since timestamptz,           -- the beginning of a turn that has not ended
    woken_at   timestamptz,           -- when an action of it last moved without it
    due_at     timestamptz,           -- when a worker may go on with it; NULL: there is nothing to go on with
    tries      integer     NOT NULL DEFAULT 0,  -- that failed, one after the other
    reason     text,                  -- why the last one failed
    PRIMARY KEY (thread_id, tenant)
);
CREATE INDEX threads_due ON settled.threads (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX threads_last ON settled.threads (last_at);
CREATE INDEX threads_stuck ON settled.threads (last_at) WHERE due_at IS NULL AND reason IS NOT NULL;
