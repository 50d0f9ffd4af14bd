-- What the chat server keeps: threads as its clients know them, their runs, and what was streamed of each run.

CREATE TABLE settled.chat_threads (
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    tenant     text        NOT NULL,
    thread_id  text        NOT NULL,
    title      text,                  -- the beginning of its first message
    metadata   jsonb       NOT NULL,
    PRIMARY KEY (thread_id, tenant)
);
CREATE INDEX chat_threads_last ON settled.chat_threads (tenant, updated_at DESC, thread_id);

CREATE TABLE settled.runs (
    created_at         timestamptz NOT NULL,
    not_before         timestamptz NOT NULL,
    number             bigint      GENERATED ALWAYS AS IDENTITY,  -- the runs of a thread are carried out in this order
    tenant             text        NOT NULL,
    run_id             text        NOT NULL,
    thread_id          text        NOT NULL,
    agent              text        NOT NULL,
    requester          text        NOT NULL,
    roles              text[]      NOT NULL,
    multitask_strategy text        NOT NULL CHECK (multitask_strategy IN ('enqueue', 'reject')),
    request_key        text,                  -- the same in every sending of one request
    fingerprint        bytea       NOT NULL CHECK (length(fingerprint) = 32),
    request            jsonb       NOT NULL,
    metadata           jsonb       NOT NULL,
    -- what follows moves
    updated_at         timestamptz NOT NULL,
    due_at             timestamptz NOT NULL,  -- when it may be taken up; of a running one the end of its lease
    status             text        NOT NULL CHECK (status IN ('pending', 'running', 'success', 'error', 'interrupted', 'timeout')),
    owner              text,
    fencing_token      integer     NOT NULL DEFAULT 0,  -- rises by one whenever somebody takes it up
    tries              integer     NOT NULL DEFAULT 0,
    cancel_asked_at    timestamptz,
    cancelled_by       text,
    checkpoint_id      text,                  -- where its thread stood when it ended
    error              jsonb,
    has_events         boolean     NOT NULL DEFAULT true,  -- until they are forgotten
    PRIMARY KEY (run_id, tenant),
    FOREIGN KEY (thread_id, tenant) REFERENCES settled.chat_threads ON DELETE CASCADE,
    CHECK (status <> 'running' OR owner IS NOT NULL)
);
CREATE UNIQUE INDEX run_of_request ON settled.runs (request_key, thread_id, tenant);
CREATE UNIQUE INDEX one_running ON settled.runs (thread_id, tenant) WHERE status = 'running';
-- Of two that each want to be alone, at one instant, the second is refused.
CREATE UNIQUE INDEX one_alone ON settled.runs (thread_id, tenant)
    WHERE status IN ('pending', 'running') AND multitask_strategy = 'reject';
CREATE INDEX runs_of_thread ON settled.runs (thread_id, tenant, number);
CREATE INDEX runs_live ON settled.runs (thread_id, tenant, number) WHERE status IN ('pending', 'running');
CREATE INDEX runs_due ON settled.runs (due_at) WHERE status IN ('pending', 'running');
CREATE INDEX runs_over ON settled.runs (updated_at) WHERE has_events AND status NOT IN ('pending', 'running');

CREATE TABLE settled.run_events (
    tenant text    NOT NULL,
    run_id text    NOT NULL,
    number integer NOT NULL,  -- what a client names when it comes back
    event  text    NOT NULL,
    data   text    NOT NULL,  -- JSON, as it is sent
    PRIMARY KEY (run_id, tenant, number),
    FOREIGN KEY (run_id, tenant) REFERENCES settled.runs ON DELETE CASCADE
);

-- A run that has ended stays as it ended (what it said may be forgotten), and nobody writes with an older token than the last.
CREATE FUNCTION settled.guard_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status NOT IN ('pending', 'running') AND to_jsonb(NEW) - 'has_events' = to_jsonb(OLD) - 'has_events' THEN
        RETURN NEW;
    END IF;
    IF OLD.status NOT IN ('pending', 'running') OR NEW.fencing_token NOT IN (OLD.fencing_token, OLD.fencing_token + 1)
        OR (NEW.created_at, NEW.number, NEW.tenant, NEW.run_id, NEW.thread_id, NEW.agent, NEW.requester, NEW.roles, NEW.fingerprint, NEW.request)
            <> (OLD.created_at, OLD.number, OLD.tenant, OLD.run_id, OLD.thread_id, OLD.agent, OLD.requester, OLD.roles, OLD.fingerprint, OLD.request) THEN
        RAISE EXCEPTION 'the run % is % and cannot become % so', OLD.run_id, OLD.status, NEW.status USING ERRCODE = 'ST001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE ON settled.runs FOR EACH ROW EXECUTE FUNCTION settled.guard_runs();
