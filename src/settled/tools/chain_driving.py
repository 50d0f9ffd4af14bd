"""Steps of several tools, one after the other: each part is carried out by a runner of its own tool.

A run of a chain is a generator of parts, written once, with a sync and an async driver, as the protocol is a generator
of effects. Owns no rules. A signal that stops a part (a cancellation) travels on when what it left is recorded; the
parts after it are not begun.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from settled.state.store import Ledger
from settled.tools.contract import Contract
from settled.tools.effects import Steps
from settled.tools.runner import Runner, World

R = TypeVar("R")


@dataclass(frozen=True)
class Part(Generic[R]):
    """Steps of one tool; without a contract they only ask the ledger."""

    contract: Contract | None
    steps: Steps[R]


Moves = Generator[Part[Any], Any, R]


def part(contract: Contract | None, steps: Steps[R]) -> Moves[R]:
    """Carry out one part, typed."""
    answer: R = yield Part(contract, steps)
    return answer


@dataclass(frozen=True)
class Driver:
    """Carries parts out."""

    store: Ledger
    world: World

    def drive(self, moves: Moves[R]) -> R:
        """Carry parts out to their end in this thread."""
        answer, fault = None, None
        while True:
            try:
                now: Part[Any] = moves.send(answer) if fault is None else moves.throw(fault)
            except StopIteration as end:
                result: R = end.value
                return result
            runner = Runner(now.contract, self.store, self.world)
            try:
                answer, fault = runner.drive(now.steps), None
            except Exception as error:  # noqa: BLE001 - it is thrown into the moves, which know what it means
                answer, fault = None, error

    async def adrive(self, moves: Moves[R]) -> R:
        """As `drive`, in an event loop."""
        answer, fault = None, None
        while True:
            try:
                now: Part[Any] = moves.send(answer) if fault is None else moves.throw(fault)
            except StopIteration as end:
                result: R = end.value
                return result
            runner = Runner(now.contract, self.store, self.world)
            try:
                answer, fault = await runner.adrive(now.steps), None
            except Exception as error:  # noqa: BLE001 - as in drive
                answer, fault = None, error
