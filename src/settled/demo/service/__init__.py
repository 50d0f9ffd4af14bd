"""The ticket service of the demo: a real HTTP process on Postgres, with a switch for every fault.

It stands for somebody else's system, so it knows nothing of actions, ledgers or agents: it sees requests and their
`Idempotency-Key`. Start it with `python -m settled.demo.service --database-url URL --port 0`.

    app.py      the routes, and what became of a request whose process died
    hooks.py    webhooks that it is sent: verified, and acted on once
    visits.py   what goes wrong with a write, and the log
    answers.py  payloads and answers
    faults.py   the switches, and what a PUT /faults may say
    replies.py  answers that never arrive, or only half
    store.py    the statements of tickets.sql, as values
    life.py     it ends with the process that started it

One effect per key is the library's own `IdempotencyMiddleware`, as anybody's service would use it.
"""

SECRET = "SETTLED_DEMO_WEBHOOK_SECRET"
"""The variable of the environment in which both sides find the secret of webhooks: a command line is seen by others."""
