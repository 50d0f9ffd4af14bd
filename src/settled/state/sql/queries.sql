-- Every statement of the ledger. `-- name: x` begins a statement, `{x}` puts in the fragment `_x`.
-- A transition is one guarded statement: compare-and-set on state and fencing token, with its event in the same statement.
-- Zero rows mean "not yours": nothing was written. `%(states)s` are the states that the machine lets the trigger leave;
-- `previous = state` in an UPDATE keeps the one it came from, for the event.

-- name: _columns
-- The columns of settled.state.model.Action, in its order.
tenant, id, thread_id, tool, contract_version, idempotency_key, 'sha256:' || encode(fingerprint, 'hex'), occurrence, arguments,
summary, requester, correlation_id, trace_context, repeat_of, planned_at, window_until, approver, approved_until, state, fencing_token, attempt, owner,
started_at, lease_until, deadline_at, in_flight_until, queries, next_query_at, escalated_at, code, reason, may_change,
receipt, result, evidence, settled_at, asking, asked_until, supersedes, superseded_by,
compensates, compensated_by

-- name: _clock
-- One instant for the whole statement.
clock AS MATERIALIZED (SELECT settled.now() AS now)

-- name: _told
-- The event of the transition in `moved`.
told AS (
    INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context, detail)
    SELECT tenant, id, clock.now, previous, state, trigger, attempt, %(actor)s, correlation_id, trace_context, %(detail)s
    FROM moved, clock)

-- name: _answer
-- The moved row and the clock.
SELECT {columns}, clock.now FROM moved, clock

-- name: _begun
-- Begin an action (planned, or claimed at once) with its events, unless its decision, intent or business key has one.
moved AS (
    INSERT INTO settled.actions (tenant, id, thread_id, tool, contract_version, intent, occurrence, idempotency_key, fingerprint,
        business_key, arguments, summary, requester, correlation_id, trace_context, repeat_of, planned_at, window_until,
        approver, state, trigger, fencing_token, attempt, owner, started_at, lease_until, deadline_at, settle_window, emits)
    SELECT %(tenant)s, %(id)s, %(thread_id)s, %(tool)s, %(contract_version)s, %(intent)s, %(occurrence)s, %(idempotency_key)s,
        %(fingerprint)s, %(business_key)s, %(arguments)s, %(summary)s, %(requester)s, %(correlation_id)s, %(trace_context)s, %(repeat_of)s,
        now, now + %(window)s::interval, %(approver)s, %(state)s, %(trigger)s, %(token)s::integer, %(token)s::integer, %(owner)s,
        CASE %(token)s::integer WHEN 1 THEN now END, now + %(lease)s::interval, now + %(deadline)s::interval, %(settle_window)s::interval, %(emits)s
    FROM clock WHERE %(decision)s::bytea IS NULL
        OR NOT EXISTS (SELECT FROM settled.decisions WHERE tenant = %(tenant)s AND decision = %(decision)s)
    ON CONFLICT DO NOTHING
    RETURNING tenant, id, planned_at, fencing_token),
told AS (
    INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context)
    SELECT tenant, id, planned_at, step.from_state, step.to_state, step.trigger, step.attempt,
        CASE step.trigger WHEN 'approve' THEN %(approver)s ELSE %(actor)s END, %(correlation_id)s, %(trace_context)s
    FROM moved JOIN (VALUES (0, NULL, 'planned', 'plan', 0), (1, 'planned', 'approved', 'approve', 0), (1, 'approved', 'running', 'claim', 1))
        AS step (token, from_state, to_state, trigger, attempt) ON step.token <= fencing_token)

-- name: _other
-- The id of the action that has the intent (this occurrence of it, or a later one), else of the one that has the business key.
-- A deliberate repeat meets itself first. One that waits for its approval, or never got it, does not hide from a plain call what was done before.
COALESCE(
    CASE WHEN %(repeat_of)s::text IS NOT NULL THEN (SELECT id FROM settled.actions
        WHERE tenant = %(tenant)s AND intent = %(intent)s AND repeat_of = %(repeat_of)s ORDER BY occurrence DESC LIMIT 1) END,
    (SELECT id FROM settled.actions WHERE tenant = %(tenant)s AND intent = %(intent)s AND occurrence >= %(occurrence)s
        AND (%(repeat_of)s::text IS NOT NULL OR repeat_of IS NULL OR state NOT IN ('planned', 'approved', 'cancelled'))
        ORDER BY occurrence DESC LIMIT 1),
    (SELECT id FROM settled.actions WHERE tenant = %(tenant)s AND business_key = %(business_key)s))

