-- The statements of `settled.state.outbox`: taking messages, saying what became of them, and what people ask and do about them.
-- Each mark compares owner and fencing token. No row: it is not yours any more, and nothing was written.
-- Other rows are looked up one by one, and those to be written by their place: a join whose plan was made on an empty table would
-- read all of a full one.

-- name: _clock
-- One instant for the whole statement.
clock AS MATERIALIZED (SELECT settled.now() AS now)

-- name: _is_held
-- Whether there is a message ahead, of the same action, that was not delivered yet.
(SELECT true FROM settled.outbox AS earlier WHERE earlier.action_id = message.action_id AND earlier.tenant = message.tenant
    AND earlier.position < message.position AND earlier.delivered_at IS NULL LIMIT 1) IS TRUE

-- name: _is_due
-- The clock is read as one value: then the index gives the messages in their order, and no more of them than are taken.
due_at <= (SELECT now FROM clock) AND NOT {is_held}

-- name: _take
-- Take the messages in `batch` for a while. What is not marked meanwhile is due again.
UPDATE settled.outbox SET attempt = attempt + 1, fencing_token = fencing_token + 1, owner = %(owner)s,
    lease_until = clock.now + %(lease)s::interval, due_at = clock.now + %(lease)s::interval
FROM clock WHERE outbox.ctid = ANY(ARRAY(SELECT place FROM batch))
RETURNING tenant, id, action_id, position, topic, payload, created_at, attempt, fencing_token, owner

-- name: claim
-- Take due messages of one topic.
WITH {clock}, batch AS MATERIALIZED (
    SELECT ctid AS place FROM settled.outbox AS message WHERE topic = %(topic)s AND {is_due}
    ORDER BY due_at LIMIT %(most)s::integer FOR UPDATE SKIP LOCKED)
{take}

-- name: claim_rest
-- Take due messages of any other topic than these.
WITH {clock}, batch AS MATERIALIZED (
    SELECT ctid AS place FROM settled.outbox AS message WHERE topic IS NOT NULL AND topic <> ALL(%(named)s::text[]) AND {is_due}
    ORDER BY due_at LIMIT %(most)s::integer FOR UPDATE SKIP LOCKED)
{take}

-- name: claim_unmade
-- Take actions of these tools whose messages are still to be made.
WITH {clock}, batch AS MATERIALIZED (
    SELECT ctid AS place FROM settled.outbox AS message WHERE topic IS NULL AND {is_due}
        AND (SELECT tool FROM settled.actions WHERE actions.id = message.action_id AND actions.tenant = message.tenant) = ANY(%(tools)s::text[])
    ORDER BY due_at LIMIT %(most)s::integer FOR UPDATE SKIP LOCKED)
{take}

-- name: _mine
-- The row of a message, while it is held by who has taken it.
message.tenant = said.tenant AND message.id = said.id AND fencing_token = said.token AND owner = %(owner)s AND due_at IS NOT NULL

-- name: deliver
-- They were acknowledged. The next message of each action is due at once.
WITH {clock}, said AS (
    SELECT * FROM unnest(%(tenants)s::text[], %(ids)s::text[], %(tokens)s::integer[]) AS one (tenant, id, token)),
moved AS (
    UPDATE settled.outbox AS message SET delivered_at = clock.now, due_at = NULL, lease_until = NULL, owner = NULL, reason = NULL
    FROM said, clock WHERE {mine}
    RETURNING message.tenant, message.id, action_id, position),
woken AS (
    UPDATE settled.outbox SET due_at = clock.now FROM clock WHERE outbox.ctid = ANY(ARRAY(
        SELECT (SELECT next.ctid FROM settled.outbox AS next WHERE next.action_id = moved.action_id AND next.tenant = moved.tenant
            AND next.position = moved.position + 1 AND next.attempt = 0 AND next.due_at > clock.now) FROM moved, clock)))
SELECT tenant, id FROM moved

-- name: defer
-- They were not: each is due again after its pause, or (no pause) it is a dead letter.
WITH {clock}, said AS (
    SELECT * FROM unnest(%(tenants)s::text[], %(ids)s::text[], %(tokens)s::integer[], %(pauses)s::float8[], %(reasons)s::text[])
        AS one (tenant, id, token, pause_s, why))
UPDATE settled.outbox AS message SET due_at = clock.now + said.pause_s * interval '1 second', lease_until = NULL, owner = NULL,
    dead_at = CASE WHEN said.pause_s IS NULL THEN clock.now END, reason = said.why
FROM said, clock WHERE {mine}
RETURNING message.tenant, message.id

