"""What two books say differently of one thing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from billing.money import Femto, decimal_of


@dataclass(frozen=True, slots=True)
class Finding:
    """``object_id`` is what is missing or differs: a request, a document, a payment, an account.

    ``repair`` is a command that a person may run after looking, where one is plain: nothing is ever changed
    by who finds it.
    """

    check: str
    object_id: str
    differs: str
    repair: str | None = None

    @classmethod
    def of(cls, check: str, row: Mapping[str, Any]) -> Self:
        """Of a statement's row; ``owing`` is what the ledger earned too little, below zero: too much."""
        owing = row.get("owing")
        repair = correction(row["tenant_id"], int(owing), row["object_id"]) if owing else None
        return cls(check, row["object_id"], row["differs"], repair)


def correction(tenant_id: str, owing: int, object_id: str) -> str | None:
    """The command that corrects the ledger by this many femto-units; None: it earned what it should."""
    if not owing:
        return None
    favours, amount = ("house", owing) if owing > 0 else ("tenant", -owing)
    said = f"--favours {favours} --reason 'reconciled {object_id}' --idempotency-key 'reconcile:{object_id}'"
    return f"kvitto credit correct {tenant_id} {decimal_of(Femto(amount))} {said}"
