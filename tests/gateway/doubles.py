"""The engine doubled at its process border, and a recipe whose tokens are characters."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from billing.receipts.receipt import Attested
from engine.api import Counts, GenerateRequest, GenerationCancelled, TokenChunk
from engine.proof.attestation import PrefillAttestation, commitment
from engine.proof.coverage import Attempt
from recipe.constraint import of_response_format
from recipe.errors import PromptTooLong
from recipe.events import Event, Finish, FinishReason, Thinking, ToolArguments, ToolCall
from recipe.families.limits import calls_of, completion_tokens
from recipe.families.vision import has_images
from recipe.images import NO_IMAGES, Images
from recipe.marks import Marks
from recipe.markup import MarkupReader
from recipe.memo import EncodeMemo
from recipe.prompt import Prompt
from recipe.request import Request
from tests.attested import Signed

MODEL = "smollm2-135m-instruct"  # as in the price book that ships
CONTEXT_TOKENS = 400
END = 0

Step = TokenChunk | Exception | asyncio.Event


def says(text: str, finish: FinishReason | None = None) -> TokenChunk:
    return TokenChunk(tuple(map(ord, text)), finish)


@dataclass
class Play:
    """What the engine does with a request: prefill's answer, then chunks; at an event it waits.

    ``called``: it has called a worker, whatever that has answered.
    """

    steps: Sequence[Step] = (says("Hel"), says("lo"), TokenChunk((END,), "stop"))
    hit_tokens: int = 0
    prefill: Exception | asyncio.Event | None = None
    called: bool = False


@dataclass
class ScriptedGeneration:
    request: GenerateRequest
    play: Play
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    yielded: int = 0
    attempts: tuple[Attempt, ...] = ()

    @property
    def called(self) -> bool:
        return self.play.called or bool(self.attempts)

    async def prefilled(self) -> tuple[PrefillAttestation, str]:
        if isinstance(self.play.prefill, Exception):
            raise self.play.prefill
        if self.play.prefill is not None and not await self._reached(self.play.prefill):
            raise GenerationCancelled
        self.attempts = (Attempt(0, "prefill", "prefill-0", 0, 0),)
        return attest(self.request, self.play.hit_tokens)

    async def __aiter__(self) -> AsyncIterator[TokenChunk]:
        for step in self.play.steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, asyncio.Event):
                if not await self._reached(step):
                    return
            else:
                self._count(len(step.token_ids))
                yield step
                self.yielded += 1  # it was taken: the next one is asked for

    def _count(self, tokens: int) -> None:
        """The owner takes tokens: all of one decode."""
        *before, last = self.attempts
        if last.stage == "prefill":
            before, last = [*before, last], Attempt(1, "decode", "decode-0", 0, 0)
        self.attempts = (*before, replace(last, output_to=last.output_to + tokens))

    async def cancel(self) -> None:
        self.cancelled.set()

    async def _reached(self, event: asyncio.Event) -> bool:
        waits = [asyncio.create_task(one.wait()) for one in (event, self.cancelled)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return event.is_set()


class ScriptedEngine:
    """Implements `engine.api.Engine`; plays `play` for every request."""

    def __init__(self) -> None:
        self.play = Play()
        self.ready = True
        self.counts = Counts()
        self.generations: list[ScriptedGeneration] = []

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def submit(self, request: GenerateRequest) -> ScriptedGeneration:
        self.generations.append(ScriptedGeneration(request, self.play))
        return self.generations[-1]

    def snapshot(self) -> tuple[()]:
        return ()

    @property
    def running(self) -> int:
        return sum(not generation.cancelled.is_set() for generation in self.generations)


def attest(request: GenerateRequest, hit_tokens: int) -> tuple[PrefillAttestation, str]:
    attestation = PrefillAttestation(
        request_id=request.request_id,
        attempt=0,
        stage="prefill",
        worker="prefill-0",
        namespace="test",
        prompt_tokens=len(request.prompt_ids),
        hit_tokens=hit_tokens,
        owed_tokens=0,
        hit_device_tokens=0,
        hit_store_tokens=hit_tokens,
        block_tokens=64,
        retention_class=request.retention_class,
        promised_until=None,
        prompt_commitment=commitment(request.nonce, request.prompt_ids),
        cached_prefix_commitment=commitment(request.nonce, request.prompt_ids[:hit_tokens]),
        memo=request.memo,
        attested_at_ns=1,
    )
    return attestation, Signed(attestation).document


@dataclass(frozen=True)
class Drained:
    lines: int
    unreachable: tuple[str, ...]


@dataclass
class ScriptedJournals:
    """Implements `gateway.sweep.Journals`: what workers have written and nobody acknowledged."""

    lines: list[Signed] = field(default_factory=list)
    unreachable: tuple[str, ...] = ()
    before: Callable[[], Awaitable[object]] | None = None

    async def drain(self, keep: Callable[[Sequence[Attested]], Awaitable[None]]) -> Drained:
        if self.before is not None:
            await self.before()
        lines = list(self.lines)
        await keep(lines)
        self.lines = [line for line in self.lines if line not in lines]
        return Drained(len(lines), self.unreachable)


# Tokens that stand for more than a character.
MEANT: dict[str, Event] = {
    "\ue000": Thinking("hm"),
    "\ue001": ToolCall(0, "f"),
    "\ue002": ToolArguments(0, '{"a":'),
    "\ue003": ToolArguments(0, "1}"),
}


class CharacterParser:
    """Reads calls where tools are offered, and tokens that stand for an event."""

    def __init__(self, prompt: Prompt) -> None:
        self._reader = MarkupReader(Marks(), "text", prompt.calls, prompt.stop)
        self._called = False
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        return self._reader.stopped

    def push(self, token_ids: Sequence[int]) -> list[Event]:
        events: list[Event] = []
        said = "".join(chr(token_id) for token_id in token_ids if token_id != END)
        for meant, run in groupby(said, MEANT.get):
            self.reasoning_tokens += isinstance(meant, Thinking)
            self._called = self._called or isinstance(meant, ToolCall)
            events += self._reader.feed("".join(run)) if meant is None else [meant]
        return events

    def finish(self, reason: FinishReason) -> list[Event]:
        rest = [] if self._reader.stopped else self._reader.end(reason)
        called = (self._called or self._reader.call_count > 0) and reason == "stop"
        return [*rest, Finish("tool_calls" if called else reason, self._reader.stops.matched)]


class Characters:
    """What is asked of a tokenizer: a token's bytes."""

    def decode_bytes(self, token_ids: Sequence[int]) -> bytes:
        return "".join(map(chr, token_ids)).encode()


