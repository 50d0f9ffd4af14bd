-- The statements of `settled.state.endpoint`: what an endpoint has under the keys of its callers.
-- Each write compares owner and fencing token. No row: the key is not yours any more, and nothing was written.

-- name: _columns
-- The columns of settled.state.endpoint.Record, in its order.
scope, tenant, key, 'sha256:' || encode(fingerprint, 'hex'), state, owner, fencing_token, claimed_at, lease_until, done_at, kept_until,
status, headers, body

-- name: _this
-- The row of a key.
scope = %(scope)s AND tenant = %(tenant)s AND key = %(key)s

-- name: _mine
-- The row of a key, while it is its owner's.
{this} AND owner = %(owner)s AND fencing_token = %(token)s::integer

-- name: claim
-- Whoever inserts the key is the one who acts; everybody else gets what is known. No row: somebody's claim is being committed, ask again.
WITH clock AS MATERIALIZED (SELECT settled.now() AS now),
born AS (
    INSERT INTO settled.endpoint_keys (claimed_at, fingerprint, scope, tenant, key, fencing_token, lease_until, state, owner)
    SELECT now, %(fingerprint)s, %(scope)s, %(tenant)s, %(key)s, 1, now + %(lease)s::interval, 'running', %(owner)s FROM clock
    ON CONFLICT DO NOTHING RETURNING *)
SELECT {columns}, now FROM born, clock
UNION ALL
SELECT {columns}, now FROM settled.endpoint_keys, clock WHERE {this} AND NOT EXISTS (SELECT FROM born)

-- name: load
-- What is known under a key.
SELECT {columns}, settled.now() FROM settled.endpoint_keys WHERE {this}

-- name: take_up
-- Become the owner of a key whose lease is over, to find out what became of it; the former owner can write nothing any more.
WITH moved AS (
    UPDATE settled.endpoint_keys SET state = 'reconciling', owner = %(owner)s, fencing_token = fencing_token + 1,
        lease_until = settled.now() + %(lease)s::interval
    WHERE {this} AND fencing_token = %(token)s::integer AND state <> 'done' AND lease_until <= settled.now()
    RETURNING *)
SELECT {columns}, settled.now() FROM moved

-- name: run_again
-- It surely was not done: whoever found that out is the one who acts now.
WITH moved AS (
    UPDATE settled.endpoint_keys SET state = 'running', lease_until = settled.now() + %(lease)s::interval
    WHERE {mine} AND state = 'reconciling'
    RETURNING *)
SELECT {columns}, settled.now() FROM moved

-- name: mark_unknown
-- Its owner is through and cannot tell whether it was done; after the pause somebody may ask again.
WITH moved AS (
    UPDATE settled.endpoint_keys SET state = 'unknown', lease_until = settled.now() + %(pause)s::interval
    WHERE {mine} AND state IN ('running', 'reconciling')
    RETURNING *)
SELECT {columns}, settled.now() FROM moved

-- name: renew
-- Its owner is still at it.
UPDATE settled.endpoint_keys SET lease_until = settled.now() + %(lease)s::interval
WHERE {mine} AND state = 'running'
RETURNING key

-- name: finish
-- It is done, with this answer; a second sending by the same owner finds it done and changes nothing.
WITH done AS (
    UPDATE settled.endpoint_keys SET state = 'done', status = %(status)s, headers = %(headers)s, body = %(body)s,
        done_at = settled.now(), kept_until = settled.now() + %(keep)s::interval
    WHERE {mine} AND state IN ('running', 'reconciling')
    RETURNING *)
SELECT {columns}, settled.now() FROM done
UNION ALL
SELECT {columns}, settled.now() FROM settled.endpoint_keys
WHERE {mine} AND state = 'done' AND NOT EXISTS (SELECT FROM done)

-- name: release
-- Its owner says that nothing was done: the key is as if it had never been used.
DELETE FROM settled.endpoint_keys WHERE {mine} AND state = 'running' RETURNING key

-- name: purge
-- Forget done keys whose retention is over, a batch at a time; nothing else is ever forgotten.
WITH batch AS (
    SELECT scope, tenant, key FROM settled.endpoint_keys
    WHERE scope = %(scope)s AND state = 'done' AND kept_until <= settled.now()
    ORDER BY kept_until LIMIT %(most)s::integer FOR UPDATE SKIP LOCKED),
gone AS (
    DELETE FROM settled.endpoint_keys AS old USING batch
    WHERE (old.scope, old.tenant, old.key) = (batch.scope, batch.tenant, batch.key) RETURNING 1)
SELECT count(*) FROM gone
