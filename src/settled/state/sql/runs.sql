-- Threads and runs of the chat server. Whatever is written for a run is guarded by its fencing token, and may be sent twice.

-- name: _is_live
status IN ('pending', 'running')

-- name: _thread
thread_id, created_at, updated_at, title, metadata,
    CASE WHEN EXISTS (
            SELECT 1 FROM settled.runs WHERE runs.thread_id = chat_threads.thread_id AND runs.tenant = chat_threads.tenant AND {is_live})
        THEN 'busy'
        ELSE coalesce((
            SELECT CASE WHEN status = 'error' THEN 'error' WHEN status = 'interrupted' AND cancel_asked_at IS NULL THEN 'interrupted' END
            FROM settled.runs WHERE runs.thread_id = chat_threads.thread_id AND runs.tenant = chat_threads.tenant
            ORDER BY number DESC LIMIT 1), 'idle') END AS status

-- name: _run
tenant, run_id, thread_id, agent, created_at, updated_at, status, multitask_strategy, requester, roles, request, metadata,
    fingerprint, fencing_token, tries, cancel_asked_at, cancelled_by, checkpoint_id, error, has_events

-- name: begin_thread
-- Begin a thread unless there is one of that name.
INSERT INTO settled.chat_threads (created_at, updated_at, tenant, thread_id, metadata)
VALUES (settled.now(), settled.now(), %(tenant)s, %(thread_id)s, %(metadata)s::jsonb)
ON CONFLICT DO NOTHING RETURNING true

-- name: thread
-- Read one thread.
SELECT {thread} FROM settled.chat_threads WHERE thread_id = %(thread_id)s AND tenant = %(tenant)s

-- name: threads
-- Read threads, by their last change.
SELECT * FROM (
    SELECT {thread} FROM settled.chat_threads
    WHERE tenant = %(tenant)s AND metadata @> %(metadata)s::jsonb AND (%(ids)s::text[] IS NULL OR thread_id = ANY(%(ids)s::text[]))) AS found
WHERE %(status)s::text IS NULL OR status = %(status)s::text
ORDER BY updated_at DESC, thread_id LIMIT %(most)s::integer OFFSET %(skipped)s::integer

-- name: count_threads
-- Count threads, up to a bound.
SELECT count(*) FROM (
    SELECT 1 FROM (
        SELECT {thread} FROM settled.chat_threads WHERE tenant = %(tenant)s AND metadata @> %(metadata)s::jsonb) AS found
    WHERE %(status)s::text IS NULL OR status = %(status)s::text LIMIT %(most)s::integer) AS counted

-- name: change_thread
-- Put values into a thread's metadata.
UPDATE settled.chat_threads SET metadata = metadata || %(metadata)s::jsonb, updated_at = settled.now()
WHERE thread_id = %(thread_id)s AND tenant = %(tenant)s RETURNING {thread}

-- name: drop_thread
-- Remove a thread with its runs, unless one of them has not ended.
DELETE FROM settled.chat_threads
WHERE thread_id = %(thread_id)s AND tenant = %(tenant)s AND NOT EXISTS (
    SELECT 1 FROM settled.runs
    WHERE runs.thread_id = chat_threads.thread_id AND runs.tenant = chat_threads.tenant AND {is_live})
RETURNING true

-- name: begin_run
-- Begin a run of a thread, unless the request was made before, or it wants to be alone and is not, or too many wait.
WITH thread AS MATERIALIZED (
    SELECT tenant, thread_id FROM settled.chat_threads WHERE thread_id = %(thread_id)s AND tenant = %(tenant)s FOR KEY SHARE),
others AS MATERIALIZED (
    SELECT count(*) AS count FROM settled.runs WHERE thread_id = %(thread_id)s AND tenant = %(tenant)s AND {is_live}),
titled AS (
    UPDATE settled.chat_threads SET updated_at = settled.now(), title = coalesce(title, %(title)s::text) FROM thread
    WHERE chat_threads.thread_id = thread.thread_id AND chat_threads.tenant = thread.tenant)
INSERT INTO settled.runs (created_at, updated_at, not_before, due_at, tenant, run_id, thread_id, agent, requester, roles, status,
    multitask_strategy, request_key, fingerprint, request, metadata)
SELECT settled.now(), settled.now(), settled.now() + %(pause)s::interval, settled.now() + %(pause)s::interval, tenant, %(run_id)s, thread_id,
    %(agent)s, %(requester)s, %(roles)s::text[], 'pending', %(strategy)s, %(request_key)s::text, %(fingerprint)s, %(request)s::jsonb,
    %(metadata)s::jsonb
FROM thread, others
WHERE others.count < CASE %(strategy)s::text WHEN 'enqueue' THEN %(most)s::integer ELSE 1 END
ON CONFLICT DO NOTHING
RETURNING {run}

-- name: run_of_request
-- Read the run that a request has begun.
SELECT {run} FROM settled.runs WHERE thread_id = %(thread_id)s AND tenant = %(tenant)s AND request_key = %(request_key)s

-- name: run
-- Read one run of a thread.
SELECT {run} FROM settled.runs WHERE run_id = %(run_id)s AND tenant = %(tenant)s AND thread_id = %(thread_id)s

