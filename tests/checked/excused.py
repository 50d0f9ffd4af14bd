"""Findings that their authors allow, rightly and wrongly; the wrong ones are marked (`# <- id`, `# ^ id`)."""

from settled import Found, Inquiry, action, http

shop = http.client(base_url="https://shop.example", timeout=5)


def find(asked: Inquiry) -> Found:
    answer = shop.get("/orders", params={"idempotency_key": asked.idempotency_key}).raise_for_status()
    return Found(answer.json()["receipt"], answer.json())


# The bank has one desk for this.
# settled: allow no-query - the bank cannot be asked
@action(risk="non_idempotent_write", identity=("iban",))
def above(iban: str) -> dict[str, object]:
    """Transfer."""
    return dict(shop.post("/transfers", json={"iban": iban}).json())


@action(risk="non_idempotent_write", identity=("iban",))  # settled: allow no-query: the bank cannot be asked
def inside(iban: str) -> dict[str, object]:
    """Transfer."""
    return dict(shop.post("/transfers", json={"iban": iban}).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def on_its_line(order_id: str) -> dict[str, object]:
    """Order."""
    shop.post("/orders", json={"order_id": order_id})
    return dict(
        shop.post("/log", json={}).json()
    )  # settled: allow several-writes - a log line, lost or doubled without harm


# settled: allow no-query
# ^ bad-allow
@action(risk="non_idempotent_write", identity=("iban",))
def without_a_reason(iban: str) -> dict[str, object]:  # <- no-query
    """Transfer."""
    return dict(shop.post("/transfers", json={"iban": iban}).json())


# settled: allow no-such-check - because
# ^ bad-allow
# settled: allow bad-allow - because
# ^ bad-allow
# settled: allow: because
# ^ bad-allow
# settled: allow free-text-key - there was one once
# ^ unused-allow
@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def of_nothing(order_id: str) -> dict[str, object]:
    """Order."""
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


# settled: allow volatile-key - this stands above another tool
# ^ unused-allow
@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def neighbour(order_id: str) -> dict[str, object]:
    """Order."""
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id", "nonce"), query=find)
def unexcused(order_id: str, nonce: str) -> dict[str, object]:  # <- volatile-key
    """Order."""
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


WORDS = "# settled: allow no-query - a text is no comment"
