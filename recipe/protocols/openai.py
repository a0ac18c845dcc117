"""Parameters that all bodies of OpenAI's spell the same."""

from collections.abc import Mapping
from typing import Any, Final, cast

from recipe.errors import ParameterInvalid
from recipe.prompt import Sampling
from recipe.protocols import parameters
from recipe.request import ServiceTier

# OpenAI's "priority" and "scale" are not among them: nobody here is served faster for more.
_TIERS: Final = ("auto", "default", "flex")


def sampling(document: Mapping[str, Any]) -> Sampling:
    """How to draw tokens, from parameters that every OpenAI body spells the same."""
    temperature = parameters.number(document, "temperature", 0, 2)
    top_p = parameters.top_p(document)
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        seed=parameters.integer(document, "seed", 0, 2**63 - 1),
        presence_penalty=parameters.number(document, "presence_penalty", -2, 2) or 0.0,
        frequency_penalty=parameters.number(document, "frequency_penalty", -2, 2) or 0.0,
    )


def service_tier(document: Mapping[str, Any]) -> ServiceTier | None:
    """The tier asked for; ParameterInvalid where nobody is served so."""
    tier = parameters.text(document, "service_tier", parameters.MODEL_CHARS_MAX)
    if tier is None:
        return None
    if tier not in _TIERS:
        raise ParameterInvalid("service_tier", f"'service_tier' must be one of {', '.join(_TIERS)}")
    return "default" if tier == "auto" else cast("ServiceTier", tier)


def include_usage(document: Mapping[str, Any], *, stream: bool) -> bool:
    """Whether a stream is to end with a chunk of usage alone."""
    options = document.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise ParameterInvalid("stream_options", "'stream_options' must be an object", malformed=True)
    if not stream:
        raise ParameterInvalid("stream_options", "'stream_options' needs 'stream' to be true")
    include = options.get("include_usage")
    if include is not None and not isinstance(include, bool):
        message = "'stream_options.include_usage' must be true or false"
        raise ParameterInvalid("stream_options.include_usage", message, malformed=True)
    return bool(include)
