-- What workers ask of the ledger. None of these statements moves an action; any of them may be sent twice.

-- name: _clock
-- One instant for the whole statement.
clock AS MATERIALIZED (SELECT settled.now() AS now)

-- name: _is_open
state IN ('planned', 'approved', 'running', 'unknown', 'compensation_pending')

-- name: _next
-- When an action is to be looked at for the first time.
least(clock.now + %(most_s)s::float8 * interval '1 second', greatest(clock.now, CASE state
    WHEN 'planned' THEN asked_until
    WHEN 'running' THEN lease_until
    WHEN 'unknown' THEN next_query_at + %(grace_s)s::float8 * interval '1 second'
    WHEN 'approved' THEN clock.now END))

-- name: sweep
-- Read on in the ledger, oldest first, up to so far behind the clock, and note what is open. One worker at a time. A frontier is
-- never ahead of that: where a server's clock is behind its predecessor's, it goes back with it.
WITH {clock}, mine AS MATERIALIZED (SELECT at FROM settled.frontiers WHERE name = %(name)s FOR UPDATE SKIP LOCKED),
seen AS MATERIALIZED (
    SELECT tenant, id, tool, state, planned_at, asked_until, lease_until, next_query_at, escalated_at FROM settled.actions
    WHERE planned_at > (SELECT at FROM mine) AND planned_at <= (SELECT now FROM clock) - %(behind)s::interval
    ORDER BY planned_at FETCH FIRST (%(most)s::integer) ROWS WITH TIES),
noted AS (
    INSERT INTO settled.watched (due_at, tenant, action_id, tool)
    SELECT {next}, tenant, id, CASE WHEN state = 'approved' OR state = 'unknown' AND escalated_at IS NULL THEN tool END
    FROM seen, clock WHERE {is_open}
    ON CONFLICT DO NOTHING
    RETURNING 1),
counted AS (SELECT count(*) AS read, count(*) >= %(most)s::integer AS has_more, max(planned_at) AS reach FROM seen),
moved AS (
    UPDATE settled.frontiers SET at = CASE WHEN has_more THEN reach ELSE clock.now - %(behind)s::interval END
    FROM clock, mine, counted WHERE name = %(name)s)
SELECT read, (SELECT count(*) FROM noted), has_more FROM mine, counted

-- name: due
-- Take up actions whose time has come, for a while: of those that need a tool, only where it is one of these.
WITH {clock}, batch AS MATERIALIZED (
    SELECT tenant, action_id FROM settled.watched, clock
    WHERE due_at <= clock.now AND (tool IS NULL OR tool = ANY(%(tools)s::text[]))
    ORDER BY due_at LIMIT %(most)s::integer FOR UPDATE OF watched SKIP LOCKED),
leased AS (
    UPDATE settled.watched SET due_at = clock.now + %(lease)s::interval FROM batch, clock
    WHERE watched.tenant = batch.tenant AND watched.action_id = batch.action_id
    RETURNING watched.tenant AS of_tenant, watched.action_id, watched.due_at)
SELECT of_tenant, action_id, due_at, thread_id, tool, coalesce(NOT {is_open} AND compensates IS NULL, true),
    (SELECT max(decided_at) FROM settled.approvals WHERE approvals.tenant = of_tenant AND approvals.action_id = leased.action_id
        AND decision = 'approve')
FROM leased LEFT JOIN LATERAL (
    SELECT state, thread_id, tool, compensates FROM settled.actions WHERE tenant = of_tenant AND id = leased.action_id LIMIT 1) AS action ON true
ORDER BY due_at

-- name: rest
-- Say when to look again, or that there is nothing to look at any more; unless somebody else has taken it up meanwhile. Whoever has
-- the agents of the threads in which something has moved is to tell them.
WITH {clock}, said AS MATERIALIZED (
    SELECT * FROM unnest(%(tenants)s::text[], %(ids)s::text[], %(leases)s::timestamptz[], %(pauses)s::float8[], %(tools)s::text[],
        %(woken)s::text[]) AS one (tenant, id, leased_until, pause_s, tool, thread)),
later AS (
    UPDATE settled.watched SET due_at = clock.now + said.pause_s * interval '1 second', tool = said.tool FROM said, clock
    WHERE watched.tenant = said.tenant AND action_id = said.id AND due_at = leased_until AND pause_s IS NOT NULL),
over AS (
    DELETE FROM settled.watched USING said
    WHERE watched.tenant = said.tenant AND action_id = said.id AND due_at = leased_until AND pause_s IS NULL),
woken AS (
    UPDATE settled.threads SET due_at = clock.now, woken_at = clock.now FROM said, clock
    WHERE threads.tenant = said.tenant AND threads.thread_id = said.thread)
SELECT count(*) FROM said

-- name: watch
-- Look at an action no later than this.
INSERT INTO settled.watched (due_at, tenant, action_id)
VALUES (settled.now() + %(pause)s::interval, %(tenant)s, %(id)s)
ON CONFLICT (action_id, tenant) DO UPDATE SET due_at = least(watched.due_at, excluded.due_at)

-- name: one
-- Take one action up, as `due` does, whatever tool it needs.
WITH {clock}, leased AS (
    INSERT INTO settled.watched AS mine (due_at, tenant, action_id)
    SELECT clock.now + %(lease)s::interval, tenant, id FROM settled.actions, clock WHERE tenant = %(tenant)s AND id = %(id)s
    ON CONFLICT (action_id, tenant) DO UPDATE SET due_at = excluded.due_at
    RETURNING tenant AS of_tenant, action_id, due_at)
SELECT of_tenant, action_id, due_at, thread_id, tool, NOT {is_open} AND compensates IS NULL,
    (SELECT max(decided_at) FROM settled.approvals WHERE approvals.tenant = of_tenant AND approvals.action_id = leased.action_id
        AND decision = 'approve')
FROM leased JOIN settled.actions ON tenant = of_tenant AND id = leased.action_id

-- name: backlog
-- How many actions are watched, how many of them are due, and since when the oldest of these is.
SELECT count(*), count(*) FILTER (WHERE due_at <= settled.now()),
    extract(epoch FROM settled.now() - min(due_at) FILTER (WHERE due_at <= settled.now()))::float8
FROM settled.watched
