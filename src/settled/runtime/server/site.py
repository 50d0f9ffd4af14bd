"""What every page of the server has at hand: the ledger, the desk of a tenant, and how the server was started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from fastapi import Request

from settled.state import console, tokens
from settled.state.store import Ledger
from settled.tools.desk import Desk

if TYPE_CHECKING:
    from settled.graph.chain import Chain
    from settled.state.postgres import Database
    from settled.tools.contract import ActionTool
    from settled.tools.policy import Policy


@dataclass(frozen=True)
class Site:
    """One server. `tools` are those that an edit, a retry and an undoing need; `trace_url` is where a trace is shown,
    with `{trace_id}` in it. `has_console` and `has_chat` say which pages it has. `chains` are those that can be
    carried on here, by name.
    """

    ledger: Ledger
    tools: "Sequence[ActionTool]" = ()
    trace_url: str | None = None
    has_console: bool = True
    has_chat: bool = False
    chains: "Mapping[str, Chain]" = field(default_factory=dict)

    @property
    def home(self) -> str:
        """Where a visitor begins."""
        return "/approvals" if self.has_console else "/chat"

    @cached_property
    def tokens(self) -> "Database":
        """The same database, speaking of tokens and sessions."""
        return tokens.on(self.ledger)

    @cached_property
    def console(self) -> "Database":
        """The same database, answering what pages ask."""
        return console.on(self.ledger)

    def desk(self, tenant: str, policies: "Mapping[str, Policy] | None" = None) -> Desk:
        """Return the desk of one tenant; `policies` judge, by risk, what has no policy of its own."""
        return Desk(self.ledger, tools=self.tools, tenant=tenant, policies=policies)

    def has_tool(self, name: str) -> bool:
        """Whether an action of that tool can be edited and carried on here."""
        return any(tool.contract.name == name for tool in self.tools)

    def can_undo(self, name: str) -> bool:
        """Whether an action of that tool can be undone here: it says how, and the server has it."""
        return any(tool.contract.name == name and tool.contract.compensate is not None for tool in self.tools)


def site_of(request: Request) -> Site:
    """Return the server's site."""
    site: Site = request.app.state.site
    return site
