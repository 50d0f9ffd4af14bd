"""Tool calls with side effects, made safe: a Postgres ledger, committed before the call and settled after it.

The names below are the public ones. Each is loaded when it is first used, so that `import settled` is quick and
LangGraph is only imported where a graph is built.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from settled.graph.agent import build_agent
    from settled.graph.chain import Chain, chain
    from settled.graph.checkpointer import aopen_checkpointer, open_checkpointer
    from settled.graph.middleware import ActionMiddleware
    from settled.graph.node import ActionNode
    from settled.graph.session import Session
    from settled.graph.turn import Reply
    from settled.runtime.idempotency import IdempotencyMiddleware, claimed_request
    from settled.runtime.purging import Purge, Retention
    from settled.runtime.worker import Worker
    from settled.state.canonical import Incidental, Ordered, Precision, Secret
    from settled.state.errors import (
        AlreadyDecided,
        ClaimLost,
        ContractError,
        DuplicateAction,
        IllegalTransition,
        InvalidArguments,
        LedgerFault,
        LedgerUnavailable,
        NotFound,
        NotPermitted,
        SettledError,
        ShownOtherwise,
        ThreadBusy,
        Unguarded,
    )
    from settled.state.machine import State, Trigger
    from settled.state.model import Action, Approval, Event
    from settled.state.store import Ledger
    from settled.tools import http
    from settled.tools.after import Compensation, Done, Message
    from settled.tools.arguments import LEFT_OUT
    from settled.tools.backoff import Backoff
    from settled.tools.budget import Budget
    from settled.tools.chain_desk import ChainDesk
    from settled.tools.chain_outcome import ChainOutcome, StepOutcome
    from settled.tools.chain_standing import ChainState, StepState
    from settled.tools.chains import ChainChanged, SoFar, Step, StepDone, step
    from settled.tools.context import ActionContext, current_action
    from settled.tools.contract import ActionTool, Contract, ContractWarning, Inquiry, Remote, Risk, action
    from settled.tools.decisions import Approve, Edit, Reject
    from settled.tools.delivery import Delivery, Undelivered
    from settled.tools.desk import Desk, ManualCase
    from settled.tools.dispatcher import Dispatcher
    from settled.tools.dispatching import Dispatched
    from settled.tools.effects import Absent, Found, Inconclusive
    from settled.tools.endpoint import IdempotencyStore, StoredAnswer
    from settled.tools.endpoint_http import EndpointRequest
    from settled.tools.inbox import Inbox
    from settled.tools.mcp import actions_from_mcp, carry_key
    from settled.tools.messages import Code
    from settled.tools.outbox import Outbox
    from settled.tools.outcome import Conflict, Ended, Forbidden, Invalid, Refused, Rejected, Succeeded, Unknown
    from settled.tools.perform import aperform, perform
    from settled.tools.policy import Allow, Ask, Deny, PlannedAction, always, first_time, over, permitted
    from settled.tools.resolutions import AskAgain, DidNotHappen, Happened
    from settled.tools.result import Outcome
    from settled.tools.runner import World
    from settled.tools.sinks.procrastinate_task import ProcrastinateTask
    from settled.tools.sinks.signature import Unverified, new_secret, verified
    from settled.tools.sinks.webhook import Webhook
    from settled.tools.wrapping import as_action

_WHERE = {
    "settled.graph.agent": ("build_agent",),
    "settled.graph.chain": ("Chain", "chain"),
    "settled.graph.checkpointer": ("aopen_checkpointer", "open_checkpointer"),
    "settled.graph.middleware": ("ActionMiddleware",),
    "settled.graph.node": ("ActionNode",),
    "settled.graph.session": ("Session",),
    "settled.graph.turn": ("Reply",),
    "settled.runtime.idempotency": ("IdempotencyMiddleware", "claimed_request"),
    "settled.runtime.purging": ("Purge", "Retention"),
    "settled.runtime.worker": ("Worker",),
    "settled.state.canonical": ("Incidental", "Ordered", "Precision", "Secret"),
    "settled.state.errors": (
        "AlreadyDecided", "ClaimLost", "ContractError", "DuplicateAction", "IllegalTransition", "InvalidArguments",
        "LedgerFault", "LedgerUnavailable", "NotFound", "NotPermitted", "SettledError", "ShownOtherwise",
        "ThreadBusy", "Unguarded",
    ),
    "settled.state.machine": ("State", "Trigger"),
    "settled.state.model": ("Action", "Approval", "Event"),
    "settled.state.store": ("Ledger",),
    "settled.tools": ("http",),
    "settled.tools.after": ("Compensation", "Done", "Message"),
    "settled.tools.arguments": ("LEFT_OUT",),
    "settled.tools.backoff": ("Backoff",),
    "settled.tools.budget": ("Budget",),
    "settled.tools.chain_outcome": ("ChainOutcome", "StepOutcome"),
    "settled.tools.chain_standing": ("ChainState", "StepState"),
    "settled.tools.chain_desk": ("ChainDesk",),
    "settled.tools.chains": ("ChainChanged", "SoFar", "Step", "StepDone", "step"),
    "settled.tools.context": ("ActionContext", "current_action"),
    "settled.tools.contract": ("ActionTool", "Contract", "ContractWarning", "Inquiry", "Remote", "Risk", "action"),
    "settled.tools.decisions": ("Approve", "Edit", "Reject"),
    "settled.tools.delivery": ("Delivery", "Undelivered"),
    "settled.tools.desk": ("Desk", "ManualCase"),
    "settled.tools.dispatcher": ("Dispatcher",),
    "settled.tools.dispatching": ("Dispatched",),
    "settled.tools.effects": ("Absent", "Found", "Inconclusive"),
    "settled.tools.endpoint": ("IdempotencyStore", "StoredAnswer"),
    "settled.tools.endpoint_http": ("EndpointRequest",),
    "settled.tools.inbox": ("Inbox",),
    "settled.tools.mcp": ("actions_from_mcp", "carry_key"),
    "settled.tools.messages": ("Code",),
    "settled.tools.outbox": ("Outbox",),
    "settled.tools.outcome": (
        "Conflict", "Ended", "Forbidden", "Invalid", "Refused", "Rejected", "Succeeded", "Unknown",
    ),
    "settled.tools.perform": ("aperform", "perform"),
    "settled.tools.policy": ("Allow", "Ask", "Deny", "PlannedAction", "always", "first_time", "over", "permitted"),
    "settled.tools.resolutions": ("AskAgain", "DidNotHappen", "Happened"),
    "settled.tools.result": ("Outcome",),
    "settled.tools.runner": ("World",),
    "settled.tools.sinks.procrastinate_task": ("ProcrastinateTask",),
    "settled.tools.sinks.signature": ("Unverified", "new_secret", "verified"),
    "settled.tools.sinks.webhook": ("Webhook",),
    "settled.tools.wrapping": ("as_action",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "LEFT_OUT",
    "Absent",
    "Action",
    "ActionContext",
    "ActionMiddleware",
    "ActionNode",
    "ActionTool",
    "Allow",
    "AlreadyDecided",
    "Approval",
    "Approve",
    "Ask",
    "AskAgain",
    "Backoff",
    "Budget",
    "Chain",
    "ChainChanged",
    "ChainDesk",
    "ChainOutcome",
    "ChainState",
    "ClaimLost",
    "Code",
    "Compensation",
    "Conflict",
    "Contract",
    "ContractError",
    "ContractWarning",
    "Delivery",
    "Deny",
    "Desk",
    "DidNotHappen",
    "Dispatched",
    "Dispatcher",
    "Done",
    "DuplicateAction",
    "Edit",
    "Ended",
    "EndpointRequest",
    "Event",
    "Forbidden",
    "Found",
    "Happened",
    "IdempotencyMiddleware",
    "IdempotencyStore",
    "IllegalTransition",
    "Inbox",
    "Incidental",
    "Inconclusive",
    "Inquiry",
    "Invalid",
    "InvalidArguments",
    "Ledger",
    "LedgerFault",
    "LedgerUnavailable",
    "ManualCase",
    "Message",
    "NotFound",
    "NotPermitted",
    "Ordered",
    "Outbox",
    "Outcome",
    "PlannedAction",
    "Precision",
    "ProcrastinateTask",
    "Purge",
    "Refused",
    "Reject",
    "Rejected",
    "Remote",
    "Reply",
    "Retention",
    "Risk",
    "Secret",
    "Session",
    "SettledError",
    "ShownOtherwise",
    "SoFar",
    "State",
    "Step",
    "StepDone",
    "StepOutcome",
    "StepState",
    "StoredAnswer",
    "Succeeded",
    "ThreadBusy",
    "Trigger",
    "Undelivered",
    "Unguarded",
    "Unknown",
    "Unverified",
    "Webhook",
    "Worker",
    "World",
    "action",
    "actions_from_mcp",
    "always",
    "aopen_checkpointer",
    "aperform",
    "as_action",
    "build_agent",
    "carry_key",
    "chain",
    "claimed_request",
    "current_action",
    "first_time",
    "http",
    "new_secret",
    "open_checkpointer",
    "over",
    "perform",
    "permitted",
    "step",
    "verified",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'settled' has no attribute {name!r}")
    if module == "settled.tools":
        return import_module(f"{module}.{name}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]
