"""What stands beside the actions, with a fault each, marked at its line (`# <- id`). Never run."""

from typing import Any
from uuid import uuid4

import requests
import tenacity
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode

from settled import Found, Inquiry, Ledger, Session, action, build_agent, chain, http, step

shop = http.client(base_url="https://shop.example", timeout=5)


def find(asked: Inquiry) -> Found:
    answer = shop.get("/orders", params={"idempotency_key": asked.idempotency_key}).raise_for_status()
    return Found(answer.json()["receipt"], answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def order(order_id: str) -> dict[str, object]:
    """Order."""
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find, compensate=order)
def reserve(order_id: str) -> dict[str, object]:
    """Reserve."""
    return dict(shop.post("/reservations", json={"order_id": order_id}).json())


ordering = chain(
    "ordering",
    steps=[
        step("reserve", reserve),
        step("order", order),  # <- irreversible-step
    ],
)


def send(order_id: str) -> str:
    return requests.post("https://shop.example/mails", json={"order_id": order_id}, timeout=5).text


@tool
def mail(order_id: str) -> str:  # <- unguarded-tool
    """Send a mail."""
    return send(order_id)


class Cancel(BaseTool):
    name: str = "cancel"
    description: str = "Cancel an order."

    def _run(self, order_id: str) -> str:  # <- unguarded-tool
        return requests.delete(f"https://shop.example/orders/{order_id}", timeout=5).text


def label(order_id: str) -> str:  # <- unguarded-tool
    """Print a label."""
    return requests.post("https://shop.example/labels", json={"order_id": order_id}, timeout=5).text


labels = StructuredTool.from_function(label)


def book(order_id: str) -> str:  # <- unguarded-tool
    """Book a courier."""
    return requests.post("https://courier.example", json={"order_id": order_id}, timeout=5).text


def notify(state: dict[str, Any]) -> dict[str, Any]:  # <- unguarded-tool
    requests.post("https://chat.example", json={"text": "ordered"}, timeout=5)
    return state


def login() -> str:
    return requests.post("https://shop.example/login", timeout=5).text  # <- unguarded-write


def serve(model: Any, ledger: Ledger, checkpointer: Any) -> None:
    nodes = ToolNode([order])  # <- plain-tool-node
    graph = StateGraph(dict).add_node("notify", notify).add_node("tools", nodes).add_edge(START, "notify").compile()
    graph.invoke({})  # <- direct-invoke
    plain = create_agent(model, [order, book])  # <- plain-tool-node
    plain.invoke({"messages": []})  # <- direct-invoke
    forgetful = build_agent(model, [order], ledger=ledger)  # <- forgetful-checkpointer
    Session(forgetful, ledger=ledger, thread_id="t").send("Order A.")  # <- no-message-id
    memory = InMemorySaver()  # <- forgetful-checkpointer
    agent = build_agent(model, [order], ledger=ledger, checkpointer=memory)
    session = Session(agent, ledger=ledger, thread_id="t")
    session.send("Order A.", message_id=str(uuid4()))  # <- no-message-id
    while True:  # <- retry-around-run
        try:
            session.send("Order A.")  # <- no-message-id
            break
        except TimeoutError:
            continue


def session_of(agent: Any, ledger: Ledger) -> Session:
    return Session(agent, ledger=ledger, thread_id="t")


def on_message(agent: Any, ledger: Ledger, text: str) -> str:
    return session_of(agent, ledger).send(text).text  # <- no-message-id


@tenacity.retry  # <- retry-around-run
async def aserve(model: Any, ledger: Ledger, checkpointer: Any) -> None:
    agent = build_agent(model, [order], ledger=ledger, checkpointer=checkpointer)
    async for _ in agent.astream({"messages": []}):  # <- direct-invoke
        pass