-- name: _met
-- Whether it began, and the action that a call began or met. No row of it: begun just now.
SELECT (SELECT id FROM moved) IS NOT NULL, false, intent = %(intent)s, clock.now, {columns}
FROM clock LEFT JOIN settled.actions ON tenant = %(tenant)s AND id = COALESCE((SELECT id FROM moved), {other})

-- name: _known
known AS (SELECT action_id FROM settled.decisions WHERE tenant = %(tenant)s AND decision = %(decision)s)

-- name: _decided
-- The action that a decision has met before comes first, and a new decision is noted.
met AS MATERIALIZED (
    SELECT COALESCE((SELECT id FROM moved), (SELECT action_id FROM known), {other}) AS met_id),
decided AS (
    INSERT INTO settled.decisions (tenant, decision, action_id)
    SELECT %(tenant)s, %(decision)s, met_id FROM met LEFT JOIN settled.actions ON tenant = %(tenant)s AND id = met_id
    WHERE met_id = (SELECT id FROM moved)
       OR (intent = %(intent)s AND fingerprint = %(fingerprint)s AND state NOT IN ('failed', 'cancelled')
           AND (%(repeat_of)s::text IS NULL OR repeat_of = %(repeat_of)s)
           AND (settled_at IS NULL OR window_until > (SELECT now FROM clock))
           AND (state <> 'planned' OR coalesce(asked_until > (SELECT now FROM clock), true)))
    ON CONFLICT DO NOTHING
    RETURNING action_id),
repeated AS (
    INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context)
    SELECT tenant, id, (SELECT now FROM clock), state, state, 'repeat', attempt, %(actor)s, %(correlation_id)s, %(trace_context)s
    FROM settled.actions WHERE tenant = %(tenant)s AND id = (SELECT action_id FROM decided))

-- name: _met_decided
SELECT (SELECT id FROM moved) IS NOT NULL, (SELECT action_id FROM known) IS NOT NULL, intent = %(intent)s, clock.now, {columns}
FROM clock, met LEFT JOIN settled.actions ON tenant = %(tenant)s AND id = met_id

-- name: plan
-- Begin an action and claim it in the same statement, or meet the one that the intent or the business key has.
WITH {clock}, {begun}
{met}

-- name: plan_decided
-- As plan, for a decision.
WITH {clock}, {known}, {begun}, {decided}
{met_decided}

-- name: _judged
-- Begin an action that is not claimed at once: a person is asked, or a budget is judged when it is claimed, or the policy denies it.
-- `gate` is the CTE that lets it in.
    INSERT INTO settled.actions (tenant, id, thread_id, tool, contract_version, intent, occurrence, idempotency_key, fingerprint,
        business_key, arguments, summary, requester, correlation_id, trace_context, repeat_of, planned_at, window_until,
        approver, state, trigger, owner, asking, asked_until, supersedes, code, reason, settled_at, settle_window, emits, compensates)
    SELECT %(tenant)s, %(id)s, %(thread_id)s, %(tool)s, %(contract_version)s, %(intent)s, %(occurrence)s, %(idempotency_key)s,
        %(fingerprint)s, %(business_key)s, %(arguments)s, %(summary)s, %(requester)s, %(correlation_id)s, %(trace_context)s, %(repeat_of)s,
        now, now + %(window)s::interval, %(approver)s, %(state)s, %(trigger)s, %(owner)s, %(asking)s, now + %(ask_ttl)s::interval,
        %(supersedes)s, %(code)s, %(reason)s, CASE WHEN %(code)s::text IS NOT NULL THEN now END, %(settle_window)s::interval, %(emits)s, %(compensates)s
    FROM clock, gate

