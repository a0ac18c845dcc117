"""The shape of a refusal in each protocol."""

from typing import Any

import msgspec

KEYS = {"message", "type", "param", "code"}


def refusal_faults(path: str, status: int, answer: bytes, *, blames: bool) -> list[str]:
    """What is wrong with a refusal; ``blames``: a parameter can be to blame, so that one has to be named."""
    try:
        body = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return ["a refusal that is no JSON"]
    if "/messages" in path:
        return _anthropic_faults(body)
    error = body.get("error")
    if not isinstance(error, dict) or error.keys() != KEYS:
        return ["a refusal not in OpenAI's shape"]
    faults = [] if error["message"] and error["type"] else ["a refusal that says nothing"]
    if blames and status in (400, 422) and not error["param"]:
        faults.append("a refusal that blames no parameter")
    return faults


def _anthropic_faults(body: dict[str, Any]) -> list[str]:
    error = body.get("error")
    if body.get("type") != "error" or not isinstance(error, dict) or not body.get("request_id"):
        return ["a refusal not in Anthropic's shape"]
    return [] if error.get("message") and error.get("type") else ["a refusal that says nothing"]
