"""An order chain at a far side that counts: verify coupon → deduct coupon → pay → ship, for tests of chains.

The far side is `Counter`, in memory (for crashes in one process), or a real `remote.Remote` (for processes that die).
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import Field

from remote import SHORT, _context
from settled import (
    Absent,
    Backoff,
    Compensation,
    Ended,
    Found,
    Inquiry,
    Ledger,
    Succeeded,
    World,
    action,
    current_action,
    http,
)
from settled.graph.chain import Chain, chain
from settled.tools.chains import step

Coupon = Annotated[str, Field(max_length=20)]
INPUT = {"coupon": "C-1", "order": "O-1"}
FORWARD = ("deduct_coupon", "pay", "ship")
"""The steps that change something; the first step is a read."""


@dataclass
class Counter:
    """A far side that does each thing once per key, as one that dedupes; `faults` are raised in the body, by tool."""

    effects: list[dict[str, Any]] = field(default_factory=list)
    faults: dict[str, Callable[[], object]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def do(self, what: str, **details: Any) -> Succeeded:
        """Carry out one effect, under the key of the action that runs; a fault comes before it."""
        if what in self.faults:
            self.faults[what]()
        key = current_action().idempotency_key
        with self.lock:
            self.effects.append({"what": what, "key": key, **details})
            receipt = f"R-{len(self.effects)}"
        if f"{what}, answered" in self.faults:
            self.faults[f"{what}, answered"]()
        return Succeeded({"receipt": receipt, **details}, receipt)

    def find(self, asked: Inquiry) -> Found | Absent:
        """Answer a query by key."""
        if "find" in self.faults:
            self.faults["find"]()
        for number, effect in enumerate(self.effects, 1):
            if effect["key"] == asked.idempotency_key:
                return Found(f"R-{number}", {"receipt": f"R-{number}"})
        return Absent()

    @property
    def done(self) -> list[str]:
        """What was done, in order."""
        return [effect["what"] for effect in self.effects]


def raising(error: BaseException) -> Callable[[], object]:
    """Return a fault."""

    def fault() -> None:
        raise error

    return fault


class Clock:
    """A clock for the ledger and for waiting: time passes when somebody waits, and at once."""

    def __init__(self) -> None:
        self.start, self.elapsed_s = datetime(2026, 1, 5, 12, tzinfo=UTC), 0.0

    def __call__(self) -> datetime:
        return self.start + timedelta(seconds=self.elapsed_s)

    def sleep(self, seconds: float) -> None:
        self.elapsed_s += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    def world(self, watch: Any = None) -> World:
        """Return a world in which waiting costs nothing."""
        return World(sleep=self.sleep, asleep=self.asleep, watch=watch)


def order_chain(
    far: Counter,
    *,
    on_failure: Any = "stop",
    asynchronous: bool = False,
    contracts: Mapping[str, Mapping[str, Any]] | None = None,
    names: Mapping[str, str] | None = None,
    more: Any = (),
    without: tuple[str, ...] = (),
    **options: Any,
) -> Chain:
    """Return the chain. `contracts` change its tools by name, `names` rename its steps, `more` are steps at the end."""
    tools = shop_tools(far, asynchronous=asynchronous, contracts=contracts)
    steps = [
        step("verify_coupon", tools["verify_coupon"]),
        step("deduct_coupon", tools["deduct_coupon"], arguments=_deducting),
        step("pay", tools["pay"]),
        step("ship", tools["ship"]),
    ]
    steps = [step_named(one, (names or {}).get(one.name, one.name)) for one in steps if one.name not in without]
    return chain("order", [*steps, *more], on_failure=on_failure, **options)


def step_named(one: Any, name: str) -> Any:
    from dataclasses import replace

    return replace(one, name=name)


def _deducting(so_far: Any) -> dict[str, Any]:
    return {"coupon": so_far.input["coupon"], "worth": so_far["verify_coupon"].result["worth"]}


def shop_tools(
    far: Counter, *, asynchronous: bool = False, contracts: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the tools: a read, three writes of which the last has no way back, and what undoes the other two."""
    base: dict[str, Any] = {
        "risk": "non_idempotent_write",
        "remote": "dedupes",
        "identity": "all",
        "query": far.find,
        "timeout": 5.0,
        "deadline": 10.0,
        "lease": 6.0,
        "settle_window": 5.0,
        "backoff": Backoff(first=1, cap=1, jitter=0.0),
    }

    def declared(name: str, function: Any, **more: Any) -> Any:
        kind = {**base, **more, **((contracts or {}).get(name, {})), "name": name}
        return action(**kind)(_made_async(function) if asynchronous else function)

    def give_back(receipt: str) -> Succeeded:
        """Give a coupon back."""
        return far.do("give_back", undoes=receipt)

    def refund(receipt: str) -> Succeeded:
        """Refund a payment."""
        return far.do("refund", undoes=receipt)

    def deduct_coupon(coupon: Coupon, worth: int) -> Succeeded:
        """Deduct a coupon."""
        return far.do("deduct_coupon", coupon=coupon, worth=worth)

    def pay(order: str) -> Succeeded:
        """Pay an order."""
        return far.do("pay", order=order)

    def ship(order: str) -> Succeeded:
        """Ship an order."""
        return far.do("ship", order=order)

    def verify_coupon(coupon: Coupon) -> dict[str, int]:
        """Look a coupon up."""
        if "verify_coupon" in far.faults:
            far.faults["verify_coupon"]()
        return {"worth": 5}

    undoing = {"deduct_coupon": declared("give_back", give_back), "pay": declared("refund", refund)}
    read = action(risk="read", name="verify_coupon", max_attempts=1)
    return {
        "verify_coupon": read(_made_async(verify_coupon) if asynchronous else verify_coupon),
        "deduct_coupon": declared("deduct_coupon", deduct_coupon, compensate=undoing["deduct_coupon"]),
        "pay": declared("pay", pay, compensate=undoing["pay"]),
        "ship": declared("ship", ship),
        "give_back": undoing["deduct_coupon"],
        "refund": undoing["pay"],
    }


