"""How a run begins: which thread, by whom, and whether it is the same one again.

The subtle thing is the request that is sent twice: by its `Idempotency-Key` or the message's id it meets the run that
it began the first time. Only a message whose run has failed, or was cancelled, is followed by another run.
"""

from uuid import uuid4

from settled.runtime.chat.deciding import decide
from settled.runtime.chat.executing import WORK
from settled.runtime.chat.refusals import Refused
from settled.runtime.chat.requests import Asked, kept
from settled.runtime.chat.serving import Chat
from settled.runtime.chat.who import Who, check_role
from settled.state import runs
from settled.state.runs import NewRun, Run

FAILURES = 20
"""Runs of one message that failed one after the other before it is refused: by then somebody should look."""

TOO_MANY = "too many runs of this thread have not ended; send the request again when some have"


async def begin_run(chat: Chat, who: Who, thread_id: str, asked: Asked, key: str | None) -> Run:
    """Begin what was asked for, or return the run that the same request has begun before.

    Raises NotFound for the thread or the assistant, Refused (409) for a thread that is busy where the run wants to
    be alone, (422) for a key or a message id that was used for another request; and what a decision raises.
    """
    check_role(who, chat.talk_role, "send a message")
    session = chat.session(who, thread_id, asked.agent, asked.wanted.config)
    if asked.creates_thread:
        await chat.begin_thread(who, thread_id, {}, may_exist=True)
    thread = await chat.thread(who, thread_id)
    request_key, earlier = await _earlier(chat, who, thread_id, asked, key)
    if earlier is not None:
        return earlier
    if asked.has_answer:
        if asked.strategy == "reject" and thread.status == "busy":
            raise _busy(thread_id)
        await decide(chat.agent(who, asked.agent), session, who, thread_id, asked.answer)
    new = _new_run(who, asked, request_key)
    begun = await chat.rows.arun(runs.begin(who.tenant, thread_id, new))
    if begun is None:
        begun = await _begun(chat, who, thread_id, new)
    chat.bell.ring(WORK)
    await chat.announce()
    return begun


async def _earlier(
    chat: Chat, who: Who, thread_id: str, asked: Asked, key: str | None
) -> tuple[str | None, Run | None]:
    """Return the key of a request, and the run that it has begun. A message whose run has failed, or was cancelled,
    is sent again under a key that follows from that run, so that a double click on "again" is one run too.
    """
    name = f"key:{key}" if key else f"message:{asked.message_id}" if asked.message_id else None
    if name is None:
        return None, None
    request_key = name
    for _ in range(FAILURES):
        found = await chat.rows.arun(runs.run_of_request(who.tenant, thread_id, request_key))
        if found is None:
            return request_key, None
        if found.fingerprint != asked.fingerprint():
            what = "Idempotency-Key" if key else "input.messages.id"
            raise Refused(422, f"{what}: was used for another request of this thread")
        if key or not found.has_failed:
            return request_key, found
        request_key = f"{name}>{found.run_id}"
    raise Refused(409, f"this message has failed {FAILURES} times; send another one")


async def _begun(chat: Chat, who: Who, thread_id: str, new: NewRun) -> Run:
    """Return the run that has come first; Refused where it is another one."""
    found = await chat.rows.arun(runs.run(who.tenant, thread_id, new.run_id))
    if found is None and new.request_key is not None:
        found = await chat.rows.arun(runs.run_of_request(who.tenant, thread_id, new.request_key))
    if found is None:
        await chat.thread(who, thread_id)
        raise _busy(thread_id) if new.strategy == "reject" else Refused(429, TOO_MANY)
    if found.fingerprint != new.fingerprint:
        raise Refused(422, "another request of this thread has that key")
    return found


def _new_run(who: Who, asked: Asked, request_key: str | None) -> NewRun:
    run_id = str(uuid4())
    return NewRun(
        run_id=run_id,
        agent=asked.agent,
        requester=who.name,
        roles=who.roles,
        strategy=asked.strategy or "enqueue",
        request_key=request_key,
        fingerprint=asked.fingerprint(),
        request=kept(asked.wanted, run_id),
        metadata=asked.metadata,
        title=asked.title,
        after_s=asked.after_s,
    )


def _busy(thread_id: str) -> Refused:
    return Refused(409, f"the thread {thread_id!r} is busy with another run; multitask_strategy enqueue waits for it")
