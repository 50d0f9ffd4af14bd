-- The statements of `settled.state.chains`. No row: somebody else moved it, and nothing was written; look again.
-- All of them may be sent twice: the second time finds what the first one wrote, or moves nothing.

-- name: _chain_columns
-- The columns of settled.state.chains.ChainRow, in its order.
tenant, id, thread_id, name, occurrence, intent, root, 'sha256:' || encode(fingerprint, 'hex'), input, summary, steps, tools, irreversible,
on_failure, requester, roles, correlation_id, repeat_of, begun_at, version, turned_at, failed_step, code, reason, ended_at, ended_as, settled.now()

-- name: _step_columns
-- The columns of settled.state.chains.StepRow, in its order.
chain_id, position, name, tool, is_reversible, begun_at, tries, action_id, arguments, code, reason, finished_at, finished_by, note, receipt,
result, undone_at, undone_by, undo_note, undo_reason

-- name: _this_step
chain_steps.tenant = %(tenant)s AND chain_steps.chain_id = %(chain_id)s AND chain_steps.position = %(position)s

-- name: _goes_on
-- The chain, while steps of it may begin.
FROM settled.chains WHERE chains.tenant = %(tenant)s AND chains.id = %(chain_id)s AND ended_at IS NULL AND turned_at IS NULL

-- name: chain_latest
-- The newest run of an intent.
SELECT {chain_columns} FROM settled.chains WHERE tenant = %(tenant)s AND intent = %(intent)s ORDER BY occurrence DESC LIMIT 1

-- name: chain_begin
-- Begin a run, unless the intent has one that goes on.
WITH born AS (
    INSERT INTO settled.chains (begun_at, tenant, id, thread_id, name, occurrence, intent, root, fingerprint, input, summary, steps, tools,
        irreversible, on_failure, requester, roles, correlation_id, repeat_of)
    SELECT settled.now(), %(tenant)s, %(id)s, %(thread_id)s, %(name)s, %(occurrence)s, %(intent)s, %(root)s, %(fingerprint)s, %(input)s, %(summary)s,
        %(steps)s::text[], %(tools)s::text[], %(irreversible)s::text[], %(on_failure)s, %(requester)s, %(roles)s::text[], %(correlation_id)s, %(repeat_of)s
    WHERE NOT EXISTS (SELECT FROM settled.chains WHERE tenant = %(tenant)s AND intent = %(intent)s AND ended_at IS NULL)
    ON CONFLICT DO NOTHING RETURNING *)
SELECT {chain_columns} FROM born

-- name: chain_load
-- One run.
SELECT {chain_columns} FROM settled.chains WHERE tenant = %(tenant)s AND id = %(chain_id)s

-- name: chain_steps
-- The steps that were begun, of some runs, in order.
SELECT {step_columns} FROM settled.chain_steps WHERE tenant = %(tenant)s AND chain_id = ANY(%(chain_ids)s::text[]) ORDER BY chain_id, position

-- name: chain_list
-- Runs of a tenant, newest first; of one thread, and those alone that are not over, where that is asked.
SELECT {chain_columns} FROM settled.chains
WHERE tenant = %(tenant)s AND (%(thread_id)s::text IS NULL OR thread_id = %(thread_id)s)
    AND (%(is_over)s::boolean IS NULL OR (ended_at IS NOT NULL) = %(is_over)s)
ORDER BY id DESC LIMIT %(most)s

-- name: chain_of_action
-- The run whose step an action is, or whose step it undoes.
SELECT {chain_columns} FROM settled.chains WHERE tenant = %(tenant)s AND id = (
    SELECT chain_id FROM settled.chain_steps WHERE tenant = %(tenant)s AND action_id = COALESCE(
        (SELECT compensates FROM settled.actions WHERE tenant = %(tenant)s AND id = %(action_id)s), %(action_id)s) LIMIT 1)

-- name: chain_recall
-- The newest run of a thread that a call has begun.
SELECT {chain_columns} FROM settled.chains
WHERE tenant = %(tenant)s AND thread_id = %(thread_id)s AND correlation_id = %(correlation_id)s ORDER BY id DESC LIMIT 1

-- name: chain_begin_step
-- Write a step down, with what it will do, or why it cannot; or read what stands there.
WITH born AS (
    INSERT INTO settled.chain_steps (begun_at, tenant, chain_id, position, name, tool, is_reversible, action_id, arguments, code, reason)
    SELECT settled.now(), %(tenant)s, %(chain_id)s, %(position)s, %(name)s, %(tool)s, %(is_reversible)s, %(action_id)s, %(arguments)s, %(code)s, %(reason)s
    {goes_on}
    ON CONFLICT DO NOTHING RETURNING *)