-- name: _issued
-- The ticket of an action that waits for a person.
    INSERT INTO settled.approvals (tenant, action_id, round, tool, fingerprint, summary, scope, requester, issued_at, valid_until)
    SELECT tenant, id, 1 + (SELECT count(*) FROM settled.approvals WHERE tenant = moved.tenant AND action_id = moved.id),
        tool, fingerprint, summary, asking ->> 'scope', requester, clock.now, asked_until
    FROM moved, clock WHERE asking IS NOT NULL

-- name: _born
-- The events and the ticket of what `_judged` began.
told AS (
    INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context, detail)
    SELECT tenant, id, planned_at, step.from_state, step.to_state, step.trigger, 0,
        CASE step.trigger WHEN 'plan' THEN %(actor)s ELSE %(approver)s END, %(correlation_id)s, %(trace_context)s,
        CASE step.to_state WHEN moved.state THEN %(verdict)s::json END
    FROM moved JOIN (VALUES ('planned', NULL, 'planned', 'plan'), ('approved', NULL, 'planned', 'plan'), ('approved', 'planned', 'approved', 'approve'),
        ('cancelled', NULL, 'planned', 'plan'), ('cancelled', 'planned', 'cancelled', 'deny'))
        AS step (state, from_state, to_state, trigger) ON step.state = moved.state),
issued AS ({issued})

-- name: _begun_judged
-- As `begun`, for what `_judged` begins.
gate AS (SELECT WHERE %(decision)s::bytea IS NULL
    OR NOT EXISTS (SELECT FROM settled.decisions WHERE tenant = %(tenant)s AND decision = %(decision)s)),
moved AS (
    {judged}
    ON CONFLICT DO NOTHING
    RETURNING actions.*),
{born}

-- name: plan_judged
-- As plan, for an action that is not claimed at once.
WITH {clock}, {begun_judged}
{met}

-- name: plan_judged_decided
-- As plan_decided, for an action that is not claimed at once.
WITH {clock}, {known}, {begun_judged}, {decided}
{met_decided}

-- name: known
-- The action that a decision has met.
SELECT {columns}, settled.now() FROM settled.decisions JOIN settled.actions USING (tenant)
WHERE tenant = %(tenant)s AND decision = %(decision)s AND id = action_id

-- name: newest
-- The last action of an intent, and the last one of it that did something or still may.
(SELECT {columns}, settled.now() FROM settled.actions WHERE tenant = %(tenant)s AND intent = %(intent)s ORDER BY occurrence DESC LIMIT 1)
UNION ALL
(SELECT {columns}, settled.now() FROM settled.actions
    WHERE tenant = %(tenant)s AND intent = %(intent)s AND state NOT IN ('failed', 'cancelled') ORDER BY occurrence DESC LIMIT 1)

-- name: same_intent
-- Whether an action has this intent, or this business key.
SELECT 1 FROM settled.actions WHERE tenant = %(tenant)s AND id = %(id)s AND (intent = %(intent)s OR business_key = %(business_key)s)

-- name: supersede
-- A person edits what waits for approval: it ends, and its edited form begins, with a verdict of its own.
WITH {clock}, gate AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'cancelled', trigger = 'supersede', business_key = NULL,
        approver = %(editor)s, code = %(edited_code)s, reason = %(edited_reason)s, settled_at = clock.now, superseded_by = %(id)s
    FROM clock WHERE tenant = %(tenant)s AND id = %(supersedes)s AND state = ANY(%(states)s::text[]) AND fingerprint = %(edited_fingerprint)s
        AND {in_time}
    RETURNING actions.*),
closed AS (
    UPDATE settled.approvals SET decision = 'supersede', decided_by = %(editor)s, decided_at = clock.now, note = %(note)s
    FROM gate, clock WHERE approvals.tenant = gate.tenant AND action_id = gate.id AND decision IS NULL),
ended AS (
    INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context, detail)
    SELECT tenant, id, clock.now, previous, state, trigger, attempt, %(editor)s, correlation_id, trace_context, %(detail)s FROM gate, clock),
moved AS (
    {judged}
    RETURNING actions.*),
{born}
{answer}

-- name: _in_time
-- A person may still decide.
(asked_until IS NULL OR asked_until > clock.now)

