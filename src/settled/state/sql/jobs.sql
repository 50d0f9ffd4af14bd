-- The queue's own tables live in a schema of their own, so that they never meet those of an application that uses the same queue.

-- name: is_set_up
-- Whether the queue's tables are there.
SELECT to_regclass('settled_jobs.procrastinate_jobs') IS NOT NULL

-- name: create_schema
-- The schema of the queue, and the only one that its set-up writes to.
CREATE SCHEMA IF NOT EXISTS settled_jobs

-- name: begin
-- Anything at all: a driver that begins transactions by itself has begun one then, and a savepoint is one.
SELECT true

-- name: enter_schema
-- Let unqualified names mean the queue's; answers what they meant before.
SELECT current_setting('search_path'), set_config('search_path', 'settled_jobs, pg_temp', true)

-- name: leave_schema
-- Let unqualified names mean again what they meant before.
SELECT set_config('search_path', %(path)s, true)
