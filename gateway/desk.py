"""What the routes of one application share."""

from dataclasses import dataclass

from litestar import Request
from litestar.datastructures import State

from billing.alerts.service import Alerts
from billing.invoicing.service import Invoicing
from billing.ledger.service import Ledger
from billing.notify.service import Notices
from billing.notify.webhooks import Webhooks
from billing.payments.inbox import Inbox
from billing.receipts.service import Receipts
from billing.reports.export.files.link import Links
from billing.reports.export.files.service import ExportFiles
from billing.reports.service import Reports
from billing.tenancy.api_key import KeyGrant, Scope
from billing.tenancy.projects.service import Projects
from billing.tenancy.rules.service import Rules
from billing.tenancy.service import Tenancy
from billing.tenancy.users.service import Users
from gateway.admission.admit import Admission
from gateway.credentials import key_sent
from gateway.images import ImageReader
from gateway.instant import ValkeyClock
from gateway.models import Catalog
from gateway.options import GatewayOptions
from gateway.permission import client_address, require
from gateway.public_log import PublicLog
from gateway.pump import Pumps
from gateway.retries import Retries
from gateway.snapshot import KeySnapshot, PriceSnapshot
from gateway.telemetry import Telemetry
from gateway.valkey import Valkey

AnyRequest = Request[None, None, State]


@dataclass(frozen=True, slots=True)
class Organization:
    """The services that management keys reach, and the clock of what they change."""

    tenancy: Tenancy
    projects: Projects
    users: Users
    rules: Rules
    reports: Reports
    exports: ExportFiles
    links: Links
    webhooks: Webhooks
    notices: Notices
    alerts: Alerts
    clock: ValkeyClock
    invoicing: Invoicing


@dataclass(frozen=True, slots=True)
class StripeInbox:
    """Where what a payment provider tells goes."""

    inbox: Inbox
    admission: Admission


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
    images: ImageReader
    telemetry: Telemetry
    organization: Organization
    receipts: Receipts
    log: PublicLog
    stripe: StripeInbox | None = None


def desk_of(request: AnyRequest) -> Desk:
    """The desk of the application that serves this request."""
    desk = request.app.state.desk
    assert isinstance(desk, Desk)
    return desk


async def reader(request: AnyRequest) -> KeyGrant:
    """Find whose request this is, and that its key may see what the organisation uses and pays.

    Raises as `caller` does.
    """
    grant = await caller(request)
    if "management" not in grant.terms.scopes:
        require(grant, "usage_read")
    return grant


async def caller(request: AnyRequest, scope: Scope | None = None) -> KeyGrant:
    """Find whose request this is, and that its key has the scope.

    Raises as `key_sent`, `KeySnapshot.grant` and `require` do.
    """
    desk = desk_of(request)
    peer = None if request.client is None else request.client.host
    # All lines of the header: a proxy may add its own below the client's.
    forwarded = ",".join(request.headers.getall("x-forwarded-for", ()))
    client = client_address(peer, forwarded, desk.options.trusted_proxies)
    grant = await desk.keys.grant(key_sent(request.headers), client)
    if scope is not None:
        require(grant, scope)
    return grant
