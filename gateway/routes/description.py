"""What OpenAPI says of the management routes, and no page that loads scripts from elsewhere."""

import asyncio
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from litestar import Litestar, get
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

from gateway.routes import management

KEY: Final = "key"
REFUSED: Final = {
    "description": "Refused. The body is the house's error, the status that of its type.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {
                            "message": {"type": "string"},
                            "type": {"type": "string"},
                            "param": {"type": ["string", "null"]},
                            "code": {"type": ["string", "null"]},
                        },
                    }
                },
            }
        }
    },
}


@get("/openapi.json")
async def describe() -> dict[str, Any]:
    """Describe the routes, in OpenAPI 3.1."""
    return await asyncio.to_thread(document)


@cache
def document() -> dict[str, Any]:
    """The description, made once. Litestar's own is of its errors; ours answer in another shape."""
    bearer = SecurityScheme(type="http", scheme="bearer", description="A key with the scope `management`.")
    described = Litestar(
        [management.router()],
        security=[{KEY: []}],
        openapi_config=OpenAPIConfig(
            title="Kvitto",
            version=version("kvitto"),
            components=Components(security_schemes={KEY: bearer}),
            use_handler_docstrings=True,
        ),
    )
    made = described.openapi_schema.to_schema()
    made["components"]["responses"] = {"Refused": REFUSED}
    for item in made["paths"].values():
        for operation in item.values():
            operation["responses"].pop("400", None)
            operation["responses"]["default"] = {"$ref": "#/components/responses/Refused"}
    return made
