"""What the nouns share: who asks, the clock, pages, and telling the other gateways."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Final, Generic, Literal, Protocol, TypeVar, cast

import msgspec
from litestar import Response
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter
from msgspec import Meta

from billing.db.pages import Page
from billing.errors import StoreRefused
from billing.tenancy.api_key import KeyGrant
from gateway.desk import AnyRequest, Organization, caller, desk_of, reader
from gateway.errors import Answer
from gateway.refusal import ValkeyUnavailable
from gateway.snapshot import announce_change

ROWS_MAX: Final = 100
ROWS_DEFAULT: Final = 20

# Names are shown on terminals and in documents: no line breaks, no other control characters.
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Instant = Annotated[datetime, Meta(tz=True)]
After = Annotated[str | None, QueryParameter(description="Id of the last row of the page before.")]
RowsMax = Annotated[int, QueryParameter(ge=1, le=ROWS_MAX, description="Rows of a page.")]


class Identified(Protocol):
    """What is shown by id."""

    id: str


Row = TypeVar("Row")
Shown = TypeVar("Shown", bound=Identified)


class Listed(msgspec.Struct, Generic[Shown]):
    """A page, oldest first. Ask for the next one with ``after=last_id`` while ``has_more``."""

    data: list[Shown]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class Deleted(msgspec.Struct):
    """What is gone, or works no more."""

    id: str
    object: str
    deleted: Literal[True] = True


async def managers_only(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Guard: let management keys pass, before anything of a body is read."""
    connection.scope["state"]["manager"] = await caller(cast("AnyRequest", connection), "management")


async def readers_only(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Guard: let keys pass that may read usage, or manage."""
    connection.scope["state"]["manager"] = await reader(cast("AnyRequest", connection))


def refuse_row(_: AnyRequest, __: StoreRefused) -> Response[bytes]:
    """Answer what no rule foresaw and no column takes, such as U+0000: elsewhere that would be our fault."""
    answer = Answer(400, "invalid_request_error", "a value cannot be stored", "invalid_parameter")
    return Response(answer.body, status_code=answer.status, media_type="application/json")


def manager(request: AnyRequest) -> KeyGrant:
    """The key that the guard let pass: its tenant is the organisation, its id the actor."""
    grant = request.scope["state"]["manager"]
    assert isinstance(grant, KeyGrant)
    return grant


def organization(request: AnyRequest) -> Organization:
    """The services on organisations."""
    return desk_of(request).organization


async def now(request: AnyRequest) -> datetime:
    """Valkey's time; raises ValkeyUnavailable."""
    return await desk_of(request).organization.clock.now()


async def tell(request: AnyRequest, owner_id: str) -> None:
    """Tell all gateways that a key, project or tenant has changed; the untold ask within two seconds."""
    with suppress(ValkeyUnavailable):
        await announce_change(desk_of(request).valkey, owner_id)


def one_more(after: str | None, rows_max: int) -> Page:
    """The page, and the row that tells whether there is another."""
    return Page(after, rows_max + 1)


def listed(rows: Sequence[Row], rows_max: int, show: Callable[[Row], Shown]) -> Listed[Shown]:
    """A page as it is answered, of rows read by `one_more`."""
    shown = [show(row) for row in rows[:rows_max]]
    first_id, last_id = (shown[0].id, shown[-1].id) if shown else (None, None)
    return Listed(shown, first_id, last_id, len(rows) > rows_max)
