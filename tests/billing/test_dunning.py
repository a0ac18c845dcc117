"""What is demanded of who owes: in order, with the promised pauses, once; and resumed when it pays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.audit.service import Audit
from billing.db.transaction import Connection
from billing.errors import TenancyInvalid
from billing.lifecycle.collection import Dunning
from billing.lifecycle.dunning import STEPS, Decision, DunningPolicy, OverdueDocument, Step, decide
from billing.lifecycle.service import Lifecycle
from billing.money import femto_of
from billing.notify.service import Notices
from tests.billing.conftest import NOON

DAY = timedelta(days=1)
POLICY = DunningPolicy()
DOCUMENT = OverdueDocument("inv_1", "2026-0001", NOON, femto_of("12.50"), "USD")


def after(days: float) -> datetime:
    return NOON + timedelta(days=days)


def steps(decision: Decision) -> list[Step]:
    return [demand.step for demand in decision.demands]


@pytest.mark.parametrize(
    ("days", "taken", "due", "suspend"),
    [
        (2.9, {}, [], False),
        (3, {}, ["reminder_1"], False),
        (9.9, {"reminder_1": 3}, [], False),
        (10, {"reminder_1": 3}, ["reminder_2"], False),
        (20.9, {"reminder_1": 3, "reminder_2": 10}, [], False),
        (21, {"reminder_1": 3, "reminder_2": 10}, ["suspension"], True),
        (22, {"reminder_1": 3, "reminder_2": 10, "suspension": 21}, [], True),  # resumed by hand meanwhile
        (40, {}, ["reminder_1"], False),  # nobody looked for a while: still one after another
        (46.9, {"reminder_1": 40}, [], False),
        (47, {"reminder_1": 40}, ["reminder_2"], False),
        (57.9, {"reminder_1": 40, "reminder_2": 47}, [], False),
        (58, {"reminder_1": 40, "reminder_2": 47}, ["suspension"], True),
    ],
)
def test_each_step_is_due_so_long_after_due_and_so_long_after_the_one_before(
    days: float, taken: dict[Any, int], due: list[Step], suspend: bool
) -> None:
    known = {(DOCUMENT.id, step): after(day) for step, day in taken.items()}
    decision = decide([DOCUMENT], known, None, POLICY, after(days))
    assert (steps(decision), decision.suspend, decision.resume) == (due, suspend, False)


def test_who_has_paid_is_resumed_and_by_dunning_alone() -> None:
    known: dict[tuple[str, Step], datetime] = {("inv_1", step): NOON for step in STEPS}
    assert decide([], known, "dunning", POLICY, after(30)) == Decision(resume=True)
    assert decide([], known, "operator", POLICY, after(30)) == Decision()
    assert decide([], known, None, POLICY, after(30)) == Decision()
    newer = replace(DOCUMENT, id="inv_2", due_at=after(29))
    assert decide([newer], known, "dunning", POLICY, after(30)) == Decision(resume=True)
    assert decide([DOCUMENT, newer], known, "dunning", POLICY, after(30)) == Decision()


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=12),
    st.lists(st.integers(0, 30), min_size=1, max_size=3),
)
def test_whenever_somebody_looks_nobody_is_suspended_without_two_reminders_and_their_pauses(
    looks: list[int], dues: list[int]
) -> None:
    documents = [replace(DOCUMENT, id=f"inv_{n}", due_at=after(due)) for n, due in enumerate(dues)]
    taken: dict[tuple[str, Step], datetime] = {}
    for day in sorted(looks):
        overdue = [document for document in documents if document.due_at < after(day)]
        decision = decide(overdue, taken, None, POLICY, after(day))
        for demand in decision.demands:
            assert (demand.document.id, demand.step) not in taken
            taken[demand.document.id, demand.step] = after(day)
        if decision.suspend:
            assert any((document.id, "suspension") in taken for document in overdue)
    for document_id, step in taken:
        if step == "suspension":
            first, second, last = (taken[document_id, each] for each in STEPS)
            assert second - first >= 7 * DAY
            assert last - second >= 11 * DAY


def test_steps_out_of_order_are_no_policy() -> None:
    for wrong in ({"reminder_1": 10 * DAY}, {"suspension": 5 * DAY}, {"reminder_1": timedelta(0)}):
        with pytest.raises(TenancyInvalid):
            DunningPolicy(**wrong)


@dataclass
class Owed:
    """Receivables as a test says them."""

    documents: dict[str, list[OverdueDocument]] = field(default_factory=dict)

    async def overdue(
        self, connection: Connection, at: datetime, tenant_id: str | None = None
    ) -> Mapping[str, Sequence[OverdueDocument]]:
        known = self.documents if tenant_id is None else {tenant_id: self.documents.get(tenant_id, [])}
        return {
            owner: due
            for owner, listed in known.items()
            if (due := [document for document in listed if document.due_at < at])
        }


async def told(house: Any) -> list[str]:
    notices = await Notices(house.database).notices(house.tenant_id)
    return [kept.notice.facts["step"] for kept in notices if kept.notice.kind == "payment.overdue"]


async def test_a_tenant_is_reminded_suspended_and_resumed_when_it_pays(house: Any) -> None:
    owed = Owed({house.tenant_id: [DOCUMENT]})
    dunning = Dunning(house.database, owed)
    changed = []
    for day in (1, 3, 4, 10, 20, 21, 22):
        for _ in range(2):  # twice, as after a job that was killed
            changed += [(day, tenant.suspension) for tenant in await dunning.look(after(day))]
    assert await told(house) == ["reminder_1", "reminder_2", "suspension"]
    ((day, suspension),) = changed
    assert (day, suspension.by) == (21, "dunning")
    facts = (await Notices(house.database).notices(house.tenant_id))[0].notice.facts
    assert (facts["amount"], facts["number"]) == ("12.5", "2026-0001")
    owed.documents.clear()
    (resumed,) = await dunning.look(after(23))
    assert resumed.suspension is None
    assert await dunning.look(after(24)) == []
    actions = [event.deed.action for event in await Audit(house.database).events(house.tenant_id)]
    assert actions[-2:] == ["tenant.suspend", "tenant.resume"]
    assert await Audit(house.database).verify(house.tenant_id) == []


async def test_an_operators_suspension_outlasts_a_payment(house: Any) -> None:
    owed = Owed({house.tenant_id: [DOCUMENT]})
    dunning, lifecycle = Dunning(house.database, owed), Lifecycle(house.database)
    for day in (3, 10, 21):
        await dunning.look(after(day))
    taken_over = await lifecycle.suspend(house.tenant_id, "fraud", after(22), actor="ann")
    assert taken_over.suspension is not None
    assert taken_over.suspension.by == "operator"
    owed.documents.clear()
    assert await dunning.look(after(23)) == []
    assert (await house.tenancy.tenant(house.tenant_id)).suspension is not None


async def test_who_was_resumed_by_hand_and_still_owes_is_suspended_again(house: Any) -> None:
    dunning = Dunning(house.database, Owed({house.tenant_id: [DOCUMENT]}))
    for day in (3, 10, 21):
        await dunning.look(after(day))
    await Lifecycle(house.database).resume(house.tenant_id, "they promised", after(21), actor="ann")
    assert len(await dunning.look(after(22))) == 1
