"""Which models there are, in OpenAI's and DeepSeek's shape."""

from typing import Any, Final

from litestar import get
from litestar.params import FromPath

from gateway.desk import AnyRequest, caller, desk_of
from gateway.models import ServedModel
from gateway.permission import may_ask, require_model

OWNER: Final = "kvitto"


@get(["/v1/models", "/models"])
async def list_models(request: AnyRequest) -> dict[str, Any]:
    """List the public models that the key may ask."""
    grant = await caller(request)
    models = [model for model in desk_of(request).catalog.models if may_ask(grant, model.name)]
    return {"object": "list", "data": [_shown(model) for model in models]}


@get(["/v1/models/{name:str}", "/models/{name:str}"])
async def show_model(request: AnyRequest, name: FromPath[str]) -> dict[str, Any]:
    """Show one public model.

    Raises:
        ModelUnknown: there is none of this name.
        NotPermitted: there is, and the key may not ask it.
    """
    grant = await caller(request)
    model = desk_of(request).catalog.find(name)
    require_model(grant, model.name)
    return _shown(model)


def _shown(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": OWNER,
        "context_length": model.context_tokens,
    }
