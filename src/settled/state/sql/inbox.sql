-- The statements of `settled.state.inbox`: carried out on a consumer's own connection, in his transaction.

-- name: first_time
-- Whoever inserts the message is the one who acts; one that another transaction is inserting is waited for.
INSERT INTO settled.inbox (message_id, consumer) VALUES (%(message_id)s, %(consumer)s)
ON CONFLICT DO NOTHING RETURNING message_id

-- name: forget
-- Forget the oldest messages, a batch at a time; one that comes again afterwards is new.
WITH batch AS (
    SELECT message_id FROM settled.inbox
    WHERE consumer = %(consumer)s AND at < clock_timestamp() - %(older_than)s::interval
    LIMIT %(most)s::integer FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM settled.inbox AS old USING batch WHERE old.consumer = %(consumer)s AND old.message_id = batch.message_id RETURNING 1)
SELECT count(*) FROM gone

-- name: lock_tables
-- Wait for the right to create the tables, until the end of this transaction: of two that create one at once, one fails.
SELECT pg_advisory_xact_lock(7368)

-- name: create_tables
-- The table of an inbox in a database that has no ledger.
CREATE SCHEMA IF NOT EXISTS settled;
CREATE TABLE IF NOT EXISTS settled.inbox (
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    message_id text        NOT NULL,
    consumer   text        NOT NULL,
    PRIMARY KEY (message_id, consumer)
);
CREATE INDEX IF NOT EXISTS inbox_by_age ON settled.inbox USING brin (at)