def _made_async(function: Any) -> Any:
    from functools import wraps

    @wraps(function)
    async def twin(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return twin


def real_chain(url: str, *, on_failure: Any = "stop", approval: Any = None, refused: str | None = None) -> Chain:
    """Return the same chain at a real far side, without its read; the step `refused` is turned down for good."""

    def posting(what: str, **more: Any) -> Any:
        def body(order: str) -> dict[str, Any]:
            if what == refused:
                raise Ended(_rejected())
            with http.client(verify=_context(), timeout=30) as client:
                answer: dict[str, Any] = client.post(url, json={"order_id": order, "amount": 1, "what": what}).json()
            return answer

        body.__doc__ = what
        kind = {**SHORT, "query": _asking(url), "remote": "dedupes", **more, "name": what}
        return action(risk="non_idempotent_write", identity="all", **kind)(body)

    give_back = posting("give_back")
    back = Compensation(give_back, lambda done: {"order": done.arguments["order"]})
    deduct = posting("deduct_coupon", compensate=back)
    steps = [
        step("deduct_coupon", deduct),
        step("pay", posting("pay", approval=approval)),
        step("ship", posting("ship")),
    ]
    return chain("order", steps, on_failure=on_failure)


def _rejected() -> Any:
    from settled import Rejected

    return Rejected("no stock")


def _asking(url: str) -> Any:
    """As `remote.asking`, which compares the found fields with a payment's."""
    from settled import Inconclusive

    def find(asked: Inquiry) -> Found | Absent | Inconclusive:
        with http.client(verify=_context(), timeout=5) as client:
            try:
                answer = client.get(url, params={"key": asked.idempotency_key})
            except Exception as error:
                return Inconclusive(str(error))
        return Found(answer.json()["receipt"], answer.json()) if answer.status_code == 200 else Absent()

    return find


def kept(ledger: Ledger, chain_id: str | None) -> Any:
    """Return where a run stands, read without the code."""
    from settled.tools.chain_desk import ChainDesk

    return ChainDesk(ledger).show(str(chain_id))
