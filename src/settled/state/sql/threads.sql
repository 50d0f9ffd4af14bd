-- Threads that workers may go on with. Who really does is decided by a thread's lock; these rows only say where to look.

-- name: _clock
-- One instant for the whole statement.
clock AS MATERIALIZED (SELECT settled.now() AS now)

-- name: open_turn
-- A turn of a thread begins.
INSERT INTO settled.threads (tenant, thread_id, agent, requester, roles, language, open_since, last_at, due_at)
SELECT %(tenant)s, %(thread_id)s, %(agent)s, %(requester)s, %(roles)s::text[], %(language)s, now, now, now + %(pause)s::interval
FROM (SELECT settled.now()) AS clock (now)
ON CONFLICT (thread_id, tenant) DO UPDATE SET agent = excluded.agent, requester = excluded.requester, roles = excluded.roles,
    language = excluded.language, open_since = excluded.open_since, last_at = excluded.last_at, due_at = excluded.due_at
RETURNING open_since

-- name: end_turn
-- The turn that began then has ended; after another one has begun it says nothing.
-- What moved in the meantime may not have been told in it.
UPDATE settled.threads SET open_since = NULL, tries = 0, reason = NULL, last_at = settled.now(),
    due_at = CASE WHEN woken_at >= open_since THEN settled.now() END
WHERE tenant = %(tenant)s AND thread_id = %(thread_id)s AND open_since = %(open_since)s

-- name: due_threads
-- Take up threads whose time has come, for a while: those of these agents.
WITH {clock}, batch AS MATERIALIZED (
    SELECT tenant, thread_id FROM settled.threads, clock
    WHERE due_at <= clock.now AND agent = ANY(%(agents)s::text[])
    ORDER BY due_at LIMIT %(most)s::integer FOR UPDATE OF threads SKIP LOCKED)
UPDATE settled.threads SET due_at = clock.now + %(lease)s::interval FROM batch, clock
WHERE threads.tenant = batch.tenant AND threads.thread_id = batch.thread_id
RETURNING threads.tenant, threads.thread_id, agent, requester, roles, language, tries

-- name: put_off
-- Go on with a thread later, or (no pause) not until something happens in it; unless its turn has ended meanwhile.
UPDATE settled.threads SET due_at = settled.now() + %(pause)s::interval, tries = %(tries)s, reason = %(reason)s
WHERE tenant = %(tenant)s AND thread_id = %(thread_id)s AND due_at IS NOT NULL

-- name: wake
-- Something of these threads has moved: whoever has their agents tells them.
UPDATE settled.threads SET due_at = settled.now(), woken_at = settled.now()
FROM unnest(%(tenants)s::text[], %(ids)s::text[]) AS moved (tenant, id)
WHERE threads.tenant = moved.tenant AND threads.thread_id = moved.id

-- name: stuck_threads
-- Threads that are left, newest first: that failed as often as anybody tries, or that have been due for so long that nobody seems to
-- have their agent.
SELECT tenant, thread_id, agent, tries, coalesce(reason, 'no worker has an agent of this name'), open_since, last_at FROM settled.threads
WHERE (due_at IS NULL AND reason IS NOT NULL) OR due_at < settled.now() - %(left)s::interval ORDER BY last_at DESC LIMIT %(most)s
