"""The module that is checked: imported, with its tools, and quiet about what the checklist will say anyway.

A declaration that the library refuses is a finding; whatever else goes wrong on the way is a wrong use, in one
sentence.
"""

import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import typer

from settled.runtime.checking.catalogue import Finding, Place, found
from settled.runtime.checking.refusals import noted
from settled.runtime.loading import tools_at
from settled.state.errors import ContractError
from settled.tools.contract import ActionTool, ContractWarning

HINT = "MODULE"


@dataclass(frozen=True)
class Subject:
    """What was asked for. `module` is there where all of it is to be checked, and not a name in it."""

    place: str
    tools: tuple[ActionTool, ...]
    module: ModuleType | None
    refused: tuple[Finding, ...] = ()


def subject_at(place: str) -> Subject:
    """Import `module` or `module:name`; what its declarations were refused for is part of the answer.

    Raises typer.BadParameter for what cannot be imported, and for a name that has no tools.
    """
    name, colon, _ = place.partition(":")
    with warnings.catch_warnings(), noted() as refusals:
        warnings.simplefilter("ignore", ContractWarning)
        try:
            tools = tools_at(place)
        except typer.BadParameter as error:
            refused = (*refusals.findings, *_refused_elsewhere(error.__cause__, name))
            is_imported = error.__cause__ is None and not colon and name in sys.modules
            if not refused and not is_imported:
                error.param_hint = HINT
                raise
            tools = []  # a module without actions may still hold what should be one
        else:
            refused = tuple(refusals.findings)
    module = None if colon else sys.modules.get(name)
    listed = () if module is None else _listed(module)
    return Subject(place, tuple({id(one): one for one in (*tools, *listed)}.values()), module, refused)


def _refused_elsewhere(error: BaseException | None, module: str) -> Iterator[Finding]:
    """Yield the refusal that ended the import: of an agent that was given a tool without a contract, say."""
    if isinstance(error, ContractError):
        yield found("refused-declaration", _raised_at(error, module), "", str(error))


def _listed(module: ModuleType) -> Iterator[ActionTool]:
    """Yield the tools that a module holds in lists, and in its own classes."""
    for value in vars(module).values():
        yield from (one for one in _held(value, module.__name__) if isinstance(one, ActionTool))


def _held(value: object, module: str) -> Iterable[object]:
    """Return what a value of a module has in it. By its type and not its `__class__`: a proxy may raise for that."""
    kind = type(value)
    if issubclass(kind, type) and vars(value).get("__module__") == module:
        return [one.__func__ if isinstance(one, staticmethod) else one for one in vars(value).values()]
    if issubclass(kind, dict):
        return list(cast("dict[object, object]", value).values())
    return cast("Iterable[object]", value) if issubclass(kind, list | tuple) else ()


def _raised_at(error: BaseException, module: str) -> Place | None:
    """Return the line of the module that was being carried out, or of the last one that is not ours."""
    frames = list(traceback.walk_tb(error.__traceback__))
    named = [(frame.f_globals.get("__name__", ""), frame.f_code.co_filename, line) for frame, line in frames]
    own = [one for one in named if one[0] == module] or [one for one in named if not one[0].startswith("settled.")]
    return Place(own[-1][1], own[-1][2]) if own else None