-- name: runs
-- Read the runs of a thread, newest first.
SELECT {run} FROM settled.runs
WHERE thread_id = %(thread_id)s AND tenant = %(tenant)s AND (%(status)s::text IS NULL OR status = %(status)s::text)
ORDER BY number DESC LIMIT %(most)s::integer OFFSET %(skipped)s::integer

-- name: drop_run
-- Remove a run that has ended.
DELETE FROM settled.runs
WHERE run_id = %(run_id)s AND tenant = %(tenant)s AND thread_id = %(thread_id)s AND NOT ({is_live}) RETURNING true

-- name: take
-- Take up runs whose time has come: of each thread the oldest, and none beside one that is running.
WITH due AS MATERIALIZED (
    SELECT run_id, tenant FROM settled.runs AS mine
    WHERE due_at <= (SELECT settled.now()) AND {is_live} AND agent = ANY(%(agents)s::text[])
        AND (status = 'running' OR NOT EXISTS (
            SELECT 1 FROM settled.runs AS other
            WHERE other.thread_id = mine.thread_id AND other.tenant = mine.tenant AND (other.status = 'running'
                OR (other.status = 'pending' AND other.number < mine.number AND other.not_before <= settled.now()))))
    ORDER BY due_at LIMIT %(most)s::integer FOR UPDATE OF mine SKIP LOCKED)
UPDATE settled.runs SET status = 'running', owner = %(owner)s, fencing_token = fencing_token + 1, tries = tries + 1,
    due_at = settled.now() + %(lease)s::interval, updated_at = settled.now()
FROM (SELECT run_id AS due_run, tenant AS due_tenant FROM due) AS due WHERE run_id = due_run AND tenant = due_tenant
RETURNING {run}

-- name: _mine
run_id = %(run_id)s AND tenant = %(tenant)s AND fencing_token = %(token)s AND owner = %(owner)s AND status = 'running'

-- name: _written
written AS (
    INSERT INTO settled.run_events (tenant, run_id, number, event, data)
    SELECT tenant, run_id, %(first)s::integer + place - 1, event, data
    FROM mine, unnest(%(events)s::text[], %(data)s::text[]) WITH ORDINALITY AS one (event, data, place)
    ON CONFLICT DO NOTHING)

-- name: append
-- Write down what a run has said since, and prolong its lease; answers whether somebody wants it cancelled.
WITH mine AS (
    UPDATE settled.runs SET due_at = settled.now() + %(lease)s::interval WHERE {mine}
    RETURNING tenant, run_id, cancel_asked_at IS NOT NULL AS is_cancelled),
{written}
SELECT is_cancelled FROM mine

-- name: last_event
-- Read the last event of a run.
SELECT number, event, data FROM settled.run_events WHERE run_id = %(run_id)s AND tenant = %(tenant)s ORDER BY number DESC LIMIT 1

-- name: finish
-- End a run, with its last events.
WITH mine AS (
    UPDATE settled.runs SET status = %(status)s, checkpoint_id = %(checkpoint_id)s, error = %(error)s::jsonb, updated_at = settled.now()
    WHERE {mine} RETURNING tenant, run_id, thread_id),
{written},
moved AS (
    UPDATE settled.chat_threads SET updated_at = settled.now() FROM mine
    WHERE chat_threads.thread_id = mine.thread_id AND chat_threads.tenant = mine.tenant)
SELECT true FROM mine

-- name: put_back
-- Leave a run to whoever takes it up next.
UPDATE settled.runs SET status = 'pending', owner = NULL, due_at = settled.now() + %(pause)s::interval, tries = tries - %(uncounted)s::integer,
    updated_at = settled.now()
WHERE {mine} RETURNING true

-- name: cancel
-- Ask for a run's end; one that nobody has begun has its end at once.
WITH asked AS (
    UPDATE settled.runs SET cancel_asked_at = coalesce(cancel_asked_at, settled.now()), cancelled_by = coalesce(cancelled_by, %(by)s),
        status = CASE status WHEN 'pending' THEN 'interrupted' ELSE status END, updated_at = settled.now()
    WHERE run_id = %(run_id)s AND tenant = %(tenant)s AND thread_id = %(thread_id)s AND {is_live}
    RETURNING {run})
SELECT * FROM asked

-- name: events
-- Read what a run has said after a number.
SELECT number, event, data FROM settled.run_events
WHERE run_id = %(run_id)s AND tenant = %(tenant)s AND number > %(after)s::integer ORDER BY number LIMIT %(most)s::integer

-- name: forget_events
-- Forget what ended runs have said, a while after their end.
WITH over AS MATERIALIZED (
    SELECT run_id, tenant FROM settled.runs
    WHERE has_events AND NOT ({is_live}) AND updated_at < (SELECT settled.now()) - %(kept)s::interval
    ORDER BY updated_at LIMIT %(most)s::integer FOR UPDATE SKIP LOCKED),
gone AS (
    DELETE FROM settled.run_events USING over WHERE run_events.run_id = over.run_id AND run_events.tenant = over.tenant)
UPDATE settled.runs SET has_events = false FROM over WHERE runs.run_id = over.run_id AND runs.tenant = over.tenant RETURNING true
