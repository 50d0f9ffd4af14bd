"""Declarations that contradict themselves: each is refused by the library, and marked here. Never run."""

from langchain_core.tools import tool

from settled import Found, Inquiry, action, as_action, http

shop = http.client(base_url="https://shop.example", timeout=5)


def find(asked: Inquiry) -> Found:
    answer = shop.get("/orders", params={"idempotency_key": asked.idempotency_key}).raise_for_status()
    return Found(answer.json()["receipt"], answer.json())


@action(risk="non_idempotent_write")  # <- refused-declaration
def without_identity(order_id: str) -> dict[str, object]:
    """Order."""
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


@action(risk="idempotent_write", remote="queryable")  # <- refused-declaration
def without_query(order_id: str) -> dict[str, object]:
    """Order."""
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


@action(risk="idempotent_write", remote="dedupes", query=find, timeout=10, lease=10)  # <- refused-declaration
def unleased(order_id: str) -> dict[str, object]:
    """Order."""
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


@action(risk="idempotent_write", remote="dedupes", query=find, timeout=40)  # <- refused-declaration
def past_its_deadline(order_id: str) -> dict[str, object]:
    """Order."""
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


@action(risk="idempotent_write", remote="dedupes", query=find)  # <- refused-declaration
def of_anything(**options: object) -> dict[str, object]:
    """Order."""
    return dict(shop.post("/orders", json=options).json())


@tool
def mail(to: str) -> str:
    """Send a mail."""
    return to


mailing = as_action(mail, risk="non_idempotent_write")  # <- refused-declaration


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id", "nonce"), query=find)
def accepted(order_id: str, nonce: str) -> dict[str, object]:  # <- volatile-key
    """Order."""
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


tools = [without_identity, without_query, unleased, past_its_deadline, of_anything, mailing, accepted]
