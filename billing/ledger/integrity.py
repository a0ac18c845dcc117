"""What must hold of the ledger at every commit, each rule as the query that finds its violations.

A query answers (what, found, expected); no row means that the rule holds.
"""

from typing import Final

from billing.ledger.entries import FACED_BY, TENANTS_ACCOUNTS

_TENANTS: Final = ", ".join(f"'{account}'" for account in TENANTS_ACCOUNTS)
_FACED: Final = ", ".join(
    f"('{kind}', '{account}')" for kind, accounts in FACED_BY.items() for account in accounts
)

RULES: Final = {
    "entries of transaction {} sum to {}, not {}": """
        SELECT transaction_id::text, sum(amount), 0 FROM ledger_entry
        GROUP BY transaction_id HAVING sum(amount) <> 0
    """,
    "transaction {} is of tenant {}, an entry of it of {}": """
        SELECT entry.transaction_id::text, owner.tenant_id, entry.tenant_id
        FROM ledger_entry AS entry LEFT JOIN ledger_transaction AS owner ON owner.id = entry.transaction_id
        WHERE owner.tenant_id IS DISTINCT FROM entry.tenant_id
    """,
    "transaction {} is of tenant {}, an entry of it on a lot of {}": """
        SELECT entry.transaction_id::text, entry.tenant_id, lot.tenant_id
        FROM ledger_entry AS entry LEFT JOIN credit_lot AS lot ON lot.id = entry.lot_id
        WHERE entry.lot_id IS NOT NULL AND lot.tenant_id IS DISTINCT FROM entry.tenant_id
    """,
    "request {} has {} usage events and {} charges": """
        SELECT coalesce(event.request_id, charge.id)::text, count(event.request_id), count(charge.id)
        FROM usage_event AS event
        FULL JOIN (SELECT id FROM ledger_transaction WHERE kind = 'charge') AS charge
            ON charge.id = event.request_id
        WHERE event.request_id IS NULL OR charge.id IS NULL
        GROUP BY 1
    """,
    "request {} earned {}, its event says {}": """
        SELECT event.request_id::text, coalesce(sum(entry.amount), 0), event.charge
        FROM usage_event AS event
        LEFT JOIN ledger_entry AS entry
            ON entry.transaction_id = event.request_id AND entry.account = 'revenue'
        GROUP BY event.request_id HAVING coalesce(sum(entry.amount), 0) <> event.charge
    """,
    "movement {} of kind {} touches {}": f"""
        SELECT owner.id::text, owner.kind, entry.account
        FROM ledger_entry AS entry JOIN ledger_transaction AS owner ON owner.id = entry.transaction_id
        WHERE entry.account NOT IN ({_TENANTS}) AND (owner.kind, entry.account) NOT IN ({_FACED})
    """,  # noqa: S608  names of our own accounts
    **{
        f"{account} balance of {{}} is {{}}, its entries sum to {{}}": f"""
        SELECT tenant_id, coalesce(balance.{account}, 0), coalesce(entries.amount, 0)
        FROM balance
        FULL JOIN (SELECT tenant_id, sum(amount) AS amount FROM ledger_entry WHERE account = '{account}'
                   GROUP BY tenant_id) AS entries USING (tenant_id)
        WHERE coalesce(balance.{account}, 0) <> coalesce(entries.amount, 0)
    """  # noqa: S608  likewise
        for account in TENANTS_ACCOUNTS
    },
    "lot {} holds {}, its entries sum to {}": """
        SELECT lot.id::text, lot.remaining, coalesce(sum(entry.amount), 0)
        FROM credit_lot AS lot LEFT JOIN ledger_entry AS entry ON entry.lot_id = lot.id
        GROUP BY lot.id HAVING lot.remaining <> coalesce(sum(entry.amount), 0)
    """,
    "lots of {} hold {}, the balance says {}": """
        SELECT balance.tenant_id, coalesce(sum(lot.remaining), 0),
            balance.granted + greatest(balance.topped_up, 0)
        FROM balance LEFT JOIN credit_lot AS lot USING (tenant_id)
        GROUP BY balance.tenant_id
        HAVING coalesce(sum(lot.remaining), 0) <> balance.granted + greatest(balance.topped_up, 0)
    """,
}