-- name: approve
-- Permit a planned action to run, until an instant or for ever: its ticket is decided with it, that of the round if one is named.
WITH {clock}, moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'approved', trigger = 'approve',
        approver = %(approver)s, approved_until = clock.now + %(valid_for)s::interval, asked_until = NULL
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND state = ANY(%(states)s::text[]) AND fingerprint = %(fingerprint)s
        AND {in_time}
        AND (%(round)s::integer IS NULL OR EXISTS (SELECT FROM settled.approvals WHERE approvals.tenant = actions.tenant
            AND action_id = actions.id AND decision IS NULL AND round = %(round)s))
    RETURNING actions.*),
decided AS (
    UPDATE settled.approvals SET decision = 'approve', decided_by = %(approver)s, decided_at = clock.now, note = %(note)s,
        valid_until = moved.approved_until
    FROM moved, clock WHERE approvals.tenant = moved.tenant AND action_id = moved.id AND decision IS NULL),
{told} {answer}

-- name: cancel
-- End an action that never ran: denied, expired, superseded or withdrawn. It expires only after its end, and is denied only before it.
WITH {clock}, moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'cancelled', trigger = %(trigger)s, business_key = NULL,
        approver = %(approver)s, code = %(code)s, reason = %(reason)s, settled_at = clock.now
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND state = ANY(%(states)s::text[])
        AND CASE %(trigger)s WHEN 'expire' THEN NOT {in_time} WHEN 'deny' THEN {in_time} ELSE true END
    RETURNING actions.*),
decided AS (
    UPDATE settled.approvals SET decision = %(trigger)s, decided_by = %(approver)s, decided_at = clock.now, note = %(note)s
    FROM moved, clock WHERE approvals.tenant = moved.tenant AND action_id = moved.id AND decision IS NULL),
{told} {answer}

-- name: _fits
-- A ticket that permits the action as it stands: given, not spent, not over, and for this very fingerprint.
SELECT FROM settled.approvals AS ticket WHERE ticket.tenant = actions.tenant AND ticket.action_id = actions.id
    AND ticket.decision = 'approve' AND ticket.spent_at IS NULL AND ticket.fingerprint = actions.fingerprint
    AND (ticket.valid_until IS NULL OR ticket.valid_until > clock.now)

-- name: claim
-- Take the right to run an approved action: its ticket is spent, and its budgets are reserved, in this statement. A budget with
-- several windows is reserved once.
WITH {clock}, moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'running', trigger = 'claim',
        fencing_token = fencing_token + 1, attempt = attempt + 1, owner = %(owner)s, started_at = clock.now,
        lease_until = clock.now + %(lease)s, deadline_at = clock.now + %(deadline)s
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND state = ANY(%(states)s::text[])
        AND (approved_until IS NULL OR approved_until > clock.now) AND (asking IS NULL OR EXISTS ({fits}))
        AND settled.has_room(tenant, %(reservations)s::json, clock.now)
    RETURNING actions.*),
spent AS (
    UPDATE settled.approvals SET spent_at = clock.now
    FROM moved, clock WHERE approvals.tenant = moved.tenant AND action_id = moved.id AND decision = 'approve' AND spent_at IS NULL
        AND (valid_until IS NULL OR valid_until > clock.now)),
reserved AS (
    INSERT INTO settled.reservations (at, budget, tenant, action_id, amount)
    SELECT DISTINCT clock.now, decode(taken.budget, 'hex'), tenant, id, taken.amount
    FROM moved, clock, json_to_recordset(%(reservations)s::json) AS taken (budget text, amount numeric)),
{told} {answer}

-- name: lapse
-- A permission ended before anybody used it, or does not fit: the action is planned again, with a new ticket. (One that is still
-- open belongs to an approval that nobody gave: it is closed, so that one question is one ticket.)
WITH {clock}, moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'planned', trigger = 'lapse', approver = NULL,
        approved_until = NULL, asked_until = clock.now + (asking ->> 'ttl_s')::float8 * interval '1 second'
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND state = ANY(%(states)s::text[]) AND asking IS NOT NULL
        AND (approved_until <= clock.now OR NOT EXISTS ({fits}))
    RETURNING actions.*),
closed AS (
    UPDATE settled.approvals SET decision = 'withdraw', decided_at = clock.now
    FROM moved, clock WHERE approvals.tenant = moved.tenant AND action_id = moved.id AND decision IS NULL),