SELECT {step_columns} FROM born
UNION ALL
SELECT {step_columns} FROM settled.chain_steps WHERE {this_step} AND NOT EXISTS (SELECT FROM born)

-- name: chain_try_step
-- The step did nothing: another try of it, with an action of its own. The run's version rises, so that nobody ends it unaware.
WITH chain AS (UPDATE settled.chains SET version = version + 1 WHERE tenant = %(tenant)s AND id = %(chain_id)s AND ended_at IS NULL AND turned_at IS NULL RETURNING id),
moved AS (
    UPDATE settled.chain_steps AS step SET tries = tries + 1, action_id = %(action_id)s, arguments = %(arguments)s, code = %(code)s, reason = %(reason)s
    FROM chain WHERE step.tenant = %(tenant)s AND step.chain_id = %(chain_id)s AND step.position = %(position)s AND tries = %(tries)s AND finished_at IS NULL
    RETURNING step.*)
SELECT {step_columns} FROM moved

-- name: chain_follow_step
-- A person has changed the step's action into another one.
UPDATE settled.chain_steps SET action_id = %(action_id)s
WHERE {this_step} AND action_id = %(changed)s AND finished_at IS NULL
RETURNING {step_columns}

-- name: chain_fail_step
-- The step's action never began, or its read has no result.
UPDATE settled.chain_steps SET code = %(code)s, reason = %(reason)s, receipt = %(receipt)s, action_id = NULL
WHERE {this_step} AND tries = %(tries)s AND finished_at IS NULL AND NOT EXISTS (
    SELECT FROM settled.actions WHERE tenant = chain_steps.tenant AND id = chain_steps.action_id AND state NOT IN ('failed', 'cancelled'))
RETURNING {step_columns}

-- name: chain_record_step
-- A read has its result, which never changes for this run.
UPDATE settled.chain_steps SET finished_at = settled.now(), result = %(result)s
WHERE {this_step} AND tries = %(tries)s AND finished_at IS NULL
RETURNING {step_columns}

-- name: chain_finish_step
-- A person did it by hand: what was not begun, or whose action surely did nothing.
WITH chain AS (UPDATE settled.chains SET version = version + 1 WHERE tenant = %(tenant)s AND id = %(chain_id)s AND ended_at IS NULL AND turned_at IS NULL RETURNING id),
moved AS (
    INSERT INTO settled.chain_steps AS step (begun_at, tenant, chain_id, position, name, tool, is_reversible, finished_at, finished_by, note, receipt, result)
    SELECT settled.now(), %(tenant)s, id, %(position)s, %(name)s, %(tool)s, %(is_reversible)s, settled.now(), %(by)s, %(note)s, %(receipt)s, %(result)s FROM chain
    ON CONFLICT (chain_id, tenant, position) DO UPDATE SET finished_at = settled.now(), finished_by = %(by)s, note = %(note)s,
        receipt = %(receipt)s, result = %(result)s, code = NULL, reason = NULL, action_id = NULL
    WHERE step.finished_at IS NULL AND (step.action_id IS NULL OR EXISTS (
        SELECT FROM settled.actions WHERE tenant = step.tenant AND id = step.action_id AND state IN ('failed', 'cancelled') AND superseded_by IS NULL))
    RETURNING *)
SELECT {step_columns} FROM moved

-- name: chain_undo_step
-- A person has undone by hand what no action undoes: a step without a way back, one that a person did, or one whose undoing did nothing.
-- Of this last one the action is undone in the same statement: it leaves the manual queue, where somebody would undo it once more.
WITH chain AS (UPDATE settled.chains SET version = version + 1 WHERE tenant = %(tenant)s AND id = %(chain_id)s AND ended_at IS NULL AND turned_at IS NOT NULL RETURNING id),
undone AS (
    UPDATE settled.actions AS done SET version = done.version + 1, previous = done.state, state = 'compensated', trigger = 'compensated',
        business_key = NULL, settled_at = settled.now(), reason = NULL
    FROM chain, settled.chain_steps AS step, settled.actions AS undo
    WHERE step.tenant = %(tenant)s AND step.chain_id = %(chain_id)s AND step.position = %(position)s AND undone_at IS NULL
        AND done.tenant = step.tenant AND done.id = step.action_id AND done.state = 'compensation_pending'
        AND undo.tenant = done.tenant AND undo.id = done.compensated_by AND undo.state IN ('failed', 'cancelled') AND undo.superseded_by IS NULL
    RETURNING done.*),
