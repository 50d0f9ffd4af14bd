"""What the fork server of a crash matrix imports once, so that no child has to: LangGraph alone takes seconds.

A client loads the rest of its library when it is made. What is there at the fork is shared for good: the collector
would otherwise write to each page of it in each child.
"""

import gc
from contextlib import suppress
from importlib import import_module

from settled.state.errors import ContractError
from settled.tools import http

for module in ("settled.graph.agent", "settled.graph.session", "settled.testing.scene"):
    import_module(module)
with suppress(ContractError):  # no HTTP library is installed
    http.client().close()
gc.freeze()