issued AS ({issued}),
{told} {answer}

-- name: used
-- How much of a budget is taken: within its window, or by what is not settled yet.
SELECT coalesce(sum(amount), 0) FROM settled.reservations
    LEFT JOIN settled.actions ON NOT is_settled AND actions.tenant = reservations.tenant AND id = action_id
WHERE reservations.tenant = %(tenant)s AND budget = decode(%(budget)s, 'hex')
    AND (greatest(at, settled_at) > settled.now() - %(window)s::interval OR (NOT is_settled AND settled_at IS NULL))

-- name: _approval_columns
approvals.tenant, approvals.action_id, approvals.round, actions.thread_id, approvals.tool, 'sha256:' || encode(approvals.fingerprint, 'hex'),
approvals.summary, actions.arguments, approvals.scope, actions.asking, approvals.requester, approvals.issued_at, approvals.valid_until,
approvals.decision, approvals.decided_by, approvals.decided_at, approvals.note, approvals.spent_at, settled.now()

-- name: open_approvals
-- The requests of a tenant that a person may still decide, of one thread where it is given; those that end first come first.
SELECT {approval_columns} FROM settled.approvals JOIN settled.actions ON actions.tenant = approvals.tenant AND actions.id = approvals.action_id
WHERE approvals.tenant = %(tenant)s AND decision IS NULL AND valid_until > settled.now()
    AND (%(thread_id)s::text IS NULL OR actions.thread_id = %(thread_id)s)
ORDER BY valid_until, issued_at LIMIT %(most)s

-- name: approvals_of
-- The tickets of one action, in order.
SELECT {approval_columns} FROM settled.approvals JOIN settled.actions ON actions.tenant = approvals.tenant AND actions.id = approvals.action_id
WHERE approvals.tenant = %(tenant)s AND approvals.action_id = %(id)s ORDER BY round

-- name: manual_queue
-- What only a person can decide, oldest first.
SELECT {columns}, settled.now() FROM settled.actions
WHERE tenant = %(tenant)s AND escalated_at IS NOT NULL AND state IN ('unknown', 'compensation_pending')
ORDER BY escalated_at LIMIT %(most)s

-- name: findings
-- What was learnt about some unknown actions: each question's answer, why a person is to decide, late replies.
SELECT action_id, trigger, detail FROM settled.events
WHERE tenant = %(tenant)s AND action_id = ANY(%(ids)s::text[]) AND trigger IN ('ask', 'escalate', 'late', 'lose') ORDER BY id

-- name: ask_again
-- A person sends an action out of the manual queue, back to whoever asks the remote side.
WITH {clock}, moved AS (
    UPDATE settled.actions SET escalated_at = NULL, next_query_at = clock.now
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND fencing_token = %(token)s AND state = 'unknown' AND escalated_at IS NOT NULL
    RETURNING actions.*),
{noticed},
told AS (
    INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context, detail)
    SELECT tenant, id, clock.now, state, state, 'ask_again', attempt, %(actor)s, correlation_id, trace_context, %(detail)s FROM moved, clock)
{answer}

-- name: renew
-- Prolong the leases that this process holds; returns those that are still its own.
WITH {clock}, moved AS (
    UPDATE settled.actions SET lease_until = clock.now + held.lease
    FROM clock, unnest(%(tenants)s::text[], %(ids)s::text[], %(tokens)s::integer[], %(leases)s::interval[]) AS held (tenant, id, token, lease)
    WHERE actions.tenant = held.tenant AND actions.id = held.id AND fencing_token = held.token AND state = 'running'
    RETURNING actions.tenant, actions.id)
SELECT tenant, id FROM moved

-- name: _succeeding
moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'succeeded', trigger = 'succeed',
        receipt = %(receipt)s, result = %(result)s, evidence = 'reply', settled_at = clock.now,
        owner = NULL, lease_until = NULL, reason = NULL, next_query_at = NULL
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND fencing_token = %(token)s AND state = ANY(%(states)s::text[])
    RETURNING tenant, id, settled_at, previous, state, trigger, attempt, correlation_id, trace_context, emits)

