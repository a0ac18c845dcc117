"""What runs where, as this process knows it: its own calls, what others have, what the worker says."""

from dataclasses import dataclass, field
from typing import Final

from engine.cluster.options import WorkerSnapshot
from engine.cluster.score import NOTHING, Load
from engine.cluster.worker_client import WorkerClient
from engine.cost import CostLaw, Work
from engine.wire import Stage, WorkerReport

# A call younger than this when a report comes is not in it.
REPORT_AGE_S: Final = 0.5
DEFAULT_LAW: Final = CostLaw()


@dataclass(slots=True, eq=False)
class Placement:
    """One call of one request on one worker. Its owner raises `tokens` as the context grows.

    ``left_ms`` is what is left of its prefill; more tokens than at first mean that nothing is. ``reason``
    says for the metrics why it came here.
    """

    worker: "Worker"
    stage: Stage
    tokens: int
    left_ms: int = 0
    placed_s: float = 0.0
    reason: str = ""
    first_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.first_tokens = self.tokens

    @property
    def queued_ms(self) -> int:
        """Milliseconds of prefill left."""
        return self.left_ms if self.tokens == self.first_tokens else 0


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as this process sees it.

    ``others`` is what other gateways have there, ``unknown`` what the worker said last beyond our own.
    ``encoding`` counts our calls there that compute no tokens.
    """

    client: WorkerClient
    ready: bool = False
    leases: list[Placement] = field(default_factory=list)
    report: WorkerReport | None = None
    others: Load = NOTHING
    unknown: Load = NOTHING
    law: CostLaw = DEFAULT_LAW
    encoding: int = 0

    @property
    def name(self) -> str:
        """Return the name it is certified for."""
        return self.client.address.name

    @property
    def own(self) -> Load:
        """What this process has there."""
        return _sum(self.leases)

    @property
    def load(self) -> Load:
        """What runs there, as far as anybody knows."""
        return self.own + self.others.at_least(self.unknown)

    def hear(self, report: WorkerReport | None, at_s: float) -> None:
        """Take over what the worker says of itself; None: it answers, but says nothing.

        Its word on the prefill that is left corrects our own calls: they were counted whole.
        """
        if report is None:
            self.ready, self.unknown = True, NOTHING
            return
        self.ready, self.report = not report.draining, report
        if report.law is not None:
            self.law = _law(report.law, self.law)
        old = [placement for placement in self.leases if at_s - placement.placed_s >= REPORT_AGE_S]
        prefills = sum(1 for placement in old if placement.queued_ms)
        left_ms = round(1000 * _left_s(self.law, report.prefill_tokens, max(prefills, report.waiting, 1)))
        believed_ms = _sum(old).queued_ms + self.others.queued_ms
        if left_ms < believed_ms:
            for placement in old:
                placement.left_ms = placement.left_ms * left_ms // believed_ms
        said = Load(report.running + report.waiting, report.kv_tokens, left_ms)
        self.unknown = said.over(_sum(old))

    def lost(self) -> None:
        """It does not answer: nothing is placed there, and nothing of what it said counts."""
        self.ready, self.unknown = False, NOTHING

    def snapshot(self) -> WorkerSnapshot:
        """Return its state now."""
        draining = self.report is not None and self.report.draining
        running = len(self.leases) + self.encoding
        return WorkerSnapshot(self.name, self.client.address.role, self.ready, running, draining)


def _sum(placements: list[Placement]) -> Load:
    return Load(
        len(placements),
        sum(placement.tokens for placement in placements),
        sum(placement.queued_ms for placement in placements),
    )


def _law(terms: tuple[float, float, float], known: CostLaw) -> CostLaw:
    try:
        return CostLaw(*terms)
    except ValueError:
        return known


def _left_s(law: CostLaw, tokens: int, prompts: int) -> float:
    """Seconds to compute what is left of several prompts, taken to be of one length."""
    each = Work.chunk(0, tokens // prompts)
    return law.work_s(Work(tokens, each.pairs * prompts))
