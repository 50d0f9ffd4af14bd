"""A `Session` over somebody else's graph: LangChain's `create_agent` with `ActionMiddleware`, and a graph with an
`ActionNode`. The lock, the dedupe, "what is open goes first", the repair and the decisions are those of `build_agent`.
"""

import asyncio
import operator
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, tools_condition
from langgraph.types import Command, interrupt

from acts import states
from scripted import Remote, ScriptedModel, call, calling
from settled import (
    Approve,
    ContractError,
    Desk,
    Edit,
    Happened,
    Ledger,
    NotFound,
    Reject,
    Session,
    ThreadBusy,
    action,
    always,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
)
from settled.graph.middleware import ActionMiddleware
from settled.graph.node import ActionNode
from settled.tools.contract import ActionTool
from settled.tools.decisions import Decision


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def first_turn(*calls: dict[str, Any]) -> Any:
    """A model that calls these in its thread's first turn, and talks afterwards."""

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return calling(*calls) if len(messages) == 1 else AIMessage("understood")
        return AIMessage(str(messages[-1].content).split("\n")[0])

    return script


class House:
    """Somebody's agent with a payment that may ask, a mail that always asks, and a plain tool that has no ledger."""

    def __init__(self, kind: str, ledger: Ledger, savers: tuple[Any, Any], remote: Remote) -> None:
        self.kind = kind
        self.ledger = ledger
        self.savers = savers
        self.remote = remote
        self.during: Any = lambda: None
        self.plain_runs = 0
        self.tenant: str | None = None
        self.raises: list[Exception] = []
        self.more_tools: list[Any] = []

    def serve(self, script: Any, approval: Any = None, *more: Any) -> None:
        declared: dict[str, Any] = {"risk": "non_idempotent_write", "identity": "all", "remote": "opaque"}
        paying = {**declared, "approval": approval}

        @action(**paying)
        def pay(payee: str, amount: float) -> dict[str, Any]:
            """Pay somebody."""
            done = self.remote.act(current_action().idempotency_key, payee=payee, amount=amount)
            self.during()
            return done

        @action(**declared, approval=always)
        def mail(to: str) -> dict[str, Any]:
            """Write to somebody."""
            return self.remote.act(current_action().idempotency_key, to=to)

        @tool
        def note(text: str) -> str:
            """Write something down."""
            self.plain_runs += 1
            if self.raises:
                raise self.raises.pop()
            return "noted"

        self.model = ScriptedModel(script=script)
        build = {"middleware": self._with_middleware, "node": self._with_node}[self.kind]
        self.agents = [build([pay, mail, note, *self.more_tools], saver, more) for saver in self.savers]

    def _with_middleware(self, tools: list[Any], saver: Any, more: Sequence[Any]) -> Any:
        middleware = [*more, ActionMiddleware(ledger=self.ledger, tenant=self.tenant)]
        return create_agent(self.model, tools, middleware=middleware, checkpointer=saver)

    def _with_node(self, tools: list[Any], saver: Any, more: Sequence[Any]) -> Any:
        bound = self.model.bind_tools(tools)
        graph = StateGraph(Chat)
        graph.add_node("chat", lambda state: {"messages": [bound.invoke(state["messages"])]})
        graph.add_node("tools", ActionNode(tools, ledger=self.ledger, tenant=self.tenant))
        graph.add_edge(START, "chat")
        graph.add_conditional_edges("chat", tools_condition, {"tools": "tools", "__end__": END})
        graph.add_edge("tools", "chat")
        return graph.compile(checkpointer=saver)

    def session(self, **options: Any) -> Session:
        return Session(self.agents[0], ledger=self.ledger, **{"thread_id": "t", **options})

    def asession(self, **options: Any) -> Session:
        return Session(self.agents[1], ledger=self.ledger, **{"thread_id": "t", **options})

    async def send(self, text: str, **options: Any) -> Any:
        message = {"message_id": options.pop("message_id", None)}
        return await asyncio.to_thread(self.session(**options).send, text, **message)

    async def decide(self, action_id: str, decision: Decision) -> Any:
        return await asyncio.to_thread(self.session().decide, action_id, decision, by="sue")

    async def run(self, mode: str, what: str, *args: Any, **options: Any) -> Any:
        """Call a session by one of its two ways."""
        if mode == "async":
            return await getattr(self.asession(), f"a{what}")(*args, **options)
        return await asyncio.to_thread(getattr(self.session(), what), *args, **options)

    async def at_desk(self, asked: Any, decision: Decision) -> None:
        """A person decides on a request, and nobody runs the thread."""
        shown = {"by": "sue", "fingerprint": asked["fingerprint"]}
        await asyncio.to_thread(Desk(self.ledger).decide, asked["action_id"], decision, **shown)

    async def resolve(self, resolution: Any) -> None:
        """A person says what became of the first action."""
        first = self.ledger.actions(thread_id="t")[-1]
        desk = Desk(self.ledger)
        await asyncio.to_thread(desk.resolve, first.id, resolution, by="ops", fingerprint=first.fingerprint)

    def is_at_rest(self) -> bool:
        state = self.agents[0].get_state(self.session().config)
        return state.tasks == () and state.next == ()

    def messages(self) -> list[BaseMessage]:
        messages: list[BaseMessage] = self.agents[0].get_state(self.session().config).values["messages"]
        return messages

    def codes(self) -> list[Any]:
        return [(m.artifact or {}).get("code") for m in self.messages() if isinstance(m, ToolMessage)]


