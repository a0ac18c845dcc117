"""Which prompts a step computes, and how much of each: cheapest first, but nobody waits for ever.

Between tenants the order is weighted fair queueing. Each tenant has a virtual time, the seconds it was served
divided by its weight; the tenant whose next chunk would *end* earliest in virtual time goes first. A tenant
that comes back from idling starts where the least served was when the running step began: it neither saves up
nor owes, and that step is the first of what others get beside it. All chunks of a step end together, so a
step is left shorter rather than filled with chunks that *begin* behind the end of another tenant's in it. So
from the start of the step in which a request of cost ``s`` and weight ``w`` comes until it is worked off,
another tenant of weight ``w'`` gets at most ``s·w'/w`` and one chunk: its share plus one step.

Within a tenant the order is by remaining cost, less ``ageing`` for each second waited. Both sides of a
comparison age alike, so a request of remaining cost ``s`` is passed only by what came within ``s / ageing``
seconds after it.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.cost import CHUNK_FLOOR_TOKENS, CostLaw, Work

AGEING: Final = 0.3

_OVERHEAD_MAX: Final = 0.2
_STRETCH_MAX: Final = 1.5
_STRETCH_ALONE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that is not computed to its end. ``arrived_s`` is of any clock that all prompts share.

    ``weight`` is its tenant's, above 0. ``loads``: some of what counts as computed must be loaded first, so
    that it is due for admission, not for a chunk.
    """

    request_id: str
    tenant: str
    arrived_s: float
    computed_tokens: int
    total_tokens: int
    weight: float = 1.0
    loads: bool = False

    @property
    def remaining(self) -> Work:
        """What is left to compute."""
        return Work.chunk(self.computed_tokens, self.total_tokens - self.computed_tokens)


def stretched(step_s: float, fixed_s: float, *, waited_for: bool) -> float:
    """Seconds for a step that should take ``step_s``: more, where that is dear or hurts nobody.

    While others wait for its end, between two tokens or for blocks to go on from, up to half as long again,
    until ``fixed_s``, what a step costs before it computes a chunk, is a fifth of it: a slow machine would
    spend half of its time on that, and what comes late makes everybody wait. While nobody does, five times as
    long: chunks compute faster the larger they are, and whoever comes then waits for one step at most.
    """
    if not waited_for:
        return step_s * _STRETCH_ALONE
    return max(step_s, min(fixed_s / _OVERHEAD_MAX, step_s * _STRETCH_MAX))


@dataclass(slots=True)
class StepBudget:
    """What is left of a step, in seconds and in tokens, while its chunks are handed out.

    The first chunk has at least ``floor_tokens``, whatever the time, so that each step makes progress.
    """

    law: CostLaw
    left_s: float
    left_tokens: int
    floor_tokens: int = CHUNK_FLOOR_TOKENS
    chunks: int = 0

    @property
    def quantum_s(self) -> float:
        """Seconds of prefill in this step; the floor's where there is less."""
        return max(self.left_s, self.law.work_s(Work.chunk(0, self.floor_tokens)))

    def offer(self, context_tokens: int, wanted_tokens: int) -> int:
        """The chunk that fits behind ``context_tokens`` computed tokens; 0 when the step is full."""
        floor = 0 if self.chunks else self.floor_tokens
        wanted_tokens = max(min(wanted_tokens, self.left_tokens), 0)
        return self.law.chunk(self.left_s, context_tokens, wanted_tokens, floor)

    def spend(self, context_tokens: int, tokens: int) -> None:
        """Take off the chunk that was scheduled."""
        if tokens:
            self.chunks += 1
            self.left_tokens -= tokens
            self.left_s -= self.law.work_s(Work.chunk(context_tokens, tokens))


@dataclass(frozen=True, slots=True)
class Order:
    """Prompts, next first; only the first ``together`` may share the next step."""

    prompts: list[Prompt]
    together: int


@dataclass(slots=True)
class _Backlog:
    """Prompts of one tenant, next first; ``start`` is the virtual time at which the next is served."""

    prompts: list[tuple[float, Prompt]]
    start: float
    weight: float
    taken: int = 0

    @property
    def loads(self) -> bool:
        """Whether the next prompt takes no chunk."""
        return self.prompts[self.taken][1].loads

    def next(self, quantum_s: float) -> tuple[float, float, str]:
        """Key of the next prompt among tenants: virtual end of its chunk, age, name."""
        cost_s, prompt = self.prompts[self.taken]
        return self.start + min(cost_s, quantum_s) / self.weight, prompt.arrived_s, prompt.request_id

    def pop(self, quantum_s: float) -> Prompt:
        cost_s, prompt = self.prompts[self.taken]
        self.start += min(cost_s, quantum_s) / self.weight
        self.taken += 1
        return prompt