-- name: make
-- The messages of an action were made: they stand behind the note that said so. All but the first wait for the one ahead.
WITH {clock}, said (tenant, id, token) AS (VALUES (%(tenant)s, %(id)s, %(token)s::integer)),
made AS (
    UPDATE settled.outbox AS message SET delivered_at = clock.now, due_at = NULL, lease_until = NULL, owner = NULL, reason = NULL
    FROM said, clock WHERE {mine}
    RETURNING message.tenant, action_id, created_at),
posted AS (
    INSERT INTO settled.outbox (id, tenant, action_id, position, topic, payload, created_at, due_at)
    SELECT 'msg-' || substr(action_id, 5) || '-' || number, tenant, action_id, number, given ->> 'topic', given -> 'payload', created_at,
        CASE WHEN number > 1 THEN 'infinity' ELSE clock.now END
    FROM made, clock, json_array_elements(%(messages)s::json) WITH ORDINALITY AS one (given, number))
SELECT tenant FROM made

-- name: _shown
-- The columns of settled.state.outbox.Posted, in its order.
tenant, id, action_id, position, topic, left(payload::text, %(chars)s::integer),
    CASE WHEN delivered_at IS NOT NULL THEN 'delivered' WHEN dead_at IS NOT NULL THEN 'dead' WHEN {is_held} THEN 'held' ELSE 'due' END,
    attempt, created_at, nullif(due_at, 'infinity'), lease_until, owner, delivered_at, dead_at, reason,
    (SELECT tool FROM settled.actions WHERE actions.id = message.action_id AND actions.tenant = message.tenant),
    settled.now()

-- name: _wanted
-- The filters, each NULL where it is not given; and not the note of messages that were made since.
tenant = %(tenant)s AND (%(topic)s::text IS NULL OR topic = %(topic)s) AND (%(action_id)s::text IS NULL OR action_id = %(action_id)s)
    AND (topic IS NOT NULL OR delivered_at IS NULL)

-- name: messages
-- Messages, those of the newest action first.
SELECT {shown} FROM settled.outbox AS message WHERE {wanted} ORDER BY action_id DESC, position LIMIT %(most)s::integer

-- name: due
-- Messages that are delivered next, or are being delivered.
SELECT {shown} FROM settled.outbox AS message WHERE {wanted} AND due_at IS NOT NULL AND NOT {is_held} ORDER BY due_at LIMIT %(most)s::integer

-- name: held
-- Messages behind another one of their action.
SELECT {shown} FROM settled.outbox AS message WHERE {wanted} AND due_at IS NOT NULL AND {is_held} ORDER BY action_id, position LIMIT %(most)s::integer

-- name: dead
-- Dead letters, newest first.
SELECT {shown} FROM settled.outbox AS message WHERE {wanted} AND dead_at IS NOT NULL ORDER BY dead_at DESC LIMIT %(most)s::integer

-- name: delivered
-- Messages that were delivered, those of the newest action first.
SELECT {shown} FROM settled.outbox AS message WHERE {wanted} AND delivered_at IS NOT NULL ORDER BY action_id DESC, position LIMIT %(most)s::integer

-- name: message
-- One message, whole.
SELECT {shown} FROM settled.outbox AS message WHERE tenant = %(tenant)s AND id = %(id)s

-- name: _redriven
-- Make the dead letters in `batch` due again, and say so on the timelines of their actions.
moved AS (
    UPDATE settled.outbox SET dead_at = NULL, due_at = clock.now, attempt = 0
    FROM clock WHERE outbox.ctid = ANY(ARRAY(SELECT place FROM batch))
    RETURNING tenant, id, action_id, topic),
told AS (
    INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context, detail)
    SELECT action.tenant, action.id, clock.now, state, state, 'redrive', attempt, %(by)s, correlation_id, trace_context,
        json_strip_nulls(json_build_object('message', moved.id, 'topic', moved.topic, 'note', %(note)s::text))
    FROM clock, moved, LATERAL (
        SELECT * FROM settled.actions WHERE actions.id = moved.action_id AND actions.tenant = moved.tenant LIMIT 1) AS action)
SELECT id FROM moved

-- name: redrive
-- Make dead letters due again.
WITH {clock}, batch AS MATERIALIZED (
    SELECT ctid AS place FROM settled.outbox WHERE tenant = %(tenant)s AND id = ANY(%(ids)s::text[]) AND dead_at IS NOT NULL FOR UPDATE),
{redriven}

-- name: redrive_all
-- Make the oldest dead letters due again, a batch at a time.
WITH {clock}, batch AS MATERIALIZED (
    SELECT ctid AS place FROM settled.outbox WHERE tenant = %(tenant)s AND (%(topic)s::text IS NULL OR topic = %(topic)s) AND dead_at IS NOT NULL
    ORDER BY dead_at LIMIT %(most)s::integer FOR UPDATE SKIP LOCKED),
{redriven}
