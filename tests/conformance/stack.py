"""The stack that real clients drive. Gateway, Postgres, Valkey and recipe are real; a script says the tokens.

The small model cannot drive tools. So the engine is doubled at its process border: what the model would
write is a function of the prompt, encoded by the model's own tokenizer and served in chunks of a few tokens.
"""

import asyncio
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from billing.money import Femto
from billing.pricing.book import PriceBook
from billing.tenancy.api_key import KeyGrant
from billing.tenancy.limits import Limit
from billing.tenancy.service import Tenancy
from engine.api import GenerateRequest, TokenChunk
from gateway.admission.limits import Demand, counted
from recipe.registry import Recipe
from recipe.tokenizer import Tokenizer
from tests.gateway.conftest import CREDIT, EPOCH, OPTIONS, PEPPER, ROW, House, furnish, served
from tests.gateway.doubles import Play, ScriptedEngine, ScriptedGeneration

CONF_OPTIONS = replace(OPTIONS, body_bytes_max=2**21)
BLOCK_TOKENS = 64
CHUNK_TOKENS = (1, 3, 2)  # in turn: pieces end anywhere, also inside a character
REQUESTS_PER_MINUTE = 30  # whoever finds none left waits for two seconds

THOUGHTS = "Let me see: 日本 🌍."  # before each turn whose prompt asks to think
Script = Callable[[str], str]  # the prompt, special tokens spelled out, to what the model writes


@dataclass(frozen=True)
class Dialect:
    """How a family of models spells what it writes; ``end`` closes its turn."""

    end: str

    def says(self, text: str) -> str:
        """A turn of text."""
        return text + self.end

    def calls(self, name: str, /, **arguments: Any) -> str:
        """A turn that calls a tool."""
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"<tool_call>\n{call}\n</tool_call>{self.end}"


@dataclass(frozen=True)
class Dsml(Dialect):
    """DeepSeek's spelling."""

    def calls(self, name: str, /, **arguments: Any) -> str:
        """See `Dialect`."""
        parameters = "".join(
            f'<｜DSML｜ parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
            f"{value if isinstance(value, str) else json.dumps(value)}</｜DSML｜ parameter>\n"
            for key, value in arguments.items()
        )
        invoke = f'<｜DSML｜ invoke name="{name}">\n{parameters}</｜DSML｜ invoke>'
        return f"\n\n<｜DSML｜ calls>\n{invoke}\n</｜DSML｜ calls>{self.end}"


CHATML = Dialect("<|im_end|>")
DEEPSEEK = Dsml("<｜end▁of▁sentence｜>")


