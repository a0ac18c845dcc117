"""deepseek-recipe's conversions of a protocol's body, their refusals told by parameter."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
from deepseek_recipe import ConversationRequest, ConversionError, ConversionOptions

from recipe.errors import ParameterInvalid

# A name every `ConversionOptions` knows; the name a client asks for is resolved elsewhere.
MODEL: Final = "DeepSeek-V4.1-Flash"
# A wrong shape; a number beyond 64 bits; nesting deeper than its parser goes, which is 128 levels.
UNREADABLE: Final = (ValueError, OverflowError, RecursionError)
SHAPE_PREFIX: Final = "invalid request body: "
MESSAGE_CHARS_MAX: Final = 300


class Convertible(Protocol):
    """A body that deepseek-recipe has read."""

    def convert(self, options: ConversionOptions) -> ConversationRequest:
        """Convert it, once; ConversionError when it is refused."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One of the protocols that deepseek-recipe converts.

    Attributes:
        read: its class of requests.
        params: what clients call the parameters it reads beside ``model`` and ``messages``, by name there.
        param_in: which parameter a sentence of its refusals is about.
    """

    read: Callable[[dict[str, Any]], Convertible]
    params: Mapping[str, str]
    param_in: Callable[[str], str]

    def convert(self, wire: Mapping[str, Any], options: ConversionOptions) -> ConversationRequest:
        """Convert a body; ParameterInvalid, naming the parameter, when deepseek-recipe refuses it."""
        try:
            return self.read(dict(wire)).convert(options)
        except ConversionError as error:
            message = sentence(error)
            raise ParameterInvalid(self.param_in(message), message) from None
        except UNREADABLE as error:
            message = str(error).removeprefix(SHAPE_PREFIX)[:MESSAGE_CHARS_MAX]
            param = self._misshapen(wire)
            raise ParameterInvalid(param, f"'{param}' is malformed: {message}", malformed=True) from None

    def _misshapen(self, wire: Mapping[str, Any]) -> str:
        """Which parameter could not be read: the one without which the body is."""
        for name, param in self.params.items():
            if name in wire and self._readable({key: value for key, value in wire.items() if key != name}):
                return param
        return next(self._misshapen_messages(wire["messages"]), "messages")

    def _misshapen_messages(self, messages: list[Any]) -> Iterator[str]:
        for place, message in enumerate(messages):
            if not self._readable({"model": MODEL, "messages": [message]}):
                yield f"messages[{place}]"

    def _readable(self, wire: dict[str, Any]) -> bool:
        try:
            self.read(wire)
        except UNREADABLE:
            return False
        return True


def sentence(error: ConversionError) -> str:
    """The message inside a conversion error's JSON body."""
    try:
        return str(msgspec.json.decode(error.body)["error"]["message"])[:MESSAGE_CHARS_MAX]
    except (msgspec.DecodeError, KeyError, TypeError):
        return str(error)[:MESSAGE_CHARS_MAX]
