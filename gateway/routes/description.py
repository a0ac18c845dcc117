"""What there is and how it is used: an OpenAPI document, and a page that loads nothing from elsewhere."""

import asyncio
import re
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from litestar import Litestar, Response, Router, get
from litestar.openapi import OpenAPIConfig
from litestar.routes import HTTPRoute

from billing.reports.export.order import MEDIA_TYPES
from gateway import paths
from gateway.description.document import SECURITY, described
from gateway.description.page import page_of
from gateway.desk import AnyRequest
from gateway.routes import management
from gateway.routes.management import exports

ABOUT: Final = (
    "An inference house: DeepSeek's, OpenAI's and Anthropic's protocols over the same models, billed by what"
    " was really served from cache. Any base URL that a client has for one of them works here."
)
MANAGEMENT: Final = "/v1/organization"
PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'",
    "cache-control": "no-cache",
}
REFUSED: Final = {
    "description": "Refused; the status is that of its type.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
}

_FILES: Final = {media: {"schema": {"type": "string", "format": "binary"}} for media in MEDIA_TYPES.values()}

Routes = frozenset[tuple[str, str]]


@get(list(paths.DESCRIPTION))
async def describe(request: AnyRequest) -> dict[str, Any]:
    """Describe the routes, in OpenAPI 3.1."""
    return await asyncio.to_thread(document, routes_of(request.app))


@get(list(paths.REFERENCE))
async def reference(request: AnyRequest) -> Response[str]:
    """The same for people."""
    page = await asyncio.to_thread(_page, routes_of(request.app))
    return Response(page, media_type="text/html", headers=PAGE_HEADERS)


def routes_of(app: Litestar) -> Routes:
    """Each path of an application with each of its methods, as OpenAPI writes paths."""
    return frozenset(
        (route.path_format, method)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods
        if method != "OPTIONS"
    )


@cache
def document(routes: Routes) -> dict[str, Any]:
    """The description of these routes, made once. What is not served is not described."""
    served: dict[str, set[str]] = {}
    for path, method in routes:
        served.setdefault(path, set()).add(method)
    inference, managing = described(served), _management()
    parts = inference["components"]
    parts["schemas"] |= managing["components"]["schemas"]
    parts["responses"]["Refused"] = REFUSED
    tag = {"name": "Management", "description": "Your organisation, by keys with the scope `management`."}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kvitto", "version": version("kvitto"), "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [*inference["tags"], tag],
        "paths": {**inference["paths"], **managing["paths"]},
        "components": parts,
    }


@cache
def _page(routes: Routes) -> str:
    return page_of(document(routes))


def _management() -> dict[str, Any]:
    """Litestar's description of the management routes, whose schemas are types. Their errors are ours."""
    router = Litestar(
        [management.router(), Router(MANAGEMENT, route_handlers=exports.HANDLERS), exports.fetch_file],
        openapi_config=OpenAPIConfig(title="", version="", use_handler_docstrings=True),
    )
    made = router.openapi_schema.to_schema()
    for path, item in made["paths"].items():
        for operation in item.values():
            operation["summary"] = _sentence(operation["summary"])
            operation["tags"] = ["Management"]
            operation["security"] = list(SECURITY)
            operation["responses"].pop("400", None)
            for answer in operation["responses"].values():
                answer["description"] = "The answer."
            operation["responses"]["default"] = {"$ref": "#/components/responses/Refused"}
            if path.endswith("/file"):  # its link is all it takes
                operation["security"] = []
                operation["responses"]["200"] = {"description": "The file.", "content": _FILES}
    return made


def _sentence(name: str) -> str:
    """``ListProjects`` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()
