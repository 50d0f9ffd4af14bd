-- Every statement of the ticket service. It has a schema of its own: the ledger and the service share a server at most.

-- name: create_tables
-- Make the schema if it is not there; one process at a time.
DO $do$ BEGIN
    PERFORM pg_advisory_xact_lock(7369);
    IF to_regclass('tickets.records') IS NOT NULL THEN RETURN; END IF;
    CREATE SCHEMA IF NOT EXISTS tickets;
    CREATE SEQUENCE tickets.numbers START 55821;
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

-- name: create_ticket
-- The effect; no row when there is a ticket of this key, or an open one for this employee and invoice.
WITH made AS (
    INSERT INTO tickets.tickets (receipt, key, dedupes, employee_id, invoice_id, amount, over_limit)
    VALUES ('R-' || nextval('tickets.numbers'), %(key)s, %(dedupes)s, %(employee_id)s, %(invoice_id)s, %(amount)s, %(over_limit)s)
    ON CONFLICT DO NOTHING RETURNING *)
SELECT {ticket} FROM made

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
WITH done AS (UPDATE tickets.tickets SET status = 'cancelled' WHERE receipt = %(receipt)s RETURNING *)
SELECT {ticket} FROM done

-- name: load_ticket
-- One ticket by its receipt.
SELECT {ticket} FROM tickets.tickets WHERE receipt = %(receipt)s

-- name: count_tickets
-- The effects on one employee.
SELECT count(*) FROM tickets.tickets WHERE employee_id = %(employee_id)s

-- name: create_record
-- A refund, a coupon that is deducted or given back, a shipment, a notification; no row when there is one of this key.
WITH made AS (
    INSERT INTO tickets.records (receipt, kind, key, dedupes, body)
    VALUES (%(prefix)s || nextval('tickets.numbers'), %(kind)s, %(key)s, %(dedupes)s, %(body)s)
    ON CONFLICT DO NOTHING RETURNING *)
SELECT {record} FROM made

-- name: count_records
-- The effects of one kind on whoever, or whatever, this field of their body names.
SELECT count(*) FROM tickets.records WHERE kind = %(kind)s AND body ->> %(field)s = %(value)s

-- name: find_records
-- Records of one kind by key, or by the order they belong to.
SELECT {record} FROM tickets.records
WHERE kind = %(kind)s AND (%(key)s::text IS NULL OR key = %(key)s)
  AND (%(order_id)s::text IS NULL OR body ->> 'order_id' = %(order_id)s) AND created_at <= clock_timestamp() - %(lag)s::interval
ORDER BY created_at LIMIT 100
