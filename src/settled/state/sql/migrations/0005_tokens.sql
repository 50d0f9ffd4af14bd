-- Who may look into the console and the API, and who is logged in. A secret is never here: only its SHA-256.

CREATE TABLE settled.tokens (
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,            -- the token's end, and that of every session which it began
    login_until  timestamptz,            -- of a login link: good for one login, until then
    used_at      timestamptz,
    revoked_at   timestamptz,
    digest       bytea       NOT NULL CHECK (length(digest) = 32),
    tenant       text        NOT NULL,
    id           text        PRIMARY KEY,
    name         text        NOT NULL,   -- of the person: what timelines say
    role         text        NOT NULL CHECK (role IN ('viewer', 'approver', 'operator')),
    extra_roles  text[]      NOT NULL    -- what an author's policy may ask for: supervisor
);
CREATE UNIQUE INDEX token_by_digest ON settled.tokens (digest);

CREATE TABLE settled.sessions (
    expires_at   timestamptz NOT NULL,
    digest       bytea       PRIMARY KEY CHECK (length(digest) = 32),
    token_id     text        NOT NULL REFERENCES settled.tokens (id) ON DELETE CASCADE
);
CREATE INDEX sessions_of_token ON settled.sessions (token_id);

-- A token is what it was made as; it can be used and revoked, and a revoked one stays revoked.
CREATE FUNCTION settled.guard_tokens() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.created_at, NEW.digest, NEW.tenant, NEW.id, NEW.name, NEW.role, NEW.extra_roles)
            <> (OLD.created_at, OLD.digest, OLD.tenant, OLD.id, OLD.name, OLD.role, OLD.extra_roles)
        OR (NEW.expires_at, NEW.login_until) IS DISTINCT FROM (OLD.expires_at, OLD.login_until)
        OR (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
        OR (OLD.login_until IS NOT NULL AND OLD.used_at IS NOT NULL AND NEW.used_at IS DISTINCT FROM OLD.used_at) THEN
        RAISE EXCEPTION 'what the token % was made as never changes', OLD.id USING ERRCODE = 'ST001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE ON settled.tokens FOR EACH ROW EXECUTE FUNCTION settled.guard_tokens();
