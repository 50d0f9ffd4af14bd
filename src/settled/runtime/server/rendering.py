"""Pages from templates. Every value that a template puts in is escaped, and inert before that (`wording.inert`)."""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from settled.runtime.server import wording
from settled.runtime.server.languages import NAMES, TAGS, language_of, speaker
from settled.runtime.server.people import Person
from settled.runtime.server.site import site_of
from settled.state.console import MOST_COUNTED, Pulse
from settled.state.secrets import masked

STATIC = "static"
MOST_ARGUMENTS = 12
"""Of one card in a list; who has more to read decides on the action's own page, which shows all."""

WORDING = (
    "answers", "beginning", "decided", "deciders", "differences", "from_now", "instant", "pretty", "shown", "span",
    "waits_for",
)  # fmt: skip
"""What a template may say values with."""


@cache
def environment() -> Environment:
    """Return the templates, parsed when they are first used."""
    made = Environment(
        loader=PackageLoader("settled.runtime.server"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=wording.inert,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"masked": masked, "NAMES": NAMES, "static": static_version(), "MOST_COUNTED": MOST_COUNTED}
    made.globals["MOST_ARGUMENTS"] = MOST_ARGUMENTS
    made.globals |= {name: getattr(wording, name) for name in WORDING}
    return made


@cache
def static_version() -> str:
    """Return what changes with any static file, so that a browser may keep them for long."""
    folder = files("settled.runtime.server") / STATIC
    return sha256(b"".join(one.read_bytes() for one in sorted(folder.iterdir(), key=str))).hexdigest()[:12]


def page(
    request: Request,
    template: str,
    person: Person | None,
    values: Mapping[str, object],
    *,
    pulse: Pulse | None = None,
    status: int = 200,
) -> HTMLResponse:
    """Return a page in the reader's language."""
    html = environment().get_template(template).render({**layout(request, person, pulse), **values})
    return HTMLResponse(html, status)


def layout(request: Request, person: Person | None, pulse: Pulse | None) -> dict[str, object]:
    """Return what the frame around every page is made of. `pulse` is what its header counts, and goes on from."""
    language = language_of(request)
    url = request.url
    return {
        "say": speaker(language),
        "language": language,
        "tag": TAGS[language],
        "person": person,
        "pulse": pulse,
        "site": site_of(request),
        "here": url.path + (f"?{url.query}" if url.query else ""),
    }
