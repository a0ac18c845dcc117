"""What the key's organisation wants to be told of beside what it is told anyway."""

from typing import Final, Literal

import msgspec
from litestar import get, put
from litestar.params import JSONBody

from billing.money import Femto, decimal_of, femto_of
from gateway.desk import AnyRequest
from gateway.routes.management import edge


class AlertsShown(msgspec.Struct):
    """``balance_below``: a notice `balance.low` is told when less can be spent; null: none is.

    It is told once, and again only after the balance has been a tenth above.
    """

    balance_below: str | None
    currency: str
    object: Literal["organization.alerts"] = "organization.alerts"


class AlertsWanted(msgspec.Struct, forbid_unknown_fields=True):
    """``balance_below`` is a decimal text such as ``"12.50"``; null: tell none."""

    balance_below: str | None


@get("/alerts")
async def show_alerts(request: AnyRequest) -> AlertsShown:
    """Show what the organisation wants to be told of."""
    by = edge.manager(request)
    alert = await edge.organization(request).alerts.balance_alert(by.tenant_id)
    return _shown(None if alert is None else alert.threshold, by.currency)


@put("/alerts")
async def set_alerts(request: AnyRequest, data: JSONBody[AlertsWanted]) -> AlertsShown:
    """Set what the organisation wants to be told of."""
    by = edge.manager(request)
    at = await edge.now(request)
    below = None if data.balance_below is None else femto_of(data.balance_below)
    await edge.organization(request).alerts.set_balance_alert(by.tenant_id, below, at, actor=by.key_id)
    return _shown(below, by.currency)


def _shown(below: Femto | None, currency: str) -> AlertsShown:
    return AlertsShown(None if below is None else decimal_of(below), currency)


HANDLERS: Final = [show_alerts, set_alerts]
