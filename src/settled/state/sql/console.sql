-- The statements of `settled.state.console`: looking for actions, and what the pages of operators follow while they are open.
-- No index serves the filters: one on state or receipt would be written by every success. So a search reads a stretch of the
-- ledger, newest first by the primary key, and says where it stopped.

-- name: _wanted
-- The filters, each NULL where it is not given.
(%(states)s::text[] IS NULL OR state = ANY(%(states)s::text[]))
    AND (%(tool)s::text IS NULL OR tool = %(tool)s)
    AND (%(older_than)s::interval IS NULL OR planned_at < (SELECT settled.now()) - %(older_than)s::interval)
    AND (%(younger_than)s::interval IS NULL OR planned_at >= (SELECT settled.now()) - %(younger_than)s::interval)
    AND (%(reference)s::text IS NULL OR %(reference)s IN (id, receipt, idempotency_key, requester, correlation_id))

-- name: _answer
-- What was found, and where a stretch that holds more rows than were asked for, or than were read, goes on.
found AS (SELECT id FROM stretch WHERE wanted ORDER BY id DESC LIMIT %(most)s::integer + 1)
SELECT (SELECT array_agg(id ORDER BY id DESC) FROM found), (SELECT count(*) FROM stretch), (SELECT min(id) FROM stretch),
    (SELECT min(planned_at) FROM stretch)

-- name: search
-- The actions of a tenant that fit, in one stretch of the ledger.
WITH stretch AS MATERIALIZED (
    SELECT id, planned_at, {wanted} AS wanted FROM settled.actions
    WHERE tenant = %(tenant)s AND id < %(below)s
    ORDER BY id DESC LIMIT %(stretch)s::integer),
{answer}

-- name: search_thread
-- As search, within one conversation, which has an index.
WITH stretch AS MATERIALIZED (
    SELECT id, planned_at, {wanted} AS wanted FROM (
        SELECT * FROM settled.actions WHERE thread_id = %(thread_id)s AND tenant = %(tenant)s OFFSET 0) AS of_thread
    WHERE id < %(below)s
    ORDER BY id DESC LIMIT %(stretch)s::integer),
{answer}

-- name: pulse
-- What waits for people (as `open_approvals`, `manual_queue` and `dead` list it; counted up to a bound), each with a mark that
-- changes with it; and the mark of one action, or of one run of a chain.
WITH asked AS (
    SELECT action_id, round FROM settled.approvals
    WHERE tenant = %(tenant)s AND decision IS NULL AND valid_until > settled.now() ORDER BY valid_until LIMIT %(most)s::integer),
stuck AS (
    SELECT id, version, queries FROM settled.actions
    WHERE tenant = %(tenant)s AND escalated_at IS NOT NULL AND state IN ('unknown', 'compensation_pending')
    ORDER BY escalated_at LIMIT %(most)s::integer),
dead AS (
    SELECT id FROM settled.outbox WHERE tenant = %(tenant)s AND dead_at IS NOT NULL ORDER BY dead_at DESC LIMIT %(most)s::integer)
SELECT (SELECT count(*) FROM asked), (SELECT md5(string_agg(concat_ws(' ', action_id, round), ',' ORDER BY action_id)) FROM asked),
    (SELECT count(*) FROM stuck), (SELECT md5(string_agg(concat_ws(' ', id, version, queries), ',' ORDER BY id)) FROM stuck),
    (SELECT count(*) FROM dead), (SELECT md5(string_agg(id, ',' ORDER BY id)) FROM dead),
    coalesce(
        (SELECT concat_ws(' ', version, queries, escalated_at,
            (SELECT count(*) FROM settled.events WHERE tenant = %(tenant)s AND action_id = %(id)s),
            (SELECT string_agg(concat_ws(' ', fencing_token, delivered_at, dead_at), ',' ORDER BY position)
                FROM settled.outbox WHERE tenant = %(tenant)s AND action_id = %(id)s))
            FROM settled.actions WHERE tenant = %(tenant)s AND id = %(id)s),
        (SELECT concat_ws(' ', version, (SELECT md5(string_agg(concat_ws(' ', tries, finished_at, undone_at, code,
                (SELECT concat_ws(' ', did.version, did.escalated_at, (SELECT undid.version FROM settled.actions AS undid
                        WHERE undid.tenant = %(tenant)s AND undid.id = did.compensated_by))
                    FROM settled.actions AS did WHERE did.tenant = %(tenant)s AND did.id = action_id)), ',' ORDER BY position))
                FROM settled.chain_steps WHERE tenant = %(tenant)s AND chain_id = %(id)s))
            FROM settled.chains WHERE tenant = %(tenant)s AND id = %(id)s))
