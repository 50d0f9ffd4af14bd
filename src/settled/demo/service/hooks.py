"""Webhooks that the service is sent: it verifies who sent them, and acts on each message once, however often it comes.

Owns the service's inbox. The note that a message was had and the notification that follows from it are one commit; the
notification itself does not recognise a repeat, so only the inbox keeps it from being made twice.
"""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from settled.demo.service import store
from settled.demo.service.answers import problem
from settled.state.postgres import Database
from settled.state.within import awithin
from settled.tools.delivery import Delivery
from settled.tools.endpoint_http import REPLAYED
from settled.tools.inbox import Inbox
from settled.tools.sinks.signature import Unverified, verified

NOTIFICATIONS = "notifications"

SUPERVISORS = Inbox("settled-demo-supervisors")


@dataclass
class Hooks:
    """The route of webhooks. Without a secret none is taken."""

    database: Database
    secret: str | None

    async def take(self, request: Request) -> Response:
        """POST /hooks"""
        if self.secret is None:
            return problem(401, "unverified", "this service takes no webhooks")
        try:
            message = verified(request.headers, await request.body(), self.secret)
        except Unverified as error:
            return problem(401, "unverified", str(error))
        await request.scope["demo.visit"].act()
        made = await self._acted(message)
        if made is None:
            return JSONResponse({"known": message.id}, headers={REPLAYED: "true"})
        return JSONResponse(made, 201)

    async def _acted(self, message: Delivery) -> store.Json | None:
        """Notify the supervisor; None for a message that was had before."""
        async with (await self.database.pools.loop()).connection() as connection, connection.transaction():
            if not await SUPERVISORS.afirst_time(message.id, connection=connection):
                return None
            body = {**message.payload, "message_id": message.id}
            making = store.create_record(NOTIFICATIONS, "N-", message.id, body, dedupes=False)
            return await awithin(connection, making, store.STATEMENTS)
