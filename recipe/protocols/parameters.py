"""Reading typed parameters out of a JSON body, each refusal naming its parameter. Null means absent."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from recipe.errors import BodyMalformed, ParameterInvalid

MAX_TOKENS_BOUND: Final = 2**31 - 1
MODEL_CHARS_MAX: Final = 256
USER_ID_CHARS_MAX: Final = 512
TOP_LOGPROBS_MAX: Final = 20
TOP_K_MAX: Final = 2**31 - 1
STOPS_MAX: Final = 16
STOP_CHARS_MAX: Final = 256
MESSAGES_MAX: Final = 10_000
TOOLS_MAX: Final = 256
KIND_CHARS_MAX: Final = 40  # of a type that a refusal quotes

Body = Mapping[str, Any]


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``; BodyMalformed when there is none. Errors give positions, never content."""
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise BodyMalformed(f"The body is not valid JSON: {error}") from None
    except RecursionError:
        raise BodyMalformed("The body is not valid JSON: it is nested too deeply") from None
    if not isinstance(document, dict):
        raise BodyMalformed("The body must be a JSON object")
    return document


def text(body: Body, param: str, chars_max: int) -> str | None:
    """A string of at most ``chars_max`` characters."""
    value = body.get(param)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ParameterInvalid(param, f"'{param}' must be a string", malformed=True)
    if len(value) > chars_max:
        raise ParameterInvalid(param, f"'{param}' must have at most {chars_max} characters")
    return value


def model(body: Body) -> str:
    """The name of the model, which every body has to say."""
    name = text(body, "model", MODEL_CHARS_MAX)
    if not name:
        raise ParameterInvalid("model", "'model' is missing", malformed=True)
    return name


def flag(body: Body, param: str) -> bool:
    """A boolean; False when absent."""
    value = body.get(param)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ParameterInvalid(param, f"'{param}' must be true or false", malformed=True)
    return value


def integer(body: Body, param: str, low: int, high: int) -> int | None:
    """A whole number in ``[low, high]``; 3.0 is one, true is not."""
    value = body.get(param)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterInvalid(param, f"'{param}' must be a whole number", malformed=True)
    if not low <= value <= high:
        bound = f"at least {low}" if value < low else f"at most {high}"
        raise ParameterInvalid(param, f"'{param}' must be {bound}")
    return value


def number(body: Body, param: str, low: float, high: float) -> float | None:
    """A number in ``[low, high]``."""
    value = body.get(param)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParameterInvalid(param, f"'{param}' must be a number", malformed=True)
    if not low <= value <= high:
        raise ParameterInvalid(param, f"'{param}' must be between {low:g} and {high:g}")
    return float(value)


def items(body: Body, param: str, items_max: int) -> list[Any]:
    """A list of at most ``items_max`` items, which must be there."""
    value = body.get(param)
    if value is None:
        raise ParameterInvalid(param, f"'{param}' is missing", malformed=True)
    if not isinstance(value, list):
        raise ParameterInvalid(param, f"'{param}' must be a list", malformed=True)
    if len(value) > items_max:
        raise ParameterInvalid(param, f"'{param}' must hold at most {items_max} items")
    return value


def messages(body: Body) -> list[dict[str, Any]]:
    """``messages``: at least one object."""
    found = items(body, "messages", MESSAGES_MAX)
    if not found:
        raise ParameterInvalid("messages", "'messages' must hold at least one message", malformed=True)
    for place, message in enumerate(found):
        if not isinstance(message, dict):
            raise ParameterInvalid(f"messages[{place}]", "A message must be an object", malformed=True)
    return found


def stops(body: Body, param: str) -> tuple[str, ...]:
    """Stop strings: one, or a list of them; empty ones stop nothing and are left out."""
    value = body.get(param)
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list):
        raise ParameterInvalid(param, f"'{param}' must be a string or a list of strings", malformed=True)
    if len(found) > STOPS_MAX:
        raise ParameterInvalid(param, f"'{param}' must hold at most {STOPS_MAX} strings")
    for place, stop in enumerate(found):
        if not isinstance(stop, str):
            raise ParameterInvalid(f"{param}[{place}]", "A stop must be a string", malformed=True)
        if len(stop) > STOP_CHARS_MAX:
            message = f"A stop must have at most {STOP_CHARS_MAX} characters"
            raise ParameterInvalid(f"{param}[{place}]", message)
    return tuple(filter(None, found))


def top_p(body: Body) -> float | None:
    """``top_p``: above 0, at most 1."""
    share = number(body, "top_p", 0, 1)
    if share == 0:
        raise ParameterInvalid("top_p", "'top_p' must be above 0")
    return share


def mapping(body: Body, param: str) -> dict[str, Any] | None:
    """A JSON object."""
    value = body.get(param)
    if value is not None and not isinstance(value, dict):
        raise ParameterInvalid(param, f"'{param}' must be an object", malformed=True)
    return value