-- name: _posted
-- The messages of a success, in the order in which they were given (all but the first wait for the one ahead); of an action that has
-- some which could not be made yet, that.
posted AS (
    INSERT INTO settled.outbox (id, tenant, action_id, position, topic, payload, created_at, due_at)
    SELECT 'msg-' || substr(moved.id, 5) || '-' || message.position, tenant, moved.id, message.position, message.topic, message.payload, clock.now,
        CASE WHEN message.position > 1 THEN 'infinity' ELSE clock.now END
    FROM clock, moved, LATERAL (
        SELECT position, given ->> 'topic' AS topic, given -> 'payload' AS payload
        FROM json_array_elements(%(messages)s::json) WITH ORDINALITY AS one (given, position)
        UNION ALL SELECT 0, NULL, NULL WHERE %(messages)s::json IS NULL AND (moved.emits OR %(posts)s::boolean)) AS message)

-- name: succeed
-- Settle: the remote side did it, by its reply. A late reply of the same fencing token settles an unknown action too.
-- Only the instant comes back: the rest of the row is known to whoever sends this, and 37 columns cost a tenth of it. Where the code
-- that settles knows of no messages, and the code that planned did, they are still to be made.
WITH {clock}, {succeeding}, {told},
posted AS (
    INSERT INTO settled.outbox (id, tenant, action_id, position, created_at, due_at)
    SELECT 'msg-' || substr(id, 5) || '-0', tenant, id, 0, settled_at, settled_at FROM moved WHERE emits)
SELECT settled_at FROM moved

-- name: succeed_posting
-- As succeed, with messages for the outbox.
WITH {clock}, {succeeding}, {posted}, {told} SELECT settled_at FROM moved

-- name: fail
-- Settle: it did not take place and never will. What it had reserved of its budgets is given back.
WITH {clock}, moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'failed', trigger = 'fail', business_key = NULL,
        code = %(code)s, reason = %(reason)s, may_change = %(may_change)s, receipt = %(receipt)s, settled_at = clock.now,
        owner = NULL, lease_until = NULL, next_query_at = NULL, evidence = %(evidence)s
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND fencing_token = %(token)s AND state = ANY(%(states)s::text[])
    RETURNING actions.*),
returned AS (
    DELETE FROM settled.reservations USING moved WHERE reservations.tenant = moved.tenant AND reservations.action_id = moved.id),
{noticed}, {told} {answer}

-- name: refuse
-- Surely not processed; the next attempt is written down, with the instant before which it does not begin.
WITH {clock}, moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'running', trigger = 'refuse',
        attempt = attempt + 1, reason = %(reason)s, started_at = clock.now + %(delay)s,
        lease_until = greatest(lease_until, clock.now + %(delay)s + %(lease)s)
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND fencing_token = %(token)s AND state = ANY(%(states)s::text[])
        AND attempt = %(attempt)s AND owner = %(owner)s AND clock.now + %(delay)s <= deadline_at
    RETURNING actions.*),
{told} {answer}

-- name: lose
-- Nobody can tell what became of the attempt. By its owner, or by anybody once its lease has ended or its owner is known dead.
WITH {clock}, moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'unknown', trigger = 'lose',
        reason = %(reason)s, in_flight_until = started_at + coalesce(settle_window, %(settle_window)s), queries = 0, next_query_at = clock.now,
        owner = NULL, lease_until = NULL
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND fencing_token = %(token)s AND state = ANY(%(states)s::text[])
        AND (owner = %(owner)s OR lease_until <= clock.now OR %(orphaned)s)
    RETURNING actions.*),
{told} {answer}

-- name: ask
-- Note what the remote side answered to a query that did not settle the action, and when to ask again.
WITH {clock}, moved AS (
    UPDATE settled.actions SET queries = queries + 1, next_query_at = clock.now + %(delay)s
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND fencing_token = %(token)s AND state = 'unknown'
        AND queries = %(queries)s
    RETURNING actions.*),
told AS (
    INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context, detail)
    SELECT tenant, id, clock.now, state, state, 'ask', attempt, %(actor)s, correlation_id, trace_context, %(detail)s FROM moved, clock)
{answer}

