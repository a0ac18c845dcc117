"""What is demanded of a tenant that owes, and when: reminded twice, then suspended; who has paid is resumed.

Pure. A step waits for the one before it, also where nobody looked for a while: between a first and a second
reminder lies as long as the policy says, and nobody is suspended who was not reminded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, get_args

from billing.errors import TenancyInvalid
from billing.money import Femto
from billing.tenancy.tenant import SuspendedBy

Step = Literal["reminder_1", "reminder_2", "suspension"]
STEPS: Final[tuple[Step, ...]] = get_args(Step)

Taken = Mapping[tuple[str, Step], datetime]


@dataclass(frozen=True, slots=True)
class DunningPolicy:
    """How long after a document was due each step is taken.

    Raises:
        TenancyInvalid: a step that is not later than the one before it.
    """

    reminder_1: timedelta = timedelta(days=3)
    reminder_2: timedelta = timedelta(days=10)
    suspension: timedelta = timedelta(days=21)

    def __post_init__(self) -> None:
        if not timedelta(0) < self.reminder_1 < self.reminder_2 < self.suspension:
            raise TenancyInvalid("dunning", "each step is later than the one before it, the first after due")

    def after(self, step: Step) -> timedelta:
        """How long after due a step is taken."""
        delay: timedelta = getattr(self, step)
        return delay


@dataclass(frozen=True, slots=True)
class OverdueDocument:
    """A finalised document of which ``open_amount`` was due and is not paid; people call it ``number``."""

    id: str
    number: str
    due_at: datetime
    open_amount: Femto
    currency: str


@dataclass(frozen=True, slots=True)
class Demand:
    """A step that is to be taken now, of a document."""

    document: OverdueDocument
    step: Step


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done with a tenant."""

    demands: tuple[Demand, ...] = ()
    suspend: bool = False
    resume: bool = False


def decide(
    documents: Sequence[OverdueDocument],
    taken: Taken,
    suspended_by: SuspendedBy | None,
    policy: DunningPolicy,
    at: datetime,
) -> Decision:
    """Decide what is due at an instant.

    Args:
        documents: all of the tenant that are overdue; one that is paid is not among them.
        taken: when steps were taken, of any documents.
        suspended_by: whose suspension stands; None: the tenant is not suspended.
        policy: when steps are due.
        at: now.

    Returns:
        At most one step a document. Who is suspended by an operator is neither suspended nor resumed.
    """
    demands = tuple(_due(documents, taken, policy, at))
    suspends = {(demand.document.id, demand.step) for demand in demands} | taken.keys()
    owing = any((document.id, "suspension") in suspends for document in documents)
    return Decision(demands, owing and suspended_by is None, not owing and suspended_by == "dunning")


def _due(
    documents: Sequence[OverdueDocument], taken: Taken, policy: DunningPolicy, at: datetime
) -> Iterator[Demand]:
    for document in documents:
        previous: Step | None = None
        for step in STEPS:
            if (document.id, step) not in taken:
                if _due_at(document, step, previous, taken, policy) <= at:
                    yield Demand(document, step)
                break
            previous = step


def _due_at(
    document: OverdueDocument, step: Step, previous: Step | None, taken: Taken, policy: DunningPolicy
) -> datetime:
    after_due = document.due_at + policy.after(step)
    if previous is None:
        return after_due
    pause = policy.after(step) - policy.after(previous)
    return max(after_due, taken[document.id, previous] + pause)
