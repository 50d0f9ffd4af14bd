-- Every statement of the ticket service. It has a schema of its own: the ledger and the service share a server at most.

-- name: create_tables
-- Make the schema if it is not there; one process at a time.
DO $do$ BEGIN
    PERFORM pg_advisory_xact_lock(7369);
    IF to_regclass('tickets.records') IS NOT NULL THEN RETURN; END IF;
    CREATE SCHEMA IF NOT EXISTS tickets;
    CREATE SEQUENCE tickets.numbers START 55821;
    CREATE TABLE tickets.keys (
        key         text        PRIMARY KEY,
        claimant    text        NOT NULL,
        fingerprint text        NOT NULL,
        claimed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
        status      integer,
        answer      json);
    CREATE TABLE tickets.tickets (
        receipt     text          PRIMARY KEY,
        key         text          NOT NULL,
        dedupes     boolean       NOT NULL,
        employee_id text          NOT NULL,
        invoice_id  text          NOT NULL,
        amount      numeric(14,2) NOT NULL,
        over_limit  numeric(14,2) NOT NULL,
        status      text          NOT NULL DEFAULT 'open',
        created_at  timestamptz   NOT NULL DEFAULT clock_timestamp());
    CREATE UNIQUE INDEX one_ticket_per_key ON tickets.tickets (key) WHERE dedupes;
    CREATE UNIQUE INDEX one_open_ticket ON tickets.tickets (employee_id, invoice_id) WHERE dedupes AND status = 'open';
    CREATE INDEX tickets_of_employee ON tickets.tickets (employee_id, invoice_id);
    CREATE TABLE tickets.records (
        receipt     text        PRIMARY KEY,
        kind        text        NOT NULL,
        key         text        NOT NULL,
        dedupes     boolean     NOT NULL,
        body        json        NOT NULL,
        created_at  timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE UNIQUE INDEX one_record_per_key ON tickets.records (kind, key) WHERE dedupes;
END $do$

-- name: _ticket
-- A ticket as the service shows it.
json_build_object('receipt', receipt, 'employee_id', employee_id, 'invoice_id', invoice_id, 'amount', amount,
    'over_limit', over_limit, 'status', status, 'created_at', created_at)

-- name: _record
-- Anything else as the service shows it.
jsonb_build_object('receipt', receipt, 'created_at', created_at) || body::jsonb

-- name: claim_key
-- Whoever inserts the key is the one who acts.
INSERT INTO tickets.keys (key, claimant, fingerprint) VALUES (%(key)s, %(claimant)s, %(fingerprint)s)
ON CONFLICT DO NOTHING RETURNING claimant

-- name: load_key
-- What is known under a key.
SELECT claimant, fingerprint, status, answer FROM tickets.keys WHERE key = %(key)s

-- name: store_answer
-- Keep the answer of a request that had no effect.
UPDATE tickets.keys SET status = %(status)s, answer = %(answer)s WHERE key = %(key)s AND status IS NULL RETURNING key

-- name: create_ticket
-- The effect and the stored answer, in one commit; no row when there is an open ticket for this employee and invoice.
WITH made AS (
    INSERT INTO tickets.tickets (receipt, key, dedupes, employee_id, invoice_id, amount, over_limit)
    VALUES ('R-' || nextval('tickets.numbers'), %(key)s, %(dedupes)s, %(employee_id)s, %(invoice_id)s, %(amount)s, %(over_limit)s)
    ON CONFLICT DO NOTHING RETURNING *),
answered AS (SELECT key, {ticket} AS answer FROM made),
stored AS (
    UPDATE tickets.keys SET status = 201, answer = answered.answer FROM answered WHERE keys.key = answered.key)
SELECT answer FROM answered

-- name: open_ticket
-- The ticket that stands in the way of another.
SELECT {ticket} FROM tickets.tickets WHERE employee_id = %(employee_id)s AND invoice_id = %(invoice_id)s AND status = 'open'

-- name: find_tickets
-- Tickets by key, or by employee and invoice; a lagging replica does not show the newest.
SELECT {ticket} FROM tickets.tickets
WHERE (%(key)s::text IS NULL OR key = %(key)s) AND (%(employee_id)s::text IS NULL OR employee_id = %(employee_id)s)
  AND (%(invoice_id)s::text IS NULL OR invoice_id = %(invoice_id)s) AND created_at <= clock_timestamp() - %(lag)s::interval
ORDER BY created_at LIMIT 100

-- name: cancel_ticket
-- Cancel a ticket; a cancelled one stays cancelled, and no row means that there is none.
WITH done AS (UPDATE tickets.tickets SET status = 'cancelled' WHERE receipt = %(receipt)s RETURNING *),
answered AS (SELECT {ticket} AS answer FROM done),
stored AS (UPDATE tickets.keys SET status = 200, answer = answered.answer FROM answered WHERE keys.key = %(key)s)
SELECT answer FROM answered

-- name: count_tickets
-- The effects on one employee.
SELECT count(*) FROM tickets.tickets WHERE employee_id = %(employee_id)s

-- name: create_record
-- A refund, coupon, shipment or notification, and the stored answer, in one commit.
WITH made AS (
    INSERT INTO tickets.records (receipt, kind, key, dedupes, body)
    VALUES (%(prefix)s || nextval('tickets.numbers'), %(kind)s, %(key)s, %(dedupes)s, %(body)s)
    ON CONFLICT DO NOTHING RETURNING *),
answered AS (SELECT key, {record} AS answer FROM made),
stored AS (
    UPDATE tickets.keys SET status = 201, answer = answered.answer FROM answered WHERE keys.key = answered.key)
SELECT answer FROM answered

-- name: find_records
-- Refunds, coupons, shipments or notifications by key, or by the order they belong to.
SELECT {record} FROM tickets.records
WHERE kind = %(kind)s AND (%(key)s::text IS NULL OR key = %(key)s)
  AND (%(order_id)s::text IS NULL OR body ->> 'order_id' = %(order_id)s) AND created_at <= clock_timestamp() - %(lag)s::interval
ORDER BY created_at LIMIT 100