class TokenSource(ScriptedEngine):
    """Serves what a script makes of each prompt.

    Attributes:
        script: what the model writes.
        silent_s: prefill takes so long, so that heartbeats come first.
        prompts: what was asked, in order, special tokens spelled out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        names = sorted(tokenizer.added.ids, key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, names))})")
        self._tokenizer = tokenizer
        self.script: Script = lambda _: ""
        self.silent_s = 0.0
        self.prompts: list[str] = []

    def submit(self, request: GenerateRequest) -> ScriptedGeneration:
        """See `ScriptedEngine`: the turn's own play."""
        prompt = self._tokenizer.decode_bytes(request.prompt_ids).decode("utf-8", "replace")
        self.prompts.append(prompt)
        thoughts = f"{THOUGHTS}</think>" if prompt.endswith("<think>") else ""
        token_ids = self.encode(thoughts + self.script(prompt))
        cut = len(token_ids) > request.sampling.max_tokens
        chunks = list(_chunks(token_ids[: request.sampling.max_tokens]))
        chunks[-1] = replace(chunks[-1], finish="length" if cut else "stop")
        self.play = Play(chunks, hit_tokens=self._hit(request.prompt_ids), prefill=self._silence())
        return super().submit(request)

    def encode(self, text: str) -> list[int]:
        """Token ids of what a model writes: the spelling of a special token is that token."""
        ids, plain = self._tokenizer.added.ids, self._tokenizer.encode_plain
        return [
            token_id
            for piece in self._special.split(text)
            for token_id in ([ids[piece]] if piece in ids else plain(piece))
        ]

    def _silence(self) -> asyncio.Event | None:
        if not self.silent_s:
            return None
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(self.silent_s, over.set)
        return over

    def _hit(self, prompt_ids: tuple[int, ...]) -> int:
        """What a prefix store would hold: whole blocks of earlier prompts, never the whole prompt."""
        earlier = (generation.request.prompt_ids for generation in self.generations)
        longest = max((_shared(prompt_ids, other) for other in earlier), default=0)
        return min(longest, len(prompt_ids) - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _chunks(token_ids: list[int]) -> Iterator[TokenChunk]:
    sizes, left = itertools.cycle(CHUNK_TOKENS), iter(token_ids)
    while piece := tuple(itertools.islice(left, next(sizes))):
        yield TokenChunk(piece, None)


@dataclass
class Exchange:
    """One request as it came, and the bytes that left. ``at`` is in seconds of the monotonic clock."""

    at: float
    method: str
    path: str
    body: bytes
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    answer: bytes = b""

    @property
    def streamed(self) -> bool:
        """The answer is an event stream."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


class Recorder:
    """An ASGI application around another; keeps what passes."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.exchanges: list[Exchange] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, and its answer back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(time.monotonic(), scope["method"], scope["path"], b"")
        self.exchanges.append(exchange)

        async def hear() -> Any:
            message = await receive()
            exchange.body += message.get("body", b"")
            return message

        async def tell(message: Any) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            exchange.answer += message.get("body", b"")
            await send(message)

        await self._app(scope, hear, tell)


class LimitedTenancy(Tenancy):
    """Every key may send so many requests a minute."""

    async def find_key(self, digest: bytes) -> KeyGrant | None:
        """See `Tenancy`."""
        grant = await super().find_key(digest)
        return None if grant is None else replace(grant, limits=(_limit(grant.key_id),))


def _limit(key_id: str) -> Limit:
    return Limit("key", key_id, "requests_per_minute", REQUESTS_PER_MINUTE)


@dataclass
class Stack:
    """A served house, its token source, and what passed between it and its clients.

    ``answered`` is for tests to count what they were answered.
    """

    house: House
    source: TokenSource
    dialect: Dialect
    recorder: Recorder = field(init=False)
    answered: int = 0

    @property
    def model(self) -> str:
        """What clients call the model."""
        return self.house.parts.recipe.served_name

    @property
    def asked(self) -> list[Exchange]:
        """Requests for an answer, in order."""
        return [one for one in self.recorder.exchanges if one.method == "POST"]

    async def exhaust(self) -> None:
        """Take all requests that the key's limit holds (`LimitedTenancy`)."""
        await self.house.spend(leaving=CREDIT)  # nothing is admitted before the balance is known
        limits = counted((_limit(self.house.key_id),), self.model, "")
        admit = self.house.admission.admit
        one = Demand(1, 1, limits=limits)
        await asyncio.gather(
            *(admit(self.house.tenant_id, Femto(1), one) for _ in range(REQUESTS_PER_MINUTE))
        )


@asynccontextmanager
async def stacked(urls: tuple[str, str], recipe: Recipe, *, limited: bool = False) -> AsyncIterator[Stack]:
    """Serve a recipe; ``urls`` are Postgres's and Valkey's."""
    house = await furnish(*urls, CONF_OPTIONS)
    source = TokenSource(recipe.tokenizer)
    house.engine = source
    await house.parts.prices.publish(PriceBook((replace(ROW, model=recipe.served_name),)), "test", EPOCH)
    house.parts = replace(house.parts, engine=source, recipe=recipe)  # type: ignore[arg-type]  # a double
    if limited:
        house.parts = replace(house.parts, tenancy=LimitedTenancy(house.parts.database, PEPPER))
    thinks = "</think>" in recipe.tokenizer.added.ids
    stack = Stack(house, source, DEEPSEEK if thinks else CHATML)

    def recorded(app: Any) -> Any:
        stack.recorder = Recorder(app)
        return stack.recorder

    async with served(house, around=recorded):
        yield stack
