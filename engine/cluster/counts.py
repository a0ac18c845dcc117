"""What the router did, in numbers that only rise; whoever exports metrics reads them (`Router.counts`)."""

from collections import Counter
from dataclasses import dataclass, field

from engine.wire import Encode, Stage


@dataclass(slots=True)
class Counts:
    """Since the process began.

    Args:
        placements: calls by stage and reason (`queue`, `mono`, `no_prefill_worker`, `little_left`, `idle`,
            `stored`, `no_decode_worker`; `images` of stage `encode`).
        refusals: calls nobody took, by reason (`none_ready`, `full`, `queue`).
        retries: calls placed again after a worker failed, by stage.
        unshared: calls placed by this process's own ledger because the shared one did not answer.
        unestimated: prompts placed without knowing what is stored, because the store did not answer in time.
    """

    placements: Counter[tuple[Stage | Encode, str]] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    retries: Counter[Stage] = field(default_factory=Counter)
    unshared: int = 0
    unestimated: int = 0
