"""A storm: many clients at once, some of whom leave, while parts are killed and the store is spoilt.

Golden answers are taken before it, in quiet. On CPUs the batch a prompt shares changes the last bits, and a
near tie may turn with them; wrong KV derails an answer from its first words. So the first words decide
whether an answer is right, and how many are equal to the last letter is reported.
"""

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import httpx

from tests.chaos import faults
from tests.chaos.client import Question, Seen, ask
from tests.chaos.faults import Blow
from tests.e2e.letters import letter
from tests.e2e.stack import MODEL, Stack, Tenant

STEADY: Final = ("--step-budget-s", "0")  # chunks that no load moves, so that answers can be compared
TENANTS: Final = 3
TEXTS: Final = 10
ANSWER_TOKENS: Final = (4, 12, 32)
ALIKE_CHARACTERS: Final = 12
AT_ONCE: Final = 6
REQUESTS_A_KILL: Final = 9
WAIT_S: Final = 180.0


@dataclass(slots=True)
class Storm:
    """What happened."""

    seed: int
    tenants: list[Tenant]
    golden: dict[str, set[str]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    blows: list[Blow] = field(default_factory=list)

    def counted(self) -> str:
        """In one line, for people."""
        kinds = {kind: sum(s.ending == kind for s in self.seen) for kind in ("complete", "left", "error")}
        complete = [s for s in self.seen if s.ending == "complete"]
        equal = sum(any(text.startswith(s.text) for text in self.golden[s.question.text]) for s in complete)
        blows = ", ".join(sorted({f"{blow.what} {self._times(blow)}x" for blow in self.blows}))
        return f"seed {self.seed}: {kinds}, {equal} of {len(complete)} equal to the letter; {blows}"

    def _times(self, blow: Blow) -> int:
        return sum(other.what == blow.what for other in self.blows)


def prepare(stack: Stack, seed: int, texts: int = TEXTS) -> tuple[Storm, list[str]]:
    """Make tenants and texts, and take the golden answers, each cold and warm."""
    written = [letter(seed * 100 + n, (2, 8, 24, 45)[n % 4]) for n in range(texts)]
    storm = Storm(seed, [stack.tenant("100") for _ in range(TENANTS)])
    oracle = stack.tenant("100")
    for text in written:  # greedy: a shorter answer is the beginning of the longest
        storm.golden[text] = {stack.ask(oracle, text, max(ANSWER_TOKENS)).text for _ in range(2)}
    return storm, written


def questions(storm: Storm, texts: list[str], count: int) -> list[Question]:
    """What is asked: one in four leaves early."""
    chosen = random.Random(storm.seed + 1)  # noqa: S311 -- as above
    made = []
    for number in range(count):
        tenant = chosen.choice(storm.tenants)
        leaves = chosen.random() < 0.25
        made.append(
            Question(
                number=number,
                tenant=tenant.id,
                secret=tenant.secret,
                text=chosen.choice(texts),
                max_tokens=chosen.choice(ANSWER_TOKENS),
                streamed=chosen.random() < 0.6,
                leave_s=chosen.uniform(0.02, 2.5) if leaves else None,
            )
        )
    return made


async def rage(stack: Stack, storm: Storm, asked: list[Question], tell: Callable[[int], None]) -> None:
    """Let it blow: ask everything, a few at a time; a part is killed before every ninth question."""
    waiting = list(reversed(asked))
    due = range(REQUESTS_A_KILL // 2, len(asked), REQUESTS_A_KILL)
    kills = dict(zip(due, itertools.cycle(("prefill", "decode", "gateway")), strict=False))
    limits = httpx.Limits(max_connections=2 * AT_ONCE)
    base_url = stack.credentials["base_url"]
    async with httpx.AsyncClient(base_url=base_url, timeout=WAIT_S, limits=limits) as http:

        async def client() -> None:
            while waiting:
                question = waiting.pop()
                if question.number in kills:
                    storm.blows.append(await asyncio.to_thread(faults.kill, stack, kills[question.number]))
                storm.seen.append(await ask(http, MODEL, question, monotonic))
                if storm.seen[-1].ending == "error":
                    await asyncio.sleep(1.0)  # as a client would that was told to wait
                tell(len(storm.seen))

        clients = [asyncio.create_task(client()) for _ in range(AT_ONCE)]
        weather = asyncio.create_task(_weather(stack, storm))
        try:
            await asyncio.gather(*clients)
        finally:
            weather.cancel()
            await asyncio.gather(weather, return_exceptions=True)


async def _weather(stack: Stack, storm: Storm) -> None:
    """Spoil the store now and then."""
    chosen = random.Random(storm.seed + 2)  # noqa: S311 -- repeatable faults, no secret
    while True:
        await asyncio.sleep(chosen.uniform(0.5, 2.5))
        blow = await asyncio.to_thread(faults.spoil, stack, chosen)
        if blow is not None:
            storm.blows.append(blow)
