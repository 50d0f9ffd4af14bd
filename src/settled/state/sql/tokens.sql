-- The statements of `settled.state.tokens`: tokens of people and programs, and the sessions that they began.
-- Whether something is good is judged by the database's clock, in the statement that answers.

-- name: _columns
-- The columns of settled.state.tokens.Token, in its order.
tokens.id, tokens.tenant, tokens.name, tokens.role, tokens.extra_roles, tokens.created_at, tokens.expires_at, tokens.login_until,
tokens.used_at, tokens.revoked_at

-- name: _good
-- A token that is neither revoked nor over.
tokens.revoked_at IS NULL AND (tokens.expires_at IS NULL OR tokens.expires_at > settled.now())

-- name: create
-- Write a token down. Login links that are over go: they are good for nothing, and nobody made them by hand.
WITH gone AS (
    DELETE FROM settled.tokens WHERE login_until IS NOT NULL AND expires_at <= settled.now())
INSERT INTO settled.tokens (created_at, expires_at, login_until, digest, tenant, id, name, role, extra_roles)
SELECT now, now + %(good_for)s::interval, now + %(login_within)s::interval, %(digest)s, %(tenant)s, %(id)s, %(name)s, %(role)s, %(extra_roles)s
FROM settled.now() AS now
ON CONFLICT (digest) DO UPDATE SET digest = EXCLUDED.digest  -- sent again: it is the same one
RETURNING {columns}, settled.now()

-- name: tokens
-- The tokens that were made by hand, newest first, of one tenant where it is given.
SELECT {columns}, settled.now() FROM settled.tokens
WHERE login_until IS NULL AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
ORDER BY created_at DESC, id LIMIT %(most)s

-- name: any_good
-- Whether somebody can log in with a token that was made by hand.
SELECT EXISTS (SELECT FROM settled.tokens WHERE {good} AND login_until IS NULL)

-- name: revoke
-- Take a token back; its sessions end with it, since each request asks for it.
WITH taken_back AS (
    UPDATE settled.tokens SET revoked_at = coalesce(revoked_at, settled.now()) WHERE id = %(id)s
    RETURNING *)
SELECT {columns}, settled.now() FROM taken_back AS tokens

-- name: log_in
-- Begin a session of whoever shows a token; a login link is used up by it (the same statement sent again is the same login).
WITH taken AS (
    UPDATE settled.tokens SET used_at = CASE WHEN login_until IS NOT NULL AND used_at IS NOT NULL THEN used_at ELSE settled.now() END
    WHERE digest = %(digest)s AND {good} AND (login_until IS NULL
        OR (login_until > settled.now() AND used_at IS NULL)
        OR EXISTS (SELECT FROM settled.sessions WHERE token_id = tokens.id AND sessions.digest = %(session)s))
    RETURNING *),
gone AS (
    DELETE FROM settled.sessions WHERE expires_at <= settled.now()),
begun AS (
    INSERT INTO settled.sessions (expires_at, digest, token_id)
    SELECT least(taken.expires_at, settled.now() + %(good_for)s::interval), %(session)s, taken.id FROM taken
    ON CONFLICT DO NOTHING)
SELECT {columns}, settled.now() FROM taken AS tokens

-- name: session
-- The token of a session that is good.
SELECT {columns}, settled.now() FROM settled.sessions JOIN settled.tokens ON tokens.id = sessions.token_id
WHERE sessions.digest = %(session)s AND sessions.expires_at > settled.now() AND {good}

-- name: bearer
-- The good token of a program, which shows it with each request; a login link is none.
SELECT {columns}, settled.now() FROM settled.tokens WHERE digest = %(digest)s AND {good} AND login_until IS NULL

-- name: log_out
-- End a session.
DELETE FROM settled.sessions WHERE digest = %(session)s RETURNING token_id
