"""Whether this process lives, and whether it can serve; and its metrics."""

import asyncio
from typing import Any

from litestar import MediaType, Response, get, route
from litestar.enums import HttpMethod

from billing.errors import BillingError
from gateway import paths
from gateway.desk import AnyRequest, Desk, desk_of
from gateway.refusal import ValkeyUnavailable


@route(list(paths.LIVE), http_method=[HttpMethod.GET, HttpMethod.HEAD], status_code=200)
async def live() -> Response[bytes]:
    """Answer as long as the process runs; clients probe the root without a key."""
    return Response(b"", media_type=MediaType.TEXT)


@get(list(paths.READY))
async def ready(request: AnyRequest) -> Response[dict[str, Any]]:
    """Answer 200 when a request could be served now, else 503 with what is missing."""
    desk = desk_of(request)
    valkey, database = await asyncio.gather(_valkey_answers(desk), _database_answers(desk))
    engine = all(model.engine.ready for model in desk.catalog.models)
    parts = {"valkey": valkey, "database": database, "engine": engine}
    served = all(parts.values())
    headers = {} if served else {"retry-after": str(desk.options.retry_after_s)}
    return Response({"ready": served, "parts": parts}, status_code=200 if served else 503, headers=headers)


@get(list(paths.METRICS))
async def metrics(request: AnyRequest) -> Response[bytes]:
    """Metrics in Prometheus' text format, without tenant labels."""
    return Response(
        desk_of(request).telemetry.render(), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


async def _valkey_answers(desk: Desk) -> bool:
    try:
        return bool(await desk.valkey.call("PING"))
    except ValkeyUnavailable:
        return False


async def _database_answers(desk: Desk) -> bool:
    try:
        await desk.prices.refresh()
    except BillingError:
        return False
    return True