@dataclass(slots=True)
class FairOrder:
    """Keeps the tenants' virtual times, and their weights as their last prompts have brought them."""

    ageing: float = AGEING
    _served: dict[str, float] = field(default_factory=dict)
    _weights: dict[str, float] = field(default_factory=dict)
    _waiting: frozenset[str] = frozenset()
    _now: float = 0.0

    def order(self, prompts: Iterable[Prompt], law: CostLaw, quantum_s: float) -> Order:
        """The order in which to hand out steps of ``quantum_s`` seconds of prefill."""
        by_tenant: dict[str, list[tuple[float, Prompt]]] = {}
        for prompt in prompts:
            costed = (law.work_s(prompt.remaining), prompt)
            by_tenant.setdefault(prompt.tenant, []).append(costed)
        self._advance(frozenset(by_tenant))
        for tenant, prompts_of_it in by_tenant.items():
            _, newest = max(prompts_of_it, key=lambda costed: (costed[1].arrived_s, costed[1].request_id))
            self._weights[tenant] = newest.weight
        backlogs = {
            tenant: _Backlog(sorted(costed, key=self._key), self._served[tenant], self._weights[tenant])
            for tenant, costed in by_tenant.items()
        }
        return _merged(backlogs, quantum_s)

    def charge(self, tenant: str, seconds: float) -> None:
        """A tenant was given ``seconds`` of prefill."""
        weight = self._weights.get(tenant, 1.0)
        self._served[tenant] = self._served.get(tenant, self._now) + seconds / weight

    def _key(self, costed: tuple[float, Prompt]) -> tuple[float, float, str]:
        cost_s, prompt = costed
        return cost_s + self.ageing * prompt.arrived_s, prompt.arrived_s, prompt.request_id

    def _advance(self, waiting: frozenset[str]) -> None:
        """Virtual time is that of the least served who wait; when nobody went on waiting it begins anew.

        Who comes starts at the time of the order before, by which the step that runs was handed out.
        """
        if not self._waiting & waiting:
            self._served, self._now = {}, 0.0
        for tenant in waiting - self._waiting:
            self._served[tenant] = max(self._served.get(tenant, 0.0), self._now)
        if waiting:
            self._now = min(self._served[tenant] for tenant in waiting)
        self._served = {
            tenant: served
            for tenant, served in self._served.items()
            if tenant in waiting or served > self._now
        }
        self._weights = {tenant: self._weights.get(tenant, 1.0) for tenant in self._served}
        self._waiting = waiting


def _merged(backlogs: Mapping[str, _Backlog], quantum_s: float) -> Order:
    """The backlogs as one; virtual ends only rise, so the first two tenants have the ends to compare with."""
    heap = [(backlog.next(quantum_s), tenant) for tenant, backlog in backlogs.items()]
    heapq.heapify(heap)
    ordered: list[Prompt] = []
    ends: list[tuple[str, float]] = []
    together = None
    while heap:
        (end, _, _), tenant = heapq.heappop(heap)
        backlog = backlogs[tenant]
        if together is None and not backlog.loads:
            if any(backlog.start >= ended for other, ended in ends if other != tenant):
                together = len(ordered)
            if len(ends) < 2 and all(other != tenant for other, _ in ends):
                ends.append((tenant, end))
        ordered.append(backlog.pop(quantum_s))
        if backlog.taken < len(backlog.prompts):
            heapq.heappush(heap, (backlog.next(quantum_s), tenant))
    return Order(ordered, len(ordered) if together is None else together)


def share_step(ordered: Sequence[Prompt], budget: StepBudget) -> dict[str, int]:
    """Tokens of each prompt in a step, by request id, in order until the step is full. Loads take none."""
    chunks: dict[str, int] = {}
    for prompt in ordered:
        if prompt.loads:
            continue
        chunk = budget.offer(prompt.computed_tokens, prompt.total_tokens - prompt.computed_tokens)
        if chunk == 0:
            break
        budget.spend(prompt.computed_tokens, chunk)
        chunks[prompt.request_id] = chunk
    return chunks
