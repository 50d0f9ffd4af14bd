"""A ledger with a past: many settled actions, written behind its back, as years of work leave them."""

import psycopg

PAST = """
INSERT INTO settled.actions (planned_at, window_until, occurrence, tenant, id, thread_id, tool, contract_version,
    intent, idempotency_key, fingerprint, arguments, summary, version, fencing_token, attempt, started_at, deadline_at,
    settled_at, state, trigger, previous, approver, receipt, evidence, result)
SELECT at, at + interval '1 day', 0, 'default', 'act-0' || lpad(n::text, 15, '0'), 'past-' || n / 10, 'pay', 'v1',
    substr(sha256(n::text::bytea), 1, 20), 'key-' || n, sha256(n::text::bytea), '{"order_id": "O", "amount": 1}',
    'payment of order O', 2, 1, 1, at, at, at + interval '1 second', 'succeeded', 'succeed', 'running', 'policy',
    'R-' || n, 'reply', '{"receipt": "R", "order_id": "O", "amount": 1}'
FROM generate_series(1, %(many)s) AS n, LATERAL (SELECT now() - interval '400 days' + n * interval '1 second') AS d (at)
"""


def fill(url: str, many: int) -> None:
    """Write settled actions, all of them older than any frontier that a worker has left behind."""
    with psycopg.connect(url) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")  # a past has passed its guards long ago
        connection.execute(PAST, {"many": many})
        connection.execute("UPDATE settled.frontiers SET at = now() - interval '2 minutes'")
