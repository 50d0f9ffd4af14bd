"""What the routes of all pages take: who is signed in, with which role, the site, and what its header counts."""

import re
from typing import Annotated

from fastapi import Depends, Path, Query, Request

from settled.runtime.server.forms import Form, posted
from settled.runtime.server.people import Person, needs, signed_in
from settled.runtime.server.site import Site, site_of
from settled.state.console import Pulse, pulse

TheSite = Annotated[Site, Depends(site_of)]
Viewer = Annotated[Person, Depends(signed_in)]
Approver = Annotated[Person, Depends(needs("approver"))]
Operator = Annotated[Person, Depends(needs("operator"))]
Posted = Annotated[Form, Depends(posted)]

ID = r"(act|chn|msg)-[0-9A-Za-z-]{1,60}"
ActionId = Annotated[str, Path(pattern=r"^act-[0-9A-Za-z]{1,60}$")]
"""Of an action; anything else is an address that does not exist."""

ChainId = Annotated[str, Path(pattern=r"^chn-[0-9A-Za-z]{1,60}$")]
MessageId = Annotated[str, Path(pattern=r"^msg-[0-9A-Za-z-]{1,70}$")]

Text = Annotated[str, Query(max_length=300)]
"""What is typed into a filter; no id, key or receipt of ours is longer."""

SHOWN = 20
"""Cards of a page: it stays under 100 KB, and a person does what ends first, first."""

SAID = frozenset(
    {
        "approved",
        "rejected",
        "edited",
        "resolved",
        "asked_again",
        "withdrawn",
        "retried",
        "undoing",
        "redriven",
        "step_done",
    }
)


def pulse_of(site: Site, person: Person, one: str | None = None) -> Pulse:
    """Return what waits for people now, and the mark of one action or one run of a chain."""
    return site.console.run(pulse(person.tenant, one))


def flash_of(request: Request) -> dict[str, str | None]:
    """Return what the page before this one did, as far as it can be said."""
    said, of = request.query_params.get("said"), request.query_params.get("of", "")
    return {"said": said if said in SAID else None, "said_of": of if re.fullmatch(ID, of) else None}