@pytest.fixture(params=["middleware", "node"])
async def house(request: pytest.FixtureRequest, ledger: Ledger, database_url: str) -> AsyncIterator[House]:
    remote = await asyncio.to_thread(Remote, database_url)
    with open_checkpointer(ledger) as saver:
        async with aopen_checkpointer(ledger) as asaver:
            yield House(request.param, ledger, (saver, asaver), remote)


PAY = call("pay", "p", payee="ann", amount=100)
MAIL = call("mail", "m", to="ben")
NOTE = call("note", "n", text="x")


def kinds(messages: Sequence[BaseMessage]) -> str:
    return "".join(type(message).__name__[0] for message in messages)


def all_answered(messages: Sequence[BaseMessage]) -> bool:
    """Whether each message with calls is followed by their answers, as providers demand."""
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage) and message.tool_calls:
            ids = {one["id"] for one in message.tool_calls}
            after = messages[index + 1 : index + 1 + len(ids)]
            if {one.tool_call_id for one in after if isinstance(one, ToolMessage)} != ids:
                return False
    return True


async def test_a_turn_has_a_reply_and_a_message_is_accepted_once(house: House) -> None:
    house.serve(first_turn(PAY, NOTE))
    first = await house.send("please", message_id="m1")
    assert first.is_finished
    assert kinds(house.messages()) == "HATTA"
    again = await house.send("please", message_id="m1")
    assert again.text == first.text
    assert kinds((await house.asession().aresume()).messages) == "ATTA"
    assert kinds(house.messages()) == "HATTA"
    assert (house.remote.count(), house.plain_runs) == (1, 1)


async def test_a_double_click_has_one_effect_and_one_answer(house: House) -> None:
    house.serve(first_turn(PAY))
    house.during = lambda: threading.Event().wait(0.2)
    replies = await asyncio.gather(*(house.send("please", message_id="m1") for _ in range(3)))
    assert len({reply.text for reply in replies}) == 1
    assert kinds(house.messages()) == "HATA"
    assert house.remote.count() == 1


async def test_the_lock_is_one_for_all_sessions(house: House) -> None:
    house.serve(first_turn(PAY))
    inside, go_on = threading.Event(), threading.Event()

    def during() -> None:
        inside.set()
        go_on.wait(10)

    house.during = during
    running = asyncio.ensure_future(house.send("please"))
    assert await asyncio.to_thread(inside.wait, 10)
    with pytest.raises(ThreadBusy):
        await house.asession(wait_s=0.1).asend("hurry")
    go_on.set()
    assert (await running).is_finished


