"""Which models there are, in OpenAI's and DeepSeek's shape, and in Anthropic's for who speaks that."""

from datetime import UTC, datetime
from typing import Any, Final

from litestar import get
from litestar.params import FromPath

from billing.tenancy.api_key import KeyGrant
from gateway import paths
from gateway.desk import AnyRequest, Desk, caller, desk_of
from gateway.models import ServedModel
from gateway.paths import speaks_anthropic
from gateway.permission import may_ask, require_model

OWNER: Final = "kvitto"
NEVER: Final = datetime.fromtimestamp(0, UTC)


@get(list(paths.MODELS))
async def list_models(request: AnyRequest) -> dict[str, Any]:
    """List the models that the key may ask, under their names and under aliases that are whole names."""
    desk, grant = desk_of(request), await caller(request)
    named = {name: model for name, model in desk.catalog.named.items() if may_ask(grant, model.name)}
    if not speaks_anthropic(request.url.path, request.headers):
        shown = [_shown(name, model, _since(desk, grant, model)) for name, model in named.items()]
        return {"object": "list", "data": shown}
    ids = list(named)
    return {
        "data": [_anthropic(name, _since(desk, grant, model)) for name, model in named.items()],
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }


@get(list(paths.MODEL))
async def show_model(request: AnyRequest, name: FromPath[str]) -> dict[str, Any]:
    """Show the model that answers to a name, under its own name. Names may have slashes.

    Raises:
        ModelUnknown: there is none.
        NotPermitted: there is, and the key may not ask it.
    """
    desk, grant = desk_of(request), await caller(request)
    model = desk.catalog.find(name.removeprefix("/"))
    require_model(grant, model.name)
    since = _since(desk, grant, model)
    if speaks_anthropic(request.url.path, request.headers):
        return _anthropic(model.name, since)
    return _shown(model.name, model, since)


def _since(desk: Desk, grant: KeyGrant, model: ServedModel) -> datetime:
    """When the first price began at which the tenant can have it, the public's or its own."""
    return min(
        (
            row.effective_from
            for row in desk.prices.book.rows
            if (row.model, row.currency) == (model.name, grant.currency)
            and row.plan is None
            and row.tenant_id in (None, grant.tenant_id)
        ),
        default=NEVER,
    )


def _shown(name: str, model: ServedModel, since: datetime) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(since.timestamp()),
        "owned_by": OWNER,
        "context_length": model.context_tokens,
    }


def _anthropic(name: str, since: datetime) -> dict[str, Any]:
    created = since.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}
