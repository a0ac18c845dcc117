"""What a management key may do over REST: a noun of its organisation a file."""

from litestar import Router

from billing.errors import StoreRefused
from gateway.routes.management import (
    alerts,
    budgets,
    credit,
    edge,
    exports,
    invoices,
    keys,
    limits,
    prices,
    projects,
    usage_anthropic,
    usage_deepseek,
    usage_openai,
    users,
    webhooks,
)


def router() -> Router:
    """The routes, behind the guard that lets management keys pass alone."""
    nouns = (projects, keys, users, limits, budgets, prices, credit, invoices, webhooks, alerts)
    return Router(
        "/v1/organization",
        route_handlers=[handler for noun in nouns for handler in noun.HANDLERS],
        guards=[edge.managers_only],
        exception_handlers={StoreRefused: edge.refuse_row},
    )


def readers_router() -> Router:
    """What keys reach that may read usage, too: exports, and the reports of other houses' shapes."""
    handlers = [
        handler for noun in (usage_openai, usage_anthropic, usage_deepseek) for handler in noun.HANDLERS
    ]
    return Router(
        "/",
        route_handlers=[*handlers, Router("/v1/organization", route_handlers=exports.HANDLERS)],
        guards=[edge.readers_only],
        exception_handlers={StoreRefused: edge.refuse_row},
    )