async def test_what_is_open_goes_first(house: House) -> None:
    house.serve(first_turn(PAY))
    drained = house.session()
    house.during = drained.drain
    reply = await asyncio.to_thread(drained.send, "please")
    assert not reply.is_finished
    house.during = lambda: None
    assert (await house.asession().asend("and now?")).text == "understood"
    assert kinds(house.messages()) == "HATAHA"
    assert house.remote.count() == 1


@pytest.mark.parametrize(("decision", "count", "code"), [(Approve(), 1, "succeeded"), (Reject("no"), 0, "denied")])
async def test_a_decision_carries_the_thread_on(house: House, decision: Any, count: int, code: str) -> None:
    house.serve(first_turn(PAY, NOTE), always)
    reply = await house.send("please")
    (one,) = reply.approvals
    assert (one["name"], one["args"]) == ("pay", {"payee": "ann", "amount": 100.0})
    assert not reply.is_finished
    done = await house.decide(one["action_id"], decision)
    assert done.is_finished
    assert house.remote.count() == count
    assert code in house.codes()
    assert all_answered(house.messages())
    assert house.plain_runs == 1


async def test_of_two_that_wait_one_is_decided_after_the_other(house: House) -> None:
    house.serve(first_turn(PAY, MAIL), always)
    pay, mail = sorted((await house.send("please")).approvals, key=lambda one: str(one["name"]), reverse=True)
    reply = await house.decide(mail["action_id"], Approve())
    assert [one["action_id"] for one in reply.approvals] == [pay["action_id"]]
    assert house.remote.count() == 1
    done = await house.asession().adecide(pay["action_id"], Approve(), by="sue")
    assert done.is_finished
    assert house.remote.count() == 2
    assert all_answered(house.messages())


async def test_an_edit_needs_no_call_before_it_in_this_process(house: House) -> None:
    """As after a restart: the graph is built anew, and knows its tools."""
    house.serve(first_turn(PAY), always)
    (one,) = (await house.send("please")).approvals
    house.serve(first_turn(PAY), always)
    second = await house.decide(one["action_id"], Edit({"amount": 40}))
    (changed,) = second.approvals
    assert changed["args"]["amount"] == 40.0
    assert (await house.decide(changed["action_id"], Approve())).is_finished
    assert house.codes() == ["changed_by_person"]
    assert house.remote.count() == 1


async def test_a_new_message_keeps_the_request_open(house: House) -> None:
    house.serve(first_turn(PAY), always)
    (one,) = (await house.send("please")).approvals
    reply = await house.send("and now?")
    assert reply.text == "understood"
    assert kinds(house.messages()) == "HATHA"
    assert house.codes() == ["waiting_for_approval"]
    assert states(house.ledger.url) == ["planned"]
    with pytest.raises(NotFound):
        await asyncio.to_thread(house.session(thread_id="other").decide, one["action_id"], Approve(), by="sue")


