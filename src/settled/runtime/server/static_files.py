"""The style, scripts and picture of the pages, from the package.

By a fixed list of names, so that no path leads elsewhere.
"""

from functools import cache
from importlib.resources import files
from mimetypes import guess_type

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from settled.runtime.server.rendering import STATIC

KEEP = "public, max-age=31536000, immutable"
"""A page asks for each file with the version of all of them."""

router = APIRouter()


@router.get("/static/{name}")
def static_file(name: str) -> Response:
    """Return one of the files."""
    if name not in _names():
        raise HTTPException(404)
    content = files("settled.runtime.server").joinpath(STATIC, name).read_bytes()
    return Response(content, media_type=guess_type(name)[0] or "text/plain", headers={"cache-control": KEEP})


@cache
def _names() -> frozenset[str]:
    return frozenset(one.name for one in files("settled.runtime.server").joinpath(STATIC).iterdir())
