"""What each route has at hand: the chat server, and who asks."""

from dataclasses import dataclass

from fastapi import Depends, Request

from settled.runtime.chat.serving import Chat
from settled.runtime.chat.who import Who, who_asks


@dataclass(frozen=True, slots=True)
class Asking:
    """One request: who asks which server."""

    chat: Chat
    who: Who


async def asking(request: Request) -> Asking:
    """Return who asks; Refused (401, 403)."""
    chat: Chat = request.state.chat
    return Asking(chat, await who_asks(request, chat.tokens))


ASKING = Depends(asking)
