"""A process that has performed forks, as servers do that load the application first: child and parent both go on.

A fork copies the list of idle body threads, the pools and the lease keeper, but none of the threads and no connection
of its own. The test's process is not forked: a script in its own process is, once for each test.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from acts import states
from scripted import Remote
from settled import Ledger, Outcome, action, aperform, current_action, perform
from settled.tools.contract import ActionTool


def paying(remote: Remote, *, asynchronous: bool = False) -> ActionTool:
    declare = action(
        risk="non_idempotent_write",
        identity="all",
        remote="opaque",
        timeout=3.0,
        name="apay" if asynchronous else "pay",
    )
    if asynchronous:

        async def apay(order: str) -> dict[str, Any]:
            """Pay an order."""
            return remote.act(current_action().idempotency_key, order=order)

        return declare(apay)

    def pay(order: str) -> dict[str, Any]:
        """Pay an order."""
        return remote.act(current_action().idempotency_key, order=order)

    return declare(pay)


def told(outcome: Outcome) -> list[object]:
    return [str(outcome.code), outcome.receipt]


def sync_with(ledger: Ledger, order: str) -> list[list[object]]:
    """Pay twice, the second time in the same body thread, and once more for the receipt."""
    tool = paying(Remote(ledger.url))
    orders = (order, f"{order}-2", order)
    return [told(perform(tool, [name], ledger=ledger, thread_id="t")) for name in orders]


async def async_with(ledger: Ledger, order: str) -> list[list[object]]:
    """As `sync_with`, with a sync and an async body."""
    remote = Remote(ledger.url)
    calls = [(paying(remote), order), (paying(remote, asynchronous=True), order), (paying(remote), order)]
    said = [told(await aperform(tool, [name], ledger=ledger, thread_id="t")) for tool, name in calls]
    await ledger.aclose()
    return said


def a_lock(ledger: Ledger) -> list[list[object]]:
    """Take another thread's lock, and see that the parent's is taken."""
    mine, theirs = ledger.thread_lock("default", "child"), ledger.thread_lock("default", "parent")
    took = [[mine.take(), theirs.take()], [mine.is_held(), mine.is_lost()]]
    mine.give_back()
    return took


def with_own(work: Callable[[Ledger], list[list[object]]]) -> Callable[[Ledger], list[list[object]]]:
    def own(parents: Ledger) -> list[list[object]]:
        with Ledger.connect(parents.url) as ledger:
            return work(ledger)

    return own


CHILDREN: dict[str, Callable[[Ledger], list[list[object]]]] = {
    "shared, sync": lambda ledger: sync_with(ledger, "C"),
    "shared, async": lambda ledger: asyncio.run(async_with(ledger, "C")),
    "own, sync": with_own(lambda ledger: sync_with(ledger, "C")),
    "own, async": with_own(lambda ledger: asyncio.run(async_with(ledger, "C"))),
    "shared, lock": a_lock,
    "shared, then closed": lambda ledger: (sync_with(ledger, "C"), ledger.close())[0],
}


def backend(ledger: Ledger) -> int:
    """Return the server's process behind an idle connection of the ledger."""
    with ledger.pools.threads().connection() as connection:
        return connection.info.backend_pid


@pytest.fixture(scope="module")
def script() -> Iterator["subprocess.Popen[str]"]:
    """The script: a process of its own, with all imported, carries out each line and ends as scripts do."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        yield running
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait(10) == 0


def run(script: "subprocess.Popen[str]", **how: str) -> Any:
    assert script.stdin is not None
    assert script.stdout is not None
    script.stdin.write(json.dumps(how) + "\n")
    script.stdin.flush()
    return json.loads(script.stdout.readline())


@pytest.mark.parametrize("ending", [pytest.param("os._exit", marks=pytest.mark.deep), "the end of the script"])
@pytest.mark.parametrize("kind", CHILDREN)
def test_a_forked_child_performs_and_leaves_its_parent_alone(
    script: "subprocess.Popen[str]", database_url: str, kind: str, ending: str
) -> None:
    """The child's bodies run once each; the parent's connections and locks are what they were when it has gone."""
    child, parent = run(script, url=database_url, kind=kind, ending=ending)
    wanted: dict[str, object] = {
        "sync": [["succeeded", "R-4"], ["succeeded", "R-5"], ["duplicate", "R-4"]],
        "async": [["succeeded", "R-4"], ["succeeded", "R-5"], ["duplicate", "R-4"]],
        "lock": [[True, False], [True, False]],
    }
    wanted["then closed"] = wanted["sync"]
    assert child == wanted[kind.split(", ")[1]]
    done = 3 if "lock" in kind else 5
    assert parent == {
        "status": 0,
        "same connection": True,
        "lock": True,
        "said": [
            [["succeeded", f"R-{done + 1}"], ["succeeded", f"R-{done + 2}"], ["duplicate", f"R-{done + 1}"]],
            [["duplicate", f"R-{done + 1}"], ["succeeded", f"R-{done + 3}"], ["duplicate", f"R-{done + 1}"]],
        ],
    }
    assert states(database_url) == ["succeeded"] * Remote(database_url).count()


def perform_and_fork(*, url: str, kind: str, ending: str) -> None:
    """Perform, fork, let the child work, and perform again."""
    ledger = Ledger.connect(url, max_connections=1)
    sync_with(ledger, "P")
    asyncio.run(async_with(ledger, "P"))
    lock = ledger.thread_lock("default", "parent")
    assert lock.take()
    before = backend(ledger)
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writes, json.dumps(CHILDREN[kind](ledger)).encode())
        if ending == "os._exit":
            os._exit(0)
        return
    os.close(writes)
    _, status = os.waitpid(pid, 0)
    child = json.loads(os.read(reads, 65536) or b"null")
    parent = {
        "status": os.waitstatus_to_exitcode(status),
        "same connection": backend(ledger) == before,
        "lock": lock.is_held(),
        "said": [sync_with(ledger, "D"), asyncio.run(async_with(ledger, "D"))],
    }
    lock.give_back()
    ledger.close()
    sys.stdout.write(json.dumps([child, parent]) + "\n")


def main() -> None:
    """Carry out what each line asks for, in a process of its own."""
    for line in sys.stdin:
        if not (pid := os.fork()):
            perform_and_fork(**json.loads(line))
            return
        if os.waitpid(pid, 0)[1]:
            return


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
