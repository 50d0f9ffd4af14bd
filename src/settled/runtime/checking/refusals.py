"""Declarations that the library refuses: noted while a module is imported instead of raised, so that one run tells all.

The subtle thing is what stands in the place of the tool: it must not be callable, since `module:name` calls a function
to get tools, and a body is nothing to be run by a check. Afterwards every declaration is refused as ever.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from settled.runtime.checking.catalogue import Finding, Place, found
from settled.state.errors import ContractError
from settled.tools import contract, wrapping


@dataclass(frozen=True)
class RefusedTool:
    """Stands where a tool would, had its declaration been accepted: it can be held and listed, and not called."""

    declared: object


@dataclass
class Refusals:
    """What was refused while somebody noted it."""

    findings: list[Finding] = field(default_factory=list)
    is_noting: bool = True

    def note(self, error: ContractError, place: Place, declared: object) -> RefusedTool:
        """Keep a refusal, and return what stands for the tool; raise it again when nobody notes any more."""
        if not self.is_noting:
            raise error
        name = str(getattr(declared, "__name__", None) or getattr(declared, "name", ""))
        self.findings.append(found("refused-declaration", place, name, str(error)))
        return RefusedTool(declared)


@contextmanager
def noted() -> Iterator[Refusals]:
    """Note what `@action` and `as_action` refuse within the block, for the modules that are imported in it."""
    refusals = Refusals()
    kept = ((contract, "action", contract.action), (wrapping, "as_action", wrapping.as_action))
    lenient = (_declaring(contract.action, refusals), _wrapping(wrapping.as_action, refusals))
    for (module, name, _), stand_in in zip(kept, lenient, strict=True):
        setattr(module, name, stand_in)
    try:
        yield refusals
    finally:
        refusals.is_noting = False
        for module, name, original in kept:
            setattr(module, name, original)


def _declaring(original: Callable[..., Any], refusals: Refusals) -> Callable[..., Any]:
    @wraps(original)
    def action(**declared: Any) -> Callable[[Callable[..., Any]], object]:
        def declare(function: Callable[..., Any]) -> object:
            try:
                return original(**declared)(function)
            except ContractError as error:
                return refusals.note(error, place_of(function), function)

        return declare

    return action


def _wrapping(original: Callable[..., Any], refusals: Refusals) -> Callable[..., Any]:
    @wraps(original)
    def as_action(tool: object, **contract: Any) -> object:
        try:
            return original(tool, **contract)
        except ContractError as error:
            return refusals.note(error, _caller(), tool)

    return as_action


def place_of(function: object) -> Place:
    """Return where a function begins, with its decorators."""
    code = getattr(function, "__code__", None)
    return Place(getattr(code, "co_filename", ""), getattr(code, "co_firstlineno", 0))


def _caller() -> Place:
    frame = sys._getframe(2)
    return Place(frame.f_code.co_filename, frame.f_lineno)