class CharacterRecipe:
    """Implements `recipe.registry.Recipe`: a prompt is its characters."""

    served_name = MODEL
    context_tokens = CONTEXT_TOKENS
    tokenizer: Any = Characters()

    def __init__(self) -> None:
        self.memo = EncodeMemo()

    reads_images = False

    def render(self, request: Request, scope: str = "", images: Images = NO_IMAGES) -> Prompt:
        if not self.reads_images:
            has_images(request, None)
        lines = [f"{message.role}:{message.content}\n" for message in request.conversation.messages]
        if request.text is not None:
            lines = [request.text]
        encoded = self.memo.ids(scope, lines, lambda place: [ord(character) for character in lines[place]])
        token_ids = tuple(token_id for line in encoded for token_id in line)
        if len(token_ids) >= self.context_tokens:
            raise PromptTooLong(self.context_tokens, len(token_ids))
        return Prompt(
            token_ids=token_ids,
            stop_token_ids=(END,),
            stop=request.stop,
            starts_thinking=False,
            sampling=request.sampling,
            ignored_params=request.ignored_params,
            max_tokens_default=100,
            constraint=of_response_format(request.conversation),
            calls=calls_of(request),
        )

    def max_tokens(self, request: Request, prompt: Prompt) -> int:
        return completion_tokens(request, prompt, self.context_tokens)

    def parser(self, prompt: Prompt) -> CharacterParser:
        return CharacterParser(prompt)
