"""What browsers want before they let a page ask us, and read our answers (CORS).

Any page may ask, since nothing is granted by where a request comes from: no cookies, the key is in a header.
What the house tells of itself, its metrics and its readiness, stays out of pages' reach.
"""

from typing import Final

from litestar.types import ASGIApp, Receive, Scope, Send

from gateway import paths

EXPOSED: Final = (
    "x-request-id",
    "request-id",
    "retry-after",
    "x-ignored-params",
    "idempotent-replayed",
    "x-should-retry",
    *(f"x-ratelimit-{part}-requests" for part in ("limit", "remaining", "reset")),
    *(f"x-ratelimit-{part}-tokens" for part in ("limit", "remaining", "reset")),
)
UNSHARED: Final = (*paths.METRICS, *paths.READY, *paths.STRIPE)
PREFLIGHT_AGE_S: Final = 86_400

_SHARED: Final = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", ", ".join(EXPOSED).encode()),
)
_METHODS: Final = b"GET, HEAD, POST, PATCH, PUT, DELETE"
_HEADERS: Final = b"authorization, content-type, x-api-key"


def sharing(path: str) -> tuple[tuple[bytes, bytes], ...]:
    """The headers by which a page may read an answer, also one that refuses; ``path`` as it was asked."""
    return () if path in UNSHARED else _SHARED


class Preflights:
    """Answers OPTIONS on every path without a key; everything else goes on to the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Allow what is asked for; what it takes to be served is told by the request itself."""
        if scope.get("method") != "OPTIONS":
            await self._app(scope, receive, send)
            return
        asked = dict(scope["headers"])
        headers = (
            (b"access-control-allow-methods", asked.get(b"access-control-request-method", _METHODS)),
            (b"access-control-allow-headers", asked.get(b"access-control-request-headers", _HEADERS)),
            (b"access-control-max-age", str(PREFLIGHT_AGE_S).encode()),
            (b"vary", b"access-control-request-method, access-control-request-headers"),
        )
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
