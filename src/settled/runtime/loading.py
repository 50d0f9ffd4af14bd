"""Finding the tools of a user's own module, for the commands that run one or judge arguments by it."""

import importlib
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from settled.graph.chain import Chain
    from settled.tools.contract import ActionTool

HINT = "--tools"


def tools_at(place: str) -> "list[ActionTool]":
    """Return the tools at `module` (all that it holds) or `module:name` (a tool, a list of them, or a function that
    returns either).

    A place that has none is a wrong use, in one sentence; the module is the user's own code and may raise anything.
    """
    module_name, colon, attribute = place.partition(":")
    module = imported(module_name)
    found = _attribute(module, place, attribute) if colon else vars(module).values()
    tools = _those_with_a_contract(found)
    if not tools:
        raise typer.BadParameter(f"{place} has no tool that was declared with @action", param_hint=HINT)
    return tools


def chain_named(place: str, name: str) -> "Chain":
    """Return the chain of that name at `module` or `module:name`; a wrong use where there is none."""
    from settled.graph.chain import Chain

    module_name, colon, attribute = place.partition(":")
    module = imported(module_name)
    found = _attribute(module, place, attribute) if colon else vars(module)
    several = found.values() if isinstance(found, dict) else found if isinstance(found, Iterable) else [found]
    chain = next((one for one in several if isinstance(one, Chain) and one.name == name), None)
    if chain is None:
        raise typer.BadParameter(f"{place} has no chain named {name}", param_hint=HINT)
    return chain


def chains_of(places: Iterable[str]) -> "list[Chain]":
    """Return the chains in modules that were named for their tools, each once. (A module that has one has imported
    their graph; so this imports nothing.)
    """
    graph = sys.modules.get("settled.graph.chain")
    if graph is None:
        return []
    held = (one for place in places for one in vars(sys.modules[place.partition(":")[0]]).values())
    return list({one.name: one for one in held if issubclass(type(one), graph.Chain)}.values())


def imported(name: str) -> object:
    """Return a module of the user's; a wrong use, in one sentence, where it cannot be imported."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise typer.BadParameter(f"{name!r} is no module; give module or module:name", param_hint=HINT)
    if "" not in sys.path:
        sys.path.insert(0, "")  # an installed command does not look in the folder it is run in, as `python -m` does
    try:
        with redirect_stdout(sys.stderr):  # what it prints is no part of our page or JSON
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the module's own code
        raise typer.BadParameter(f"{name} cannot be imported: {_said(error)}", param_hint=HINT) from error


def _attribute(module: object, place: str, attribute: str) -> object:
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise typer.BadParameter(f"{place}: there is no {attribute!r} in it", param_hint=HINT) from None
    from settled.tools.contract import ActionTool

    if isinstance(found, ActionTool) or not callable(found):
        return found
    try:
        with redirect_stdout(sys.stderr):
            return found()
    except (Exception, SystemExit) as error:  # the user's own function
        raise typer.BadParameter(f"{place}() raised {_said(error)}", param_hint=HINT) from error


def _those_with_a_contract(found: object) -> "list[ActionTool]":
    from settled.tools.contract import ActionTool

    several = found.values() if isinstance(found, dict) else found
    each = several if isinstance(several, Iterable) and not isinstance(found, ActionTool) else [found]
    # By its type: what stands in for something else may raise when it is asked what it is.
    held: list[Any] = [one for one in each if issubclass(type(one), ActionTool)]
    return list({id(one): one for one in held}.values())


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
