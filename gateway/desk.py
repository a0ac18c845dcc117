"""What the routes of one application share."""

from dataclasses import dataclass

from litestar import Request
from litestar.datastructures import State

from billing.ledger.service import Ledger
from billing.tenancy.api_key import KeyGrant
from gateway.models import Catalog
from gateway.options import GatewayOptions
from gateway.pump import Pumps
from gateway.retries import Retries
from gateway.snapshot import KeySnapshot, PriceSnapshot
from gateway.telemetry import Telemetry
from gateway.valkey import Valkey

AnyRequest = Request[None, None, State]


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything a route may reach. The engine is reached through the pumps alone: all pass admission."""

    options: GatewayOptions
    keys: KeySnapshot
    prices: PriceSnapshot
    catalog: Catalog
    ledger: Ledger
    valkey: Valkey
    pumps: Pumps
    retries: Retries
    telemetry: Telemetry


def desk_of(request: AnyRequest) -> Desk:
    """The desk of the application that serves this request."""
    desk = request.app.state.desk
    assert isinstance(desk, Desk)
    return desk


async def caller(request: AnyRequest) -> KeyGrant:
    """Find whose request this is; raises as `KeySnapshot.grant`."""
    return await desk_of(request).keys.grant(request.headers.get("authorization"))
