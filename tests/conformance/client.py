"""What the suite asks of every client, so that one test runs them all; the adapters are in `clients`."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

WEATHER = "sunny, 21 degrees in Paris"
TOOL = "get_weather"
TOOL_ABOUT = "Tell what the weather is like."
TOOL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
PATIENCE = 2  # retries, as these clients have by default


class City(BaseModel):
    """What a model is asked to answer with."""

    name: str
    inhabitants: int


CITY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "inhabitants": {"type": "integer"}},
    "required": ["name", "inhabitants"],
    "additionalProperties": False,
}


def weather(city: str) -> str:
    """What the tool answers."""
    assert city == "Paris"
    return WEATHER


@dataclass(frozen=True)
class At:
    """Where a client asks; ``url`` has no path."""

    url: str
    key: str
    model: str
    retries: int = 0


@dataclass
class Said:
    """What a client made of an answer. ``pieces`` is how many of a stream held text or thoughts."""

    text: str = ""
    thoughts: str = ""
    finish: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    pieces: int = 0


class Refused(Exception):
    """A client's own error: its status and what it says."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Client:
    """One client of one surface.

    Attributes:
        name: in the test ids.
        surface: the end of the path it asks.
        cases: what it can do.
        forced: the tool it forces where it wants a type by way of a tool.
    """

    name: str
    surface: str
    cases: frozenset[str] = field(default_factory=frozenset)
    forced: str = ""

    async def plain(self, at: At, text: str) -> Said:
        """A whole answer; raises Refused."""
        raise AssertionError(self.name)

    async def stream(self, at: At, text: str) -> Said:
        """An answer as it comes; raises Refused."""
        raise AssertionError(self.name)

    async def tools(self, at: At, text: str) -> str:
        """Two turns: the model calls `weather`, and answers with what it says."""
        raise AssertionError(self.name)

    async def tools_stream(self, at: At, text: str) -> str:
        """The same, as streams."""
        raise AssertionError(self.name)

    async def schema(self, at: At, text: str) -> City:
        """An answer of a type, by a schema of the answer."""
        raise AssertionError(self.name)

    async def forced_tool(self, at: At, text: str) -> City:
        """An answer of a type, by way of a tool the model has to call."""
        raise AssertionError(self.name)

    async def image(self, at: At, text: str, data_url: str) -> Said:
        """A whole answer to a text and a PNG."""
        raise AssertionError(self.name)

    async def count(self, at: At, text: str) -> int:
        """How many tokens the prompt has."""
        raise AssertionError(self.name)