told AS (
    INSERT INTO settled.events (tenant, action_id, at, from_state, to_state, trigger, attempt, actor, correlation_id, trace_context, detail)
    SELECT tenant, id, settled_at, previous, state, trigger, attempt, %(by)s, correlation_id, trace_context,
        json_strip_nulls(json_build_object('chain', %(chain_id)s::text, 'step', %(name)s::text, 'note', %(note)s::text))
    FROM undone),
moved AS (
    UPDATE settled.chain_steps AS step SET undone_at = settled.now(), undone_by = %(by)s, undo_note = %(note)s FROM chain
    WHERE step.tenant = %(tenant)s AND step.chain_id = %(chain_id)s AND step.position = %(position)s AND undone_at IS NULL
        AND (finished_by IS NOT NULL OR EXISTS (SELECT FROM undone) OR EXISTS (
            SELECT FROM settled.actions AS done WHERE done.tenant = step.tenant AND done.id = step.action_id
                AND done.state = 'succeeded' AND (NOT is_reversible OR undo_reason IS NOT NULL)))
    RETURNING step.*)
SELECT {step_columns} FROM moved

-- name: chain_undone_by_hand
-- The run in which a person has said that an action is undone, and who said so.
SELECT chain_id, undone_by FROM settled.chain_steps WHERE tenant = %(tenant)s AND action_id = %(action_id)s AND undone_at IS NOT NULL LIMIT 1

-- name: chain_not_undone
-- The undoing of a step could not begin; or it can now.
UPDATE settled.chain_steps SET undo_reason = %(reason)s
WHERE {this_step} AND undone_at IS NULL
RETURNING {step_columns}

-- name: chain_turn
-- A step failed for good: from here on it goes back.
WITH moved AS (
    UPDATE settled.chains SET version = version + 1, turned_at = settled.now(), failed_step = %(failed_step)s, code = %(code)s, reason = %(reason)s
    WHERE tenant = %(tenant)s AND id = %(chain_id)s AND version = %(version)s AND ended_at IS NULL AND turned_at IS NULL
    RETURNING *)
SELECT {chain_columns} FROM moved

-- name: chain_end
-- The run is over.
WITH moved AS (
    UPDATE settled.chains SET version = version + 1, ended_at = settled.now(), ended_as = %(ended_as)s
    WHERE tenant = %(tenant)s AND id = %(chain_id)s AND version = %(version)s AND ended_at IS NULL
    RETURNING *)
SELECT {chain_columns} FROM moved

-- name: chain_left_alone
-- Runs of all tenants that are not over and that nobody has carried on for a while, although nothing of them is under way: oldest first.
SELECT chain.tenant, chain.id, chain.name FROM settled.chains AS chain
    LEFT JOIN LATERAL (SELECT max(greatest(step.begun_at, step.finished_at, step.undone_at, action.settled_at, undo.settled_at)) AS at,
            bool_or(action.state IN ('planned', 'approved', 'running', 'unknown') OR undo.state IN ('planned', 'approved', 'running', 'unknown')) AS is_busy
        FROM settled.chain_steps AS step
            LEFT JOIN settled.actions AS action ON action.tenant = step.tenant AND action.id = step.action_id
            LEFT JOIN settled.actions AS undo ON undo.tenant = action.tenant AND undo.id = action.compensated_by
        WHERE step.tenant = chain.tenant AND step.chain_id = chain.id) AS last ON true
WHERE chain.ended_at IS NULL AND chain.name = ANY(%(names)s::text[]) AND NOT coalesce(last.is_busy, false)
    AND coalesce(last.at, chain.begun_at) < settled.now() - %(grace)s::interval
ORDER BY chain.begun_at LIMIT %(most)s

-- name: chain_forget
-- Forget runs that were over so long ago, with their steps; those whose conversation still has an open one stay.
WITH gone AS (
    DELETE FROM settled.chains USING (
        SELECT tenant, id FROM settled.chains AS old
        WHERE ended_at < settled.now() - %(older_than)s::interval AND NOT EXISTS (SELECT FROM settled.chains AS open
            WHERE open.tenant = old.tenant AND open.thread_id = old.thread_id AND open.ended_at IS NULL)
        LIMIT %(most)s FOR UPDATE SKIP LOCKED) AS old
    WHERE chains.tenant = old.tenant AND chains.id = old.id
    RETURNING chains.tenant, chains.id),
steps AS (DELETE FROM settled.chain_steps USING gone WHERE chain_steps.tenant = gone.tenant AND chain_id = gone.id)
SELECT count(*) FROM gone