-- name: _noticed
-- What a person has said is looked at by a worker at once, however old the action is.
noticed AS (
    INSERT INTO settled.watched AS known (due_at, tenant, action_id) SELECT clock.now, tenant, id FROM moved, clock WHERE %(actor)s::text IS NOT NULL
    ON CONFLICT (action_id, tenant) DO UPDATE SET due_at = least(known.due_at, excluded.due_at), tool = NULL)

-- name: find
-- Settle: the remote side was asked, and it did it.
WITH {clock}, moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'succeeded', trigger = 'find',
        receipt = %(receipt)s, result = %(result)s, evidence = %(evidence)s, settled_at = clock.now, reason = NULL, next_query_at = NULL
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND fencing_token = %(token)s AND state = ANY(%(states)s::text[])
    RETURNING actions.*),
{posted}, {noticed}, {told} {answer}

-- name: release
-- Proved absent and safe to resend under the same key: a new claim. Never before `in_flight_until` where absence was the proof.
WITH {clock}, moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'running', trigger = 'release',
        fencing_token = fencing_token + 1, attempt = attempt + 1, owner = %(owner)s, started_at = clock.now,
        lease_until = clock.now + %(lease)s, deadline_at = greatest(deadline_at, clock.now + %(deadline)s::interval),
        in_flight_until = NULL, next_query_at = NULL
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND fencing_token = %(token)s AND state = ANY(%(states)s::text[])
        AND (in_flight_until <= clock.now OR NOT %(proved_by_absence)s)
    RETURNING actions.*),
{told} {answer}

-- name: escalate
-- Hand an unknown action to a person: the manual queue.
WITH {clock}, moved AS (
    UPDATE settled.actions SET version = version + 1, previous = state, trigger = 'escalate',
        reason = %(reason)s, escalated_at = clock.now, next_query_at = NULL
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND fencing_token = %(token)s AND state = ANY(%(states)s::text[]) AND escalated_at IS NULL
    RETURNING actions.*),
{told} {answer}

-- name: _undoing
-- The event of what is being undone, in `gate`, and the action that undoes it, with a verdict of its own. A worker comes soon: what
-- is undone is old, and read by no sweep any more.
noticed AS (
    INSERT INTO settled.watched AS known (due_at, tenant, action_id) SELECT clock.now + interval '5 seconds', tenant, id FROM gate, clock
    ON CONFLICT (action_id, tenant) DO UPDATE SET due_at = least(known.due_at, excluded.due_at)),
undoing AS (
    INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context, detail)
    SELECT tenant, id, clock.now, %(undone_from)s, state, %(undone_by)s, attempt, %(by)s, correlation_id, trace_context, %(detail)s FROM gate, clock),
moved AS (
    {judged}
    RETURNING actions.*),
{born}
{answer}

-- name: compensate
-- Begin to undo what succeeded, and no person has undone by hand: it waits for the action that undoes it, which begins in the same
-- statement.
WITH {clock}, gate AS (
    UPDATE settled.actions SET version = version + 1, previous = state, state = 'compensation_pending', trigger = 'compensate',
        compensated_by = %(id)s, settled_at = NULL, escalated_at = NULL
    FROM clock WHERE tenant = %(tenant)s AND id = %(compensates)s AND state = ANY(%(states)s::text[])
        AND NOT EXISTS (SELECT FROM settled.chain_steps AS by_hand
            WHERE by_hand.tenant = actions.tenant AND by_hand.action_id = actions.id AND by_hand.undone_at IS NOT NULL)
    RETURNING actions.*),
{undoing}

-- name: compensate_again
-- The action that was to undo it did nothing: another one takes its place, and it leaves the manual queue.
WITH {clock}, gate AS (
    UPDATE settled.actions AS undone SET compensated_by = %(id)s, escalated_at = NULL, reason = NULL
    FROM clock WHERE tenant = %(tenant)s AND id = %(compensates)s AND state = 'compensation_pending' AND compensated_by = %(failed)s
        AND EXISTS (SELECT FROM settled.actions AS tried WHERE tried.tenant = undone.tenant AND tried.id = undone.compensated_by
            AND tried.state IN ('failed', 'cancelled'))
    RETURNING undone.*),
{undoing}

