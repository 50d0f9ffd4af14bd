-- What an endpoint has under the idempotency keys of its callers: one row per key, from its claim to the end of its retention.

CREATE TABLE settled.endpoint_keys (
    claimed_at     timestamptz NOT NULL,
    fingerprint    bytea       NOT NULL CHECK (length(fingerprint) = 32),
    scope          text        NOT NULL,  -- which application
    tenant         text        NOT NULL,  -- whose key: two callers' equal keys never meet
    key            text        NOT NULL,
    -- what follows moves
    fencing_token  integer     NOT NULL,  -- rises by one whenever somebody takes the key up
    lease_until    timestamptz NOT NULL,  -- until then nobody but its owner may touch it
    done_at        timestamptz,
    kept_until     timestamptz,
    status         integer,
    state          text        NOT NULL CHECK (state IN ('running', 'reconciling', 'unknown', 'done')),
    owner          text        NOT NULL,
    headers        json,
    body           bytea,                 -- NULL of a done one: the answer was too large to be kept
    PRIMARY KEY (key, tenant, scope),
    CHECK ((state = 'done') = (status IS NOT NULL AND headers IS NOT NULL AND done_at IS NOT NULL AND kept_until IS NOT NULL)),
    CHECK (body IS NULL OR state = 'done')
);
CREATE INDEX endpoint_keys_to_purge ON settled.endpoint_keys (kept_until) WHERE state = 'done';

-- A lapsed key is never free: it is taken up to be reconciled, with a new token, and only then can it be done or run again.
-- A done one never changes, and goes when its retention is over.
CREATE FUNCTION settled.guard_endpoint_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.state = 'running' OR (OLD.state = 'done' AND OLD.kept_until <= settled.now()) THEN
            RETURN OLD;  -- given back by its owner, or purged
        END IF;
        RAISE EXCEPTION 'the key % is % and is kept', OLD.key, OLD.state USING ERRCODE = 'ST001';
    END IF;
    IF (NEW.claimed_at, NEW.fingerprint, NEW.scope, NEW.tenant, NEW.key)
            <> (OLD.claimed_at, OLD.fingerprint, OLD.scope, OLD.tenant, OLD.key) OR OLD.state = 'done' THEN
        RAISE EXCEPTION 'what the key % is bound to, and its answer, never change', OLD.key USING ERRCODE = 'ST001';
    END IF;
    IF NEW.fencing_token = OLD.fencing_token AND NEW.owner = OLD.owner
            AND (OLD.state, NEW.state) IN (('running', 'running'), ('running', 'unknown'), ('running', 'done'),
                ('reconciling', 'running'), ('reconciling', 'unknown'), ('reconciling', 'done'))
        OR NEW.fencing_token = OLD.fencing_token + 1 AND NEW.state = 'reconciling' AND OLD.lease_until <= settled.now() THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the key % is % and cannot become % so', OLD.key, OLD.state, NEW.state USING ERRCODE = 'ST001';
END $$;
CREATE TRIGGER guard BEFORE UPDATE OR DELETE ON settled.endpoint_keys FOR EACH ROW EXECUTE FUNCTION settled.guard_endpoint_keys();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON settled.endpoint_keys EXECUTE FUNCTION settled.guard_truncate();
