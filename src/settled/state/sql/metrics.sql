-- What is counted when somebody scrapes. Each statement reads only what is open, due or new, and never the settled history.

-- name: _unwatched
-- Actions that no worker has noted yet. Where no worker runs, at most a day of them is read.
SELECT tenant, id FROM settled.actions
WHERE planned_at > greatest((SELECT at FROM settled.frontiers WHERE name = 'planned'), settled.now() - interval '1 day') AND settled_at IS NULL

-- name: open_actions
-- Open actions by tenant, tool and state, how many of them are in the manual queue, and the age of the oldest.
SELECT tenant, tool, state, count(*), count(escalated_at), extract(epoch FROM settled.now() - min(planned_at))::float8,
    coalesce(extract(epoch FROM settled.now() - min(escalated_at))::float8, 0)
FROM (SELECT tenant, action_id AS id FROM settled.watched UNION {unwatched}) AS known
    CROSS JOIN LATERAL (SELECT tool, state, planned_at, escalated_at FROM settled.actions
        WHERE actions.tenant = known.tenant AND actions.id = known.id AND settled_at IS NULL LIMIT 1) AS action
GROUP BY tenant, tool, state

-- name: recent_actions
-- What was planned in the last minutes, by where it stands now.
SELECT tenant, tool, state, count(*), sum(attempt) FROM settled.actions
WHERE planned_at > settled.now() - %(span)s::interval GROUP BY tenant, tool, state

-- name: open_approvals
-- Approvals that a person may still decide, and how long the oldest has been waiting.
SELECT tenant, count(*), extract(epoch FROM settled.now() - min(issued_at))::float8
FROM settled.approvals WHERE decision IS NULL AND valid_until > settled.now() GROUP BY tenant

-- name: open_messages
-- Messages that are not delivered yet, and dead letters, by tenant and topic.
SELECT tenant, coalesce(topic, ''), count(*) FILTER (WHERE dead_at IS NULL), count(*) FILTER (WHERE dead_at IS NOT NULL),
    coalesce(extract(epoch FROM settled.now() - min(created_at) FILTER (WHERE dead_at IS NULL))::float8, 0)
FROM settled.outbox WHERE due_at IS NOT NULL OR dead_at IS NOT NULL GROUP BY tenant, coalesce(topic, '')

-- name: backlog
-- What workers have before them: how many open actions they watch, how many of these are due, for how long the oldest has been due,
-- and how far behind the clock the ledger has been read.
SELECT count(*), count(*) FILTER (WHERE due_at <= settled.now()),
    coalesce(extract(epoch FROM settled.now() - min(due_at) FILTER (WHERE due_at <= settled.now()))::float8, 0),
    (SELECT CASE WHEN at = '-infinity' THEN NULL ELSE extract(epoch FROM settled.now() - at)::float8 END
        FROM settled.frontiers WHERE name = 'planned')
FROM settled.watched
