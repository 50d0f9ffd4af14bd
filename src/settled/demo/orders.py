"""The tools of the shop's agent: an order is a chain, verify coupon → deduct coupon → ship.

Declared as an author would declare them for a service of somebody else. A coupon that was deducted can be given back; a
parcel that was shipped cannot be called back, and the chain says so before it starts.
"""

from typing import TYPE_CHECKING, Any

from settled.demo.models import ORDER
from settled.demo.records import Records
from settled.demo.tools import BACKOFF, DEADLINE_S, SETTLE_WINDOW_S, TIMEOUT_S, Name
from settled.graph.chain import Chain, chain
from settled.tools import http
from settled.tools.after import Compensation, Done
from settled.tools.chains import OnFailure, SoFar, step
from settled.tools.contract import ActionTool, action

if TYPE_CHECKING:
    import httpx2

SUMMARY = {
    "en": "order {order_id}: {item}, with the coupon {coupon}",
    "zh": "订单 {order_id}：{item}，使用优惠券 {coupon}",
}
DEDUCTED = {"en": "coupon {coupon} for {order_id}", "zh": "为 {order_id} 扣除优惠券 {coupon}"}
GIVEN_BACK = {"en": "give back coupon {coupon} of {order_id}", "zh": "退还 {order_id} 的优惠券 {coupon}"}
SHIPPED = {"en": "ship {item} for {order_id}", "zh": "为 {order_id} 发货 {item}"}


def place_order(url: str, *, on_failure: OnFailure) -> Chain:
    """Return the chain for the service at `url`."""
    client = http.client(base_url=url, timeout=TIMEOUT_S)
    return chain(
        ORDER,
        [
            step("verify_coupon", _verify(client)),
            step("deduct_coupon", _deduct(client), arguments=_what_it_is_worth),
            step("ship", _ship(client)),
        ],
        on_failure=on_failure,
        identity=("order_id",),
        description="Place an order that is paid for with a coupon.",
        summary=SUMMARY,
    )


def _what_it_is_worth(so_far: SoFar) -> dict[str, Any]:
    given = {name: so_far.input[name] for name in ("order_id", "coupon")}
    return {**given, "worth": so_far["verify_coupon"].result["worth"]}


def _what_was_deducted(done: Done) -> dict[str, Any]:
    return {**{name: done.arguments[name] for name in ("order_id", "coupon")}, "deducted": done.receipt}


def _verify(client: "httpx2.Client") -> ActionTool:
    @action(risk="read", timeout=TIMEOUT_S, deadline=DEADLINE_S, backoff=BACKOFF)
    def verify_coupon(coupon: Name) -> dict[str, Any]:
        """Look a coupon up: what it is worth."""
        return dict(client.get(f"/coupons/{coupon}").raise_for_status().json())

    return verify_coupon


def _deduct(client: "httpx2.Client") -> ActionTool:
    coupons = Records(client, "coupons")

    @action(
        **_writing(coupons, ("order_id", "coupon"), DEDUCTED),
        unique=("order_id", "coupon"),
        compensate=Compensation(_give_back(client), _what_was_deducted),
    )
    def deduct_coupon(order_id: Name, coupon: Name, worth: float) -> dict[str, Any]:
        """Deduct a coupon for an order."""
        return coupons.make(order_id=order_id, coupon=coupon, worth=worth)

    return deduct_coupon


def _give_back(client: "httpx2.Client") -> ActionTool:
    returns = Records(client, "returns")

    @action(**_writing(returns, ("order_id", "coupon"), GIVEN_BACK))
    def give_back_coupon(order_id: Name, coupon: Name, deducted: Name) -> dict[str, Any]:
        """Give a coupon back that was deducted under this receipt."""
        return returns.make(order_id=order_id, coupon=coupon, deducted=deducted)

    return give_back_coupon


def _ship(client: "httpx2.Client") -> ActionTool:
    shipments = Records(client, "shipments")

    @action(**_writing(shipments, ("order_id", "item"), SHIPPED), unique=("order_id", "item"))
    def ship(order_id: Name, item: Name) -> dict[str, Any]:
        """Ship an article for an order."""
        return shipments.make(order_id=order_id, item=item)

    return ship


def _writing(records: Records, identity: tuple[str, ...], summary: dict[str, str]) -> dict[str, Any]:
    """Return what the writes of the shop have in common: the service recognises a repeat, and can be asked."""
    return {
        "risk": "non_idempotent_write",
        "remote": "dedupes",
        "identity": identity,
        "query": records.find,
        "timeout": TIMEOUT_S,
        "deadline": DEADLINE_S,
        "backoff": BACKOFF,
        "settle_window": SETTLE_WINDOW_S,
        "summary": summary,
    }
