"""All actions, newest first: filters, search by receipt or key, page by page from where the one before ended."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from settled.runtime.server.languages import language_of, speaker
from settled.runtime.server.pages.routes import Text, TheSite, Viewer, pulse_of
from settled.runtime.server.people import Person
from settled.runtime.server.rendering import page
from settled.runtime.server.site import Site
from settled.runtime.server.wording import span
from settled.state import console
from settled.state import ledger as operations
from settled.state.console import Filter, Stretch
from settled.state.errors import InvalidArguments
from settled.state.machine import State
from settled.state.model import Action

PAGE = 50
AGES = {"younger-h": 3600, "younger-d": 86400, "younger-w": 7 * 86400, "older-h": 3600, "older-d": 86400}
"""What the age filter offers, in seconds."""

router = APIRouter()


@dataclass(frozen=True)
class Asked:
    """The filter form as it was filled in."""

    q: str = ""
    state: str = ""
    tool: str = ""
    thread: str = ""
    age: str = ""


@router.get("/actions")
def actions(
    request: Request, person: Viewer, site: TheSite, q: Text = "", state: Text = "", tool: Text = "",
    thread: Text = "", age: Text = "", below: Text = "",
) -> Response:  # fmt: skip
    """Show the actions that fit."""
    asked = Asked(*(text.strip() for text in (q, state, tool, thread, age)))
    stretch = site.console.run(console.search(person.tenant, _filter(asked, below), below=below or None, most=PAGE))
    say = speaker(language_of(request))
    ages = [(key, say(f"age_{key.partition('-')[0]}", span=span(seconds, say))) for key, seconds in AGES.items()]
    values = {
        "actions": _found(site, person, stretch),
        "asked": asked,
        "is_filtered": asked != Asked(),
        "states": list(State),
        "ages": ages,
        "more": _more(asked, stretch),
        "read_to": stretch.read_to,
    }
    return page(request, "actions.html", person, values, pulse=pulse_of(site, person))


def _filter(asked: Asked, below: str) -> Filter:
    """Return what is looked for; InvalidArguments for a text that cannot be in the ledger."""
    for field, text in {**asdict(asked), "below": below}.items():
        if not text.isprintable():
            raise InvalidArguments(field, "must be printable characters")
    if asked.state and asked.state not in set(State):
        raise InvalidArguments("state", f"must be one of {', '.join(State)}")
    if asked.age and asked.age not in AGES:
        raise InvalidArguments("age", f"must be one of {', '.join(AGES)}")
    age = timedelta(seconds=AGES[asked.age]) if asked.age else None
    return Filter(
        states=[asked.state] if asked.state else (),
        tool=asked.tool or None,
        thread_id=asked.thread or None,
        reference=asked.q or None,
        older_than=age if asked.age.startswith("older") else None,
        younger_than=age if asked.age.startswith("younger") else None,
    )


def _found(site: Site, person: Person, stretch: Stretch) -> list[Action]:
    if not stretch.ids:
        return []
    found = {action.id: action for action in site.ledger.run(operations.load_all(person.tenant, stretch.ids))}
    return [found[one] for one in stretch.ids if one in found]  # one that was purged in between is not there


def _more(asked: Asked, stretch: Stretch) -> str | None:
    """Return the address of the next page, with the same filters."""
    if stretch.below is None:
        return None
    given = {name: value for name, value in asdict(asked).items() if value}
    return f"/actions?{urlencode({**given, 'below': stretch.below})}"
