"""What is streamed of a turn, with its Reply at the end.

Owns the two iterators that `Session.stream` and `Session.astream` return. The thread's lock is held from the first
chunk to the last: whoever stops in between closes the stream, or leaves its `with`, and the lock is given back.
"""

from collections.abc import AsyncGenerator, Generator
from typing import Any, Self

from settled.graph.turn import Reply
from settled.state.closing import AsyncClosing, Closing
from settled.state.errors import ContractError

NOT_OVER = "the turn is not over: its reply is there when the stream has come to its end"


class _Replying:
    """What a stream has at its end."""

    _reply: Reply | None = None

    @property
    def reply(self) -> Reply:
        """What the turn has added to the thread; ContractError before its end."""
        if self._reply is None:
            raise ContractError(NOT_OVER)
        return self._reply


class Stream(_Replying, Closing):
    """Iterate it for the chunks, as LangGraph makes them; `reply` is there afterwards."""

    def __init__(self, chunks: Generator[Any, None, Reply]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._chunks)
        except StopIteration as end:
            self._reply = end.value or self._reply
            raise

    def close(self) -> None:
        """Stop listening: calls that are under way end and are recorded, and a later session continues the thread."""
        self._chunks.close()


class AsyncStream(_Replying, AsyncClosing):
    """As `Stream`, in an event loop. Use it in an `async with`: a loop that is left early does not end it at once."""

    def __init__(self, chunks: AsyncGenerator[Any, None]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._chunks)
        if isinstance(chunk, Reply):
            self._reply = chunk
            await self._chunks.aclose()
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Stop listening: calls that are under way are cancelled, which leaves them unknown or not sent."""
        await self._chunks.aclose()
