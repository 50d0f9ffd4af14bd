"""Runs of chains that a program has left open, carried on by a worker.

Owns which runs are looked at; what is done is the chain's own (`Chain.ago_on`), which goes through the rows, so that
any number of workers may try. A run that an agent began goes on with its thread as well: whoever comes first does it.

The subtle thing: a run is left alone while an action of it is under way, or waits for a person. The worker's looks
bring that action to its end, and then the run is carried on.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from settled.state import chains as rows
from settled.state.errors import LEDGER_IS_GONE, ContractError
from settled.state.store import Ledger
from settled.tools.chain_desk import ChainDesk
from settled.tools.chain_standing import ChainState

if TYPE_CHECKING:
    from settled.graph.chain import Chain

GRACE_S = 5.0
"""How long a run is left to whoever carries it on, who goes from step to step in milliseconds."""

BATCH = 20
"""Runs in one round, one after the other: each may take as long as its steps."""

GOES_ON = frozenset({ChainState.RUNNING, ChainState.UNKNOWN, ChainState.COMPENSATING})
"""What a worker carries on. One that stopped, or is compensated in part, is a person's or its caller's."""

_log = logging.getLogger("settled")


class ChainRunner:
    """Carries on the runs of some chains."""

    def __init__(self, ledger: Ledger, chains: Sequence["Chain"]) -> None:
        self._ledger = ledger
        self._faulty: set[str] = set()
        self._is_draining = False
        self._chains = {chain.name: chain for chain in chains}
        if len(self._chains) < len(chains):
            raise ContractError("two chains have the same name: give one of them another")

    def drain(self) -> None:
        """Carry on no further run; the one that is under way comes to its end, or to where it waits."""
        self._is_draining = True

    async def arun_once(self) -> int:
        """Carry on what was left alone, a bounded batch; return how many runs have moved."""
        found = await self._ledger.arun(rows.left_alone(list(self._chains), grace_s=GRACE_S, most=BATCH))
        wanted = [one for one in found if one[1] not in self._faulty]
        moved = 0
        for tenant, chain_id, name in wanted:
            if self._is_draining:
                break
            moved += await self._moved(self._chains[name], tenant, chain_id)
        return moved

    async def _moved(self, chain: "Chain", tenant: str, chain_id: str) -> bool:
        try:
            desk = ChainDesk(self._ledger, tenant=tenant, code=[chain.contract])
            before = (await desk.ashow(chain_id)).state
            if before not in GOES_ON:
                return False
            outcome = await chain.ago_on(chain_id, ledger=self._ledger, tenant=tenant, wait_s=0.0)
        except LEDGER_IS_GONE:
            raise
        except Exception:  # noqa: BLE001 - the author's code, or steps that it has no more: a person's, not a loop's
            _log.exception("the run %s of the chain %s cannot be carried on by this worker", chain_id, chain.name)
            self._faulty.add(chain_id)
            return False
        return outcome.state is not None and outcome.state is not before
