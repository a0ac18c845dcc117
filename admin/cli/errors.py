"""What people read when a command cannot do its work: one line that says what to do.

CommandFailed   a command knows what is wrong and says so itself
StackError, BillingError, ValkeyUnavailable: raised below the commands; `explain` has their lines
"""

from typing import Final

UNREACHABLE: Final = "`kvitto status` shows what runs, `kvitto up` starts it"


class CommandFailed(Exception):
    """The command cannot do its work; its text is the one line shown."""


def explain(error: Exception) -> str | None:
    """One line for an error of ours; None for one that nobody foresaw, whose traceback then helps best."""
    from admin.stack.errors import StackError
    from billing.errors import (
        AliasMissing,
        BillingError,
        ExportMissing,
        InvoiceMissing,
        KeyMissing,
        LimitMissing,
        PaymentUnknown,
        PlanMissing,
        ProjectMissing,
        StoreUnavailable,
        TenantMissing,
        UserMissing,
        WebhookMissing,
    )
    from gateway.refusal import ValkeyUnavailable

    if not isinstance(error, CommandFailed | StackError | BillingError | ValkeyUnavailable):
        return None
    advice: dict[type[Exception], str] = {
        TenantMissing: "`kvitto tenant list` shows all of them",
        ProjectMissing: "`kvitto project list` shows all of them",
        KeyMissing: "`kvitto key list` shows all of them",
        PlanMissing: "`kvitto price plan list` shows all of them",
        AliasMissing: "`kvitto model list` shows all of them",
        InvoiceMissing: "`kvitto invoice list` shows all of them",
        UserMissing: "`kvitto user list` shows all of them",
        ExportMissing: "`kvitto exports` shows all of them",
        WebhookMissing: "`kvitto webhook list` shows all of them",
        PaymentUnknown: "`kvitto payment list` shows all of them",
        LimitMissing: "`kvitto limit list` and `kvitto budget list` show all of them",
    }
    match error:
        case StoreUnavailable():
            return f"the database does not answer: {UNREACHABLE}"
        case ValkeyUnavailable():
            return f"Valkey does not answer: {UNREACHABLE}"
        case _:
            return f"{error}: {advice[type(error)]}" if type(error) in advice else str(error)