-- name: compensated
-- What was to be undone is: the action that undoes it has succeeded.
WITH {clock}, moved AS (
    UPDATE settled.actions AS undone SET version = version + 1, previous = state, state = 'compensated', trigger = 'compensated',
        business_key = NULL, settled_at = clock.now, reason = NULL
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND state = ANY(%(states)s::text[])
        AND EXISTS (SELECT FROM settled.actions AS by WHERE by.tenant = undone.tenant AND by.id = undone.compensated_by AND by.state = 'succeeded')
    RETURNING undone.*),
{told} {answer}

-- name: undone_by_hand
-- A person has undone what an action could not: that one did nothing.
WITH {clock}, moved AS (
    UPDATE settled.actions AS undone SET version = version + 1, previous = state, state = 'compensated', trigger = 'compensated',
        business_key = NULL, settled_at = clock.now, reason = NULL
    FROM clock WHERE tenant = %(tenant)s AND id = %(id)s AND state = 'compensation_pending'
        AND EXISTS (SELECT FROM settled.actions AS tried WHERE tried.tenant = undone.tenant AND tried.id = undone.compensated_by
            AND tried.state IN ('failed', 'cancelled') AND tried.superseded_by IS NULL)
    RETURNING undone.*),
{told} {answer}

-- name: keep_late
-- Keep as evidence what a stale owner wanted to write; its action does not move.
INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context, detail)
SELECT tenant, id, settled.now(), state, state, 'late', attempt, %(actor)s, correlation_id, trace_context, %(detail)s::json
FROM settled.actions WHERE tenant = %(tenant)s AND id = %(id)s AND NOT EXISTS (
    SELECT FROM settled.events WHERE tenant = %(tenant)s AND action_id = %(id)s AND trigger = 'late' AND detail::text = %(detail)s::json::text)

-- name: load
-- One action, and the clock.
SELECT {columns}, settled.now() FROM settled.actions WHERE tenant = %(tenant)s AND id = %(id)s

-- name: load_all
-- Several actions, and the clock. Each by its own look-up: with ANY, a plan made on an empty table reads the whole tenant.
SELECT {columns}, settled.now() FROM unnest(%(ids)s::text[]) AS wanted (wanted_id)
    CROSS JOIN LATERAL (SELECT * FROM settled.actions WHERE tenant = %(tenant)s AND id = wanted_id LIMIT 1) AS found

-- name: recall
-- The newest action of a thread with this correlation id that did something, or still may.
SELECT {columns}, settled.now() FROM settled.actions
WHERE tenant = %(tenant)s AND thread_id = %(thread_id)s AND correlation_id = %(correlation_id)s AND state NOT IN ('failed', 'cancelled')
ORDER BY planned_at DESC LIMIT 1

-- name: timeline
-- The events of one action, in order.
SELECT at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context, detail
FROM settled.events WHERE tenant = %(tenant)s AND action_id = %(id)s ORDER BY id

-- name: actions
-- Actions of a tenant, newest first, by state and thread where these are given.
SELECT {columns}, settled.now() FROM settled.actions
WHERE tenant = %(tenant)s AND (%(states)s::text[] IS NULL OR state = ANY(%(states)s::text[])) AND (%(thread_id)s::text IS NULL OR thread_id = %(thread_id)s)
ORDER BY id DESC LIMIT %(most)s

-- name: lock_thread
-- Take a thread's lock for the life of this connection, if nobody has it.
SELECT pg_try_advisory_lock(hashtextextended(%(name)s, 7368))

-- name: unlock_all
-- Give back what this connection holds.
SELECT pg_advisory_unlock_all()

-- name: lock_setup
-- Take the right to set up LangGraph's own tables, for the life of this connection, if nobody has it.
SELECT pg_try_advisory_lock(7368)

-- name: lock_migrations
-- Wait for the right to migrate, until the end of this transaction.
SELECT pg_advisory_xact_lock(7368)

-- name: applied_migrations
-- The numbers of the migrations that this database has.
SELECT number FROM settled.migrations ORDER BY number

-- name: create_migrations
-- The table of applied migrations.
CREATE SCHEMA IF NOT EXISTS settled;
CREATE TABLE IF NOT EXISTS settled.migrations (
    number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())

-- name: record_migration
-- Note that a migration was applied.
INSERT INTO settled.migrations (number, name) VALUES (%(number)s, %(name)s)