@pytest.mark.parametrize("while_open", ["reject", "withdraw"])
async def test_what_a_new_message_does_to_a_request_can_be_said(house: House, while_open: Any) -> None:
    house.serve(first_turn(PAY), always)
    await house.send("please")
    if while_open == "reject":
        with pytest.raises(ThreadBusy):
            await house.send("and now?", while_open=while_open)
        assert states(house.ledger.url) == ["planned"]
    else:
        assert (await house.send("and now?", while_open=while_open)).text == "understood"
        assert states(house.ledger.url) == ["cancelled"]
        assert all_answered(house.messages())
    assert house.remote.count() == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_what_is_approved_late_is_carried_out_and_told_in_its_place(house: House, mode: str) -> None:
    house.serve(first_turn(PAY), always)
    (one,) = (await house.run(mode, "send", "please")).approvals
    await house.run(mode, "send", "and now?")
    await house.at_desk(one, Approve())
    reply = await house.run(mode, "send", "hello again", message_id="m3")
    assert kinds(house.messages()) == "HATHAAHA"
    assert kinds(reply.messages) == "AA"
    assert "R-1" in reply.messages[0].text
    assert reply.text == "understood"
    assert house.codes() == ["succeeded"]
    assert house.model._shown[-1][2].text.startswith(reply.messages[0].text)
    assert all_answered(house.messages())
    assert house.is_at_rest()
    again = await house.run(mode, "send", "hello again", message_id="m3")
    assert kinds(again.messages) == "A"
    assert kinds(house.messages()) == "HATHAAHA"
    assert house.remote.count() == 1


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_what_is_approved_late_is_told_once_on_resume(house: House, mode: str) -> None:
    house.serve(first_turn(PAY, MAIL), always)
    asked = (await house.run(mode, "send", "please")).approvals
    await house.run(mode, "send", "and now?")
    for one in asked:
        await house.at_desk(one, Approve())
    reply = await house.run(mode, "resume")
    assert reply.is_finished
    assert reply.text.count("R-") == 2
    assert house.is_at_rest()
    assert (await house.run(mode, "resume")).text == reply.text
    assert kinds(house.messages()) == "HATTHAA"
    assert house.codes() == ["succeeded", "succeeded"]
    assert house.remote.count() == 2


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_what_a_person_found_out_late_is_told_once(house: House, mode: str) -> None:
    house.serve(first_turn(PAY))

    def lose() -> None:
        raise RuntimeError("no reply")

    house.during = lose
    await house.run(mode, "send", "please")
    assert house.codes() == ["manual_review"]
    await house.resolve(Happened("RF-9"))
    reply = await house.run(mode, "resume")
    assert "RF-9" in reply.text
    assert house.is_at_rest()
    assert (await house.run(mode, "send", "and now?")).text == "understood"
    assert kinds(house.messages()) == "HATAAHA"
    assert house.codes() == ["succeeded"]
    assert house.remote.count() == 1


async def test_a_late_rejection_and_a_late_edit_are_told(house: House) -> None:
    house.serve(first_turn(PAY, MAIL), always)
    pay, mail = sorted((await house.send("please")).approvals, key=lambda one: str(one["name"]), reverse=True)
    await house.send("and now?")
    reply = await house.decide(mail["action_id"], Reject("no"))
    assert house.codes() == ["waiting_for_approval", "denied"]
    reply = await house.decide(pay["action_id"], Edit({"amount": 40}))
    changed = house.ledger.actions(thread_id="t")[0]
    await house.at_desk({"action_id": changed.id, "fingerprint": changed.fingerprint}, Approve())
    reply = await house.run("sync", "resume")
    assert "R-1" in reply.text
    assert house.codes() == ["changed_by_person", "denied"]
    assert all_answered(house.messages())
    assert house.remote.count() == 1


