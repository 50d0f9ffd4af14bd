"""The chains of a module: which of their steps have no way back."""

import ast
import sys
from collections.abc import Iterator

from settled.runtime.checking.calls import calls_in, dotted, last
from settled.runtime.checking.catalogue import Finding, Place, found
from settled.runtime.checking.of_module import Surroundings


def of_chains(around: Surroundings) -> Iterator[Finding]:
    """Yield the steps that cannot be undone, where they are written."""
    graph = sys.modules.get("settled.graph.chain")  # where nobody has imported it, there is no chain
    for value in vars(around.module).values():
        if graph is None or not isinstance(value, graph.Chain):
            continue
        for step in value.irreversible:
            sentence = f"the step {step} of the chain {value.name} cannot be undone"
            yield found("irreversible-step", _place(step, around), value.name, sentence)


def _place(step: str, around: Surroundings) -> Place | None:
    """Return where `step("name", ...)` stands; the file alone where the name is made otherwise."""
    for call in calls_in(around.file.tree):
        match call.args[:1]:
            case [ast.Constant(value=name)] if name == step and last(dotted(call.func, around.file)) == "step":
                return Place(around.file.path, call.lineno)
    return Place(around.file.path, 0)
