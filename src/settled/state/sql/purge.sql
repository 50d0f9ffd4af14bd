-- Forgetting what is over. An action goes first and what belongs to it with it, in one statement; whatever is open stays, and all
-- of its conversation.

-- name: _clock
-- One instant for the whole statement.
clock AS MATERIALIZED (SELECT settled.now() AS now)

-- name: _open
-- What is open, by the table that workers keep: its conversations, and the actions that it repeats, replaces or undoes.
open AS MATERIALIZED (
    SELECT one.tenant, one.thread_id, one.repeat_of, one.supersedes, one.compensates
    FROM settled.watched JOIN settled.actions AS one ON one.tenant = watched.tenant AND one.id = watched.action_id
    WHERE one.state IN ('planned', 'approved', 'running', 'unknown', 'compensation_pending')),
kept_threads AS MATERIALIZED (SELECT DISTINCT tenant, thread_id FROM open),
kept_ids AS MATERIALIZED (
    SELECT tenant, repeat_of AS id FROM open WHERE repeat_of IS NOT NULL
    UNION SELECT tenant, supersedes FROM open WHERE supersedes IS NOT NULL
    UNION SELECT tenant, compensates FROM open WHERE compensates IS NOT NULL)

-- name: _old
-- The next rows by age, and those of them that may be forgotten. A success under a business key is the only record of "never
-- twice": it stays. So does an action with a message that is not delivered, one that is a step of a chain, which is told by it,
-- and one that has undone another, as long as that is there.
seen AS MATERIALIZED (
    SELECT tenant, id, thread_id, planned_at, settled_at, window_until, state, business_key, compensates FROM settled.actions, clock
    WHERE planned_at > %(after)s AND planned_at < clock.now - %(older_than)s::interval
    ORDER BY planned_at FETCH FIRST (%(most)s::integer) ROWS WITH TIES),
old AS MATERIALIZED (
    SELECT tenant, id FROM seen, clock
    WHERE state IN ('succeeded', 'failed', 'cancelled', 'compensated')
        AND settled_at < clock.now - %(older_than)s::interval AND window_until < clock.now
        AND (business_key IS NULL OR state <> 'succeeded')
        AND NOT EXISTS (SELECT FROM kept_threads WHERE kept_threads.tenant = seen.tenant AND kept_threads.thread_id = seen.thread_id)
        AND NOT EXISTS (SELECT FROM kept_ids WHERE kept_ids.tenant = seen.tenant AND kept_ids.id = seen.id)
        AND NOT EXISTS (SELECT FROM settled.outbox WHERE outbox.tenant = seen.tenant AND outbox.action_id = seen.id AND delivered_at IS NULL)
        AND NOT EXISTS (SELECT FROM settled.chain_steps AS step WHERE step.tenant = seen.tenant AND step.action_id = seen.id)
        AND NOT EXISTS (SELECT FROM settled.actions AS undone WHERE undone.tenant = seen.tenant AND undone.id = seen.compensates))

-- name: count_old
-- How many of the next rows would be forgotten, and how far they reach.
WITH {clock}, {open}, {old}
SELECT (SELECT count(*) FROM seen), (SELECT max(planned_at) FROM seen), (SELECT count(*) FROM old)

-- name: forget_old
-- Forget those of the next rows that may be forgotten; that their occurrences are used stays known. What they have taken of a budget stays: it counts for as long as the
-- budget's window says. Their decisions stay too, unless that is asked for: by them a late repeat learns that it was settled.
WITH {clock}, {open}, {old},
locked AS MATERIALIZED (
    SELECT actions.tenant, actions.id FROM old CROSS JOIN LATERAL (
        SELECT tenant, id FROM settled.actions WHERE actions.tenant = old.tenant AND actions.id = old.id
            AND state IN ('succeeded', 'failed', 'cancelled', 'compensated') FOR UPDATE SKIP LOCKED) AS actions),
gone AS (
    DELETE FROM settled.actions USING locked WHERE actions.tenant = locked.tenant AND actions.id = locked.id
    RETURNING actions.tenant, actions.id, actions.settled_at, actions.intent, actions.occurrence),
used AS (
    INSERT INTO settled.spent AS known (tenant, intent, occurrence) SELECT tenant, intent, max(occurrence) FROM gone GROUP BY tenant, intent
    ON CONFLICT (intent, tenant) DO UPDATE SET occurrence = greatest(known.occurrence, excluded.occurrence)),
events AS (DELETE FROM settled.events USING gone WHERE events.tenant = gone.tenant AND action_id = gone.id),
watches AS (DELETE FROM settled.watched USING gone WHERE watched.tenant = gone.tenant AND action_id = gone.id),
tickets AS (DELETE FROM settled.approvals USING gone WHERE approvals.tenant = gone.tenant AND action_id = gone.id),
messages AS (DELETE FROM settled.outbox USING gone WHERE outbox.tenant = gone.tenant AND action_id = gone.id),
decided AS (
    DELETE FROM settled.decisions USING gone
    WHERE %(decisions)s AND decisions.tenant = gone.tenant AND action_id = gone.id),
counted AS (
    UPDATE settled.reservations SET is_settled = true, at = greatest(at, gone.settled_at) FROM gone
    WHERE reservations.tenant = gone.tenant AND action_id = gone.id AND NOT is_settled)
SELECT (SELECT count(*) FROM seen), (SELECT max(planned_at) FROM seen), (SELECT count(*) FROM gone)

-- name: old_threads
-- Threads that nobody has used for so long, and in which nothing is open: the next ones by age.
WITH {clock}, {open}
SELECT tenant, thread_id, last_at FROM settled.threads, clock
WHERE last_at > %(after)s AND last_at < clock.now - %(older_than)s::interval AND open_since IS NULL AND due_at IS NULL
    AND NOT EXISTS (SELECT FROM kept_threads WHERE kept_threads.tenant = threads.tenant AND kept_threads.thread_id = threads.thread_id)
ORDER BY last_at FETCH FIRST (%(most)s::integer) ROWS WITH TIES

-- name: is_unused
-- Whether nobody has used a thread since.
SELECT 1 FROM settled.threads WHERE tenant = %(tenant)s AND thread_id = %(thread_id)s AND last_at = %(last_at)s AND open_since IS NULL

-- name: forget_thread
-- Forget a thread that nobody has used since.
DELETE FROM settled.threads WHERE tenant = %(tenant)s AND thread_id = %(thread_id)s AND last_at = %(last_at)s AND open_since IS NULL
RETURNING 1

-- name: endpoint_scopes
-- The applications that have keys with an answer.
SELECT DISTINCT scope FROM settled.endpoint_keys WHERE state = 'done'