async def test_a_crash_after_it_was_carried_out_late_loses_no_word(house: House, monkeypatch: Any) -> None:
    """The ledger has it: the next look tells it, and nothing runs twice."""
    house.serve(first_turn(PAY), always)
    (one,) = (await house.send("please")).approvals
    await house.send("and now?")
    await house.at_desk(one, Approve())
    with monkeypatch.context() as patch:
        patch.setattr("settled.graph.driving.Driver._update", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await house.run("sync", "resume")
    assert house.codes() == ["waiting_for_approval"]
    assert house.remote.count() == 1
    assert "R-1" in (await house.run("sync", "resume")).text
    assert house.codes() == ["succeeded"]
    assert house.remote.count() == 1


async def test_what_is_approved_while_another_request_is_open_is_carried_out_and_told_later(house: House) -> None:
    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        told = isinstance(messages[-1], ToolMessage) or messages[-1].text == "and now?"
        return AIMessage("understood") if told else calling(PAY if len(messages) == 1 else MAIL)

    house.serve(script, always)
    (pay,) = (await house.send("please")).approvals
    await house.send("and now?")
    (mail,) = (await house.send("a mail, too")).approvals
    await house.at_desk(pay, Approve())
    reply = await house.run("sync", "resume")
    assert [one["action_id"] for one in reply.approvals] == [mail["action_id"]]
    assert house.remote.count() == 1
    done = await house.decide(mail["action_id"], Approve())
    assert done.is_finished
    assert house.codes() == ["succeeded", "succeeded"]
    assert house.is_at_rest()
    assert house.remote.count() == 2


async def test_a_tool_that_takes_arguments_from_its_graph_is_left_and_told_when_it_is_done(house: House) -> None:
    @action(risk="non_idempotent_write", identity="all", remote="opaque", approval=always)
    def hand_over(to: str, seen: Annotated[dict[str, Any], InjectedState]) -> dict[str, Any]:
        """Give it to somebody."""
        return house.remote.act(current_action().idempotency_key, to=to)

    house.more_tools = [hand_over]
    house.serve(first_turn(call("hand_over", "h", to="cid"), call("hand_over", "i", to="dot"), PAY), always)
    cid, dot, pay = sorted((await house.send("please")).approvals, key=lambda one: str(one["args"].get("to", "z")))
    await house.send("and now?")
    await house.at_desk(cid, Approve())
    await house.at_desk(pay, Approve())
    assert "R-1" in (await house.run("sync", "resume")).text
    assert (await house.send("well?")).text == "understood"
    assert house.codes() == ["waiting_for_approval", "waiting_for_approval", "succeeded"]
    await house.at_desk(dot, Reject("no"))
    assert (await house.run("sync", "resume")).is_finished
    assert house.codes() == ["waiting_for_approval", "denied", "succeeded"]
    assert kinds(house.messages()) == "HATTTHAAHAA"
    assert house.remote.count() == 1


async def test_a_plain_tool_that_fails_each_time_does_not_hold_the_thread(house: House) -> None:
    """The call beside it was made once; of the plain one nobody can say whether it took effect."""
    house.serve(first_turn(PAY, NOTE))
    house.raises = [RuntimeError("down") for _ in range(4)]
    with pytest.raises(RuntimeError):
        await house.send("please")
    assert (await house.send("and now?")).text == "understood"
    messages = house.messages()
    assert kinds(messages) == "HATTHA"
    assert all_answered(messages)
    told = {one.tool_call_id: one for one in messages if isinstance(one, ToolMessage)}
    assert told["p"].artifact["code"] == "succeeded"
    assert "not known" in told["n"].text
    assert house.remote.count() == 1


async def test_calls_that_a_run_without_a_session_left_open_are_answered(house: House) -> None:
    """Somebody invokes the graph by himself: a crash, and a new message that buries the call (LangGraph drops the
    open step); the next session finds a broken conversation, and mends it."""
    house.serve(first_turn(PAY, NOTE))
    house.raises = [RuntimeError("down") for _ in range(4)]
    config = {"configurable": {"thread_id": "t"}}
    house.model.script = first_turn(PAY, NOTE)
    with pytest.raises(RuntimeError):
        await asyncio.to_thread(house.agents[0].invoke, {"messages": "please"}, config, durability="sync")
    await asyncio.to_thread(house.agents[0].invoke, {"messages": "hello?"}, config, durability="sync")
    reply = await house.send("and now?")
    assert reply.text == "understood"
    assert all_answered(house.messages())
    assert all_answered(house.model._shown[-1])
    assert house.remote.count() == 1


async def test_it_streams(house: House) -> None:
    house.serve(first_turn(PAY))
    async with house.asession().astream("please", stream_mode=["updates", "custom"]) as stream:
        chunks = [chunk async for chunk in stream]
    assert [data["settled"]["state"] for mode, data in chunks if mode == "custom"] == ["running", "succeeded"]
    assert stream.reply.is_finished
    assert "R-1" in stream.reply.text


async def test_tenants_share_neither_thread_nor_ledger(house: House) -> None:
    house.serve(first_turn(PAY), always)
    (one,) = (await house.send("please", tenant="acme")).approvals
    (two,) = (await house.send("please", tenant="other")).approvals
    assert one["action_id"] != two["action_id"]
    with pytest.raises(NotFound):
        await asyncio.to_thread(house.session(tenant="other").decide, one["action_id"], Approve(), by="sue")


async def test_a_graph_of_one_tenant_serves_no_other(house: House) -> None:
    house.tenant = "acme"
    house.serve(first_turn(PAY))
    with pytest.raises(ContractError, match="'acme' only"):
        house.session(tenant="other")
    assert (await house.send("please")).is_finished
    assert len(house.ledger.actions(tenant="acme")) == 1


async def test_calls_that_are_nobodys_action_are_left_alone(house: House) -> None:
    """A host's own convention (a call that ends the conversation and is never answered, say) is not ours to mend. (An
    `ActionMiddleware` answers for itself whatever nobody has answered.)"""
    house.serve(lambda messages, has_tools: AIMessage("hello"))
    said = AIMessage("", id="own", tool_calls=[call("respond", "r1", text="x")])
    place = {"messages": [HumanMessage("hi", id="h"), said]}
    await asyncio.to_thread(house.agents[0].update_state, house.session().config, place, as_node="tools")
    assert (await house.send("and now?")).text == "hello"
    assert kinds(house.messages()) == {"node": "HAAHA", "middleware": "HATAHA"}[house.kind]


async def test_somebody_elses_bad_answer_is_unstuck(ledger: Ledger, database_url: str) -> None:
    """LangChain's own gate, in its batched mode, keeps a bad answer and fails with it for ever (LANGGRAPH 2.9);
    `unstick` asks again, and what the ledger has done is not done again."""
    remote = await asyncio.to_thread(Remote, database_url)
    with open_checkpointer(ledger) as saver:
        house = House("middleware", ledger, (saver, saver), remote)
        gate = HumanInTheLoopMiddleware({"note": True}, interrupt_mode="batched")
        house.serve(first_turn(PAY, NOTE), None, gate)
        assert not (await house.send("please")).is_finished
        agent, config = house.agents[0], house.session().config
        for answer in ("approve", {"decisions": [{"type": "approve"}]}):
            with pytest.raises(Exception, match=r"."):
                await asyncio.to_thread(agent.invoke, Command(resume=answer), config, durability="sync")
        assert not (await asyncio.to_thread(house.session().unstick)).is_finished
        (asked,) = agent.get_state(config).interrupts
        assert asked.value["action_requests"][0]["name"] == "note"
        good: Command[Any] = Command(resume={"decisions": [{"type": "approve"}]})
        await asyncio.to_thread(agent.invoke, good, config, durability="sync")
        assert kinds(house.messages()) == "HATTA"
        assert (remote.count(), house.plain_runs) == (1, 1)


async def test_a_call_of_somebody_elses_that_fails_each_time_is_unstuck(house: House) -> None:
    house.serve(first_turn(PAY, NOTE))
    house.raises = [RuntimeError("down") for _ in range(4)]
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await house.send("please", message_id="m1")
    reply = await asyncio.to_thread(house.session().unstick)
    assert reply.is_finished
    assert all_answered(house.messages())
    assert kinds(house.messages()) == "HATTA"
    assert house.remote.count() == 1


def test_a_graph_without_a_door_is_refused(database_url: str) -> None:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        graph = StateGraph(Chat)
        graph.add_node("tools", lambda state: {"messages": [AIMessage(interrupt("?"))]})
        graph.add_edge(START, "tools")
        with pytest.raises(ContractError, match="ActionNode"):
            Session(graph.compile(checkpointer=saver), ledger=ledger, thread_id="t")


def mail_of(remote: Remote) -> ActionTool:
    """A tool that asks a person each time."""

    @action(risk="non_idempotent_write", identity="all", approval=always)
    def mail(to: str) -> dict[str, Any]:
        """Write to somebody."""
        return remote.act(current_action().idempotency_key, to=to)

    return mail


def test_the_channel_of_messages_has_the_name_that_its_host_gave_it(database_url: str) -> None:
    class Talk(TypedDict):
        talk: Annotated[list[AnyMessage], add_messages]

    remote = Remote(database_url)
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        mail = mail_of(remote)
        model = ScriptedModel(script=first_turn(MAIL))
        graph = StateGraph(Talk)
        graph.add_node("chat", lambda state: {"talk": [model.invoke(state["talk"])]})
        graph.add_node("acts", ActionNode([mail], ledger=ledger, messages_key="talk"))
        graph.add_edge(START, "chat")
        route: Any = {"tools": "acts", "__end__": END}
        graph.add_conditional_edges("chat", lambda state: tools_condition(state, "talk"), route)
        graph.add_edge("acts", "chat")
        agent = graph.compile(checkpointer=saver)
        session = Session(agent, ledger=ledger, thread_id="t")
        (one,) = session.send("please", message_id="m1").approvals
        assert session.send("and now?").text == "understood"
        assert kinds(agent.get_state(session.config).values["talk"]) == "HATHA"
        fresh = Session(agent, ledger=ledger, thread_id="u")
        (two,) = fresh.send("please").approvals
        assert fresh.decide(two["action_id"], Approve(), by="sue").is_finished
        assert kinds(agent.get_state(fresh.config).values["talk"]) == "HATA"
        assert one["action_id"] != two["action_id"]
        assert remote.count() == 1


@pytest.mark.parametrize(
    ("reducer", "told"),
    [(add_messages, True), (lambda old, new: add_messages(old, new)[-50:], True), (operator.add, False)],
)
def test_it_is_told_where_a_message_can_be_replaced_whichever_node_ends_the_turn(
    database_url: str, reducer: Any, told: bool
) -> None:
    """Two nodes end it at once here, and one goes on where it is not alone; the thread is at rest all the same."""

    class Talk(TypedDict):
        messages: Annotated[list[AnyMessage], reducer]

    remote = Remote(database_url)
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        mail = mail_of(remote)
        model = ScriptedModel(script=first_turn(MAIL))
        graph = StateGraph(Talk)
        graph.add_node("chat", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_node("tools", ActionNode([mail], ledger=ledger))
        graph.add_node("one", lambda state: {})
        graph.add_node("two", lambda state: {})
        graph.add_edge(START, "chat")
        graph.add_conditional_edges(
            "chat", lambda state: "tools" if tools_condition(state) == "tools" else ["one", "two"]
        )
        graph.add_edge("tools", "chat")
        agent = graph.compile(checkpointer=saver)
        session = Session(agent, ledger=ledger, thread_id="t")
        (one,) = session.send("please").approvals
        session.send("and now?")
        Desk(ledger).decide(one["action_id"], Approve(), by="sue", fingerprint=one["fingerprint"])
        reply = session.resume()
        assert reply.is_finished
        assert ("R-1" in reply.text) == told
        state = agent.get_state(session.config)
        assert (state.tasks, state.next) == ((), ())
        assert kinds(state.values["messages"]) == ("HATHAA" if told else "HATHA")
        assert remote.count() == told
        assert session.send("and then?").text == "understood"


def test_an_agent_within_somebodys_graph_is_run_by_a_session(database_url: str) -> None:
    """The question surfaces at the root, and is decided there."""
    remote = Remote(database_url)
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        mail = mail_of(remote)
        inner = build_agent(ScriptedModel(script=first_turn(MAIL)), [mail], ledger=ledger)
        graph = StateGraph(Chat)
        graph.add_node("helper", inner)
        graph.add_edge(START, "helper")
        agent = graph.compile(checkpointer=saver)
        session = Session(agent, ledger=ledger, thread_id="t")
        (one,) = session.send("please").approvals
        done = session.decide(one["action_id"], Approve(), by="sue")
        assert done.is_finished
        assert kinds(agent.get_state(session.config).values["messages"]) == "HATA"
        assert remote.count() == 1
