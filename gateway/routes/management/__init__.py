"""What a management key may do over REST: a noun of its organisation a file."""

from litestar import Router

from billing.errors import StoreRefused
from gateway.routes.management import (
    alerts,
    budgets,
    credit,
    edge,
    keys,
    limits,
    prices,
    projects,
    users,
    webhooks,
)


def router() -> Router:
    """The routes, behind the guard that lets management keys pass alone."""
    nouns = (projects, keys, users, limits, budgets, prices, credit, webhooks, alerts)
    return Router(
        "/v1/organization",
        route_handlers=[handler for noun in nouns for handler in noun.HANDLERS],
        guards=[edge.managers_only],
        exception_handlers={StoreRefused: edge.refuse_row},
    )
