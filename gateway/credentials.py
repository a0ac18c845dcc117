"""The key that a request carries: `Authorization: Bearer`, or `x-api-key` as Anthropic's clients send it."""

from collections.abc import Mapping

from gateway.refusal import KeyRefused


def key_sent(headers: Mapping[str, str]) -> str:
    """Find the key among headers, by lower-case name. It may come in both of them, if it is the same.

    Raises:
        KeyRefused: none has come, or two; or `Authorization` carries something else.
    """
    bearer, own = _bearer(headers.get("authorization", "")), headers.get("x-api-key", "").strip()
    if bearer and own and bearer != own:
        raise KeyRefused("the headers Authorization and x-api-key carry different keys: send one of them")
    if not bearer and not own:
        raise KeyRefused("no API key: send the header Authorization: Bearer <key>, or x-api-key: <key>")
    return bearer or own


def _bearer(authorization: str) -> str:
    """The key of an `Authorization` header; empty when there is none."""
    scheme, _, secret = authorization.strip().partition(" ")
    if scheme and (scheme.lower() != "bearer" or not secret.strip()):
        raise KeyRefused("the Authorization header must be: Bearer <key>")
    return secret.strip()
