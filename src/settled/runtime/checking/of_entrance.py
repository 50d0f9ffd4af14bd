"""The entrance: how a message of a user comes in, and what goes on after a crash."""

import ast
from collections.abc import Iterator

from settled.runtime.checking.calls import calls_in, dotted, last, made_by, root_of
from settled.runtime.checking.catalogue import Finding, Place, found
from settled.runtime.checking.counting import is_retry
from settled.runtime.checking.files import SourceFile
from settled.runtime.checking.of_module import Surroundings
from settled.runtime.checking.of_retries import retrying

_AGENTS = frozenset({"build_agent", "create_agent", "create_react_agent"})
_GRAPHS = frozenset({"StateGraph", "MessageGraph", "Graph"})
_RUNS = frozenset({"invoke", "ainvoke", "stream", "astream", "batch", "abatch", "astream_events"})
_SENDS = frozenset({"send", "asend", "stream", "astream"})
_IN_MEMORY = frozenset({"InMemorySaver", "MemorySaver"})


def of_entrance(around: Surroundings) -> Iterator[Finding]:
    """Yield the ways in which a message could be taken twice, or a conversation lost."""
    file = around.file
    direct = [call for call in calls_in(file.tree) if _is_direct(call, around)]
    unnamed = [call for call in calls_in(file.tree) if _is_unnamed(call, around)]
    for call in direct:
        sentence = f"{ast.unparse(call.func)[-60:]}(...) runs an agent past its session"
        yield found("direct-invoke", _at(call, file), "", sentence)
    for call in unnamed:
        what = "makes its message_id anew" if _says(call, "message_id") else "has no message_id="
        yield found("no-message-id", _at(call, file), "", f"{ast.unparse(call.func)[-60:]}(...) {what}")
    yield from _repeated(file, [*direct, *unnamed])
    for call in calls_in(file.tree):
        if last(dotted(call.func, file)) in _IN_MEMORY:
            yield found("forgetful-checkpointer", _at(call, file), "", "the conversation is kept in memory")
        elif last(dotted(call.func, file)) == "build_agent" and not _says(call, "checkpointer"):
            yield found("forgetful-checkpointer", _at(call, file), "", "the agent has no checkpointer")


def _at(node: ast.expr | ast.stmt, file: SourceFile) -> Place:
    return Place(file.path, node.lineno)


def _says(call: ast.Call, name: str) -> bool:
    return any(keyword.arg in (name, None) for keyword in call.keywords)


def _is_direct(call: ast.Call, around: Surroundings) -> bool:
    """Whether a call runs an agent, or a compiled graph, by itself; a node may run a graph inside its own."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _RUNS:
        return False
    inner = around.inner.get(id(call))
    if inner is not None and id(inner) in around.called_by_models:
        return False
    base = call.func.value
    live = around.value(base.id) if isinstance(base, ast.Name) and not _is_parameter(base.id, inner) else None
    is_live = type(live).__name__ == "CompiledStateGraph"
    return is_live or any(_makes_agent(made, around.file) for made in made_by(base, around.file))


def _is_parameter(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> bool:
    arguments = [] if function is None else [*function.args.args, *function.args.kwonlyargs]
    return name in [one.arg for one in arguments]


def _makes_agent(call: ast.Call, file: SourceFile) -> bool:
    if last(dotted(call.func, file)) in _AGENTS:
        return True
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "compile":
        return False
    root = root_of(call.func)
    makers = [root] if isinstance(root, ast.Call) else list(made_by(root, file))
    names = {last(dotted(maker.func, file)) for maker in makers} | {last(dotted(root, file))}
    return bool(names & _GRAPHS)


def _is_unnamed(call: ast.Call, around: Surroundings) -> bool:
    """Whether a call gives a session a message without its id, or with one that is new each time."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _SENDS:
        return False
    if _says(call, "message_id") and not _is_new_id(call, around.file):
        return False
    if call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value is None:
        return False  # a stream that only goes on
    return any(
        _makes_session(made, around) for made in made_by(call.func.value, around.file, around.inner.get(id(call)))
    )


def _makes_session(made: ast.Call, around: Surroundings, depth: int = 2) -> bool:
    """Whether a call makes a session: by its class, or by a function of the file that returns one."""
    name = dotted(made.func, around.file)
    if name.startswith("settled.") and last(name) == "Session":
        return True
    function = around.by_name.get(name)
    returned = (
        [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value] if function else []
    )
    makers = [one for value in returned for one in made_by(value, around.file, function)]
    return depth > 0 and any(_makes_session(one, around, depth - 1) for one in makers)


def _is_new_id(call: ast.Call, file: SourceFile) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "message_id"]
    return any(dotted(one.func, file).startswith("uuid.") for value in given for one in calls_in(value))


def _repeated(file: SourceFile, runs: list[ast.Call]) -> Iterator[Finding]:
    """Yield the retries around a run that takes a message anew each time."""
    ids = {id(call) for call in runs}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.While) and is_retry(node, runs):
            yield found("retry-around-run", _at(node, file), "", "the loop begins the run again after an exception")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(id(c) in ids for c in calls_in(node)):
            for decorator in node.decorator_list:
                if name := retrying(decorator, file):
                    yield found("retry-around-run", _at(decorator, file), "", f"@{name} begins the run again")
