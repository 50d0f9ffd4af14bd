"""All routes of the chat server, to be mounted in an application: the API, and the page."""

from fastapi import APIRouter, Depends, Request

from settled.runtime.chat import assistants, page, runs, threads
from settled.runtime.chat.refusals import add_refusals
from settled.runtime.chat.serving import Chat


def router(chat: Chat, *, has_page: bool = True) -> APIRouter:
    """Return the routes over a chat server, which the application opens: `async with chat.opened()` in its lifespan.

    The page takes the application of `settled.runtime.server`, with its login and its looks; the API takes none.
    """

    async def at_hand(request: Request) -> None:
        request.state.chat = chat

    made = APIRouter(dependencies=[Depends(at_hand)])
    for part in (assistants, threads, runs, page):
        made.include_router(part.routes)
    if has_page:
        made.include_router(page.page)

    @made.get("/ok", include_in_schema=False)
    async def ok() -> dict[str, bool]:
        """Say that the server is up, as LangGraph's does."""
        return {"ok": True}

    add_refusals(made)
    return made
