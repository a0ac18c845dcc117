"""Statements that compare two books. A row is what differs; no row means that they agree.

Each is one statement, so that both books are seen at one instant. ``$1`` and ``$2`` are the first instant and
the one behind the last. Rows come through a cursor: as many as there are, never all at once.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID
from zlib import crc32

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.bulk import as_text
from billing.db.tables import invoice_line, invoice_usage
from billing.db.transaction import driver_of
from billing.invoicing.lines import Line, UsageRow

Row = Mapping[str, Any]

PAGE: Final = 1_000

_CENT: Final = "10000000000000"  # femto-units
_RECORDED: Final = "event.recorded_at >= $1 AND event.recorded_at < $2"
_BUCKETS: Final = ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output")

# A charge is booked in the statement that records its event, at the instant that rates it.
EVENTS_AND_LEDGER: Final = f"""
    SELECT event.request_id::text AS object_id, event.tenant_id,
        (event.charge - coalesce(sum(entry.amount), 0))::text AS owing,
        CASE WHEN charge.id IS NULL THEN 'the ledger has no charge for its event'
            ELSE format('the ledger earned %s, its event says %s',
                coalesce(sum(entry.amount), 0), event.charge)
        END AS differs
    FROM usage_event AS event
    LEFT JOIN ledger_transaction AS charge ON charge.id = event.request_id AND charge.kind = 'charge'
    LEFT JOIN ledger_entry AS entry
        ON entry.transaction_id = event.request_id AND entry.account = 'revenue'
    WHERE {_RECORDED}
    GROUP BY event.request_id, event.tenant_id, event.charge, charge.id
    HAVING charge.id IS NULL OR coalesce(sum(entry.amount), 0) <> event.charge
"""  # noqa: S608  names of columns; likewise below
CHARGES_WITHOUT_EVENT: Final = """
    SELECT charge.id::text AS object_id, charge.tenant_id, (-coalesce(sum(entry.amount), 0))::text AS owing,
        format('a charge of %s in the ledger has no event', coalesce(sum(entry.amount), 0)) AS differs
    FROM ledger_transaction AS charge
    LEFT JOIN ledger_entry AS entry ON entry.transaction_id = charge.id AND entry.account = 'revenue'
    WHERE charge.kind = 'charge' AND charge.at >= $1 AND charge.at < $2
        AND NOT EXISTS (SELECT FROM usage_event AS event WHERE event.request_id = charge.id)
    GROUP BY charge.id, charge.tenant_id
"""
EVENTS_WITHOUT_RECEIPT: Final = f"""
    SELECT event.request_id::text AS object_id, 'its event has no receipt in the log' AS differs
    FROM usage_event AS event
    WHERE {_RECORDED} AND event.recorded_at < (SELECT sealed_before FROM log_state)
        AND NOT EXISTS (SELECT FROM receipt_leaf AS leaf WHERE leaf.request_id = event.request_id)
"""  # noqa: S608  names of columns
# Leaves under the heads whose cuts enclose the instants asked for. What is erased says nothing any more.
RECEIPTS_AND_EVENTS: Final = f"""
    SELECT leaf.request_id::text AS object_id,
        CASE WHEN event.request_id IS NULL
            THEN format('leaf %s of the log has no event', leaf.leaf_index)
            ELSE format('the receipt of leaf %s differs from its event in %s', leaf.leaf_index, wrong.names)
        END AS differs
    FROM receipt_leaf AS leaf
    LEFT JOIN usage_event AS event ON event.request_id = leaf.request_id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN leaf.receipt IS JSON OBJECT THEN leaf.receipt::jsonb END AS said
    ) AS receipt
    CROSS JOIN LATERAL (
        SELECT concat_ws(', ', {
    ", ".join(
        f"CASE WHEN receipt.said -> 'usage' ->> '{name}' IS DISTINCT FROM event.{name}::text"
        f" THEN '{name}' END"
        for name in _BUCKETS
    )
}, CASE WHEN receipt.said ->> 'charge_femto' IS DISTINCT FROM event.charge::text THEN 'charge' END) AS names
    ) AS wrong
    WHERE leaf.leaf_index >= coalesce((SELECT max(size) FROM tree_head WHERE cut <= $1), 0)
        AND leaf.leaf_index < coalesce((SELECT min(size) FROM tree_head WHERE cut >= $2), 9223372036854775807)
        AND (event.request_id IS NULL OR (leaf.receipt IS NOT NULL AND wrong.names <> ''))
"""  # noqa: S608  names of columns
NUMBERS: Final = """
    SELECT number AS object_id,
        format('it is number %s of its series, after number %s', position, before) AS differs
    FROM (
        SELECT number, position, issued_at,
            coalesce(lag(position) OVER (PARTITION BY tenant_id, kind ORDER BY position), 0) AS before
        FROM invoice
    ) AS series
    WHERE issued_at >= $1 AND issued_at < $2 AND position <> before + 1
    UNION ALL
    SELECT tenant_id || ' ' || series.kind,
        format('number %s was given out last, the last document has %s',
            series.last, coalesce(max(invoice.position), 0))
    FROM number_series AS series LEFT JOIN invoice USING (tenant_id, kind)
    GROUP BY tenant_id, series.kind, series.last HAVING series.last <> coalesce(max(invoice.position), 0)
"""
# Usage was booked as it was charged; a credit note books also what it takes off that.
DOCUMENTS_AND_LEDGER: Final = f"""
    SELECT document.number AS object_id,
        CASE WHEN document.transaction_id IS NULL
            THEN format('it books %s, and names no transaction', due.femto)
            WHEN booked.id IS NULL
            THEN format('its transaction %s is not in the ledger', document.transaction_id)
            WHEN booked.tenant_id <> document.tenant_id OR booked.kind <> due.kind
            THEN format('its transaction %s is a %s of %s', booked.id, booked.kind, booked.tenant_id)
            ELSE format('its transaction %s books %s, it says %s', booked.id, moved.femto, due.femto)
        END AS differs
    FROM invoice AS document
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(cents) FILTER (WHERE kind = 'top_up'), 0) AS top_up,
            coalesce(sum(cents) FILTER (WHERE kind IN ('usage', 'late', 'prepaid', 'correction')), 0) AS used
        FROM invoice_line AS line WHERE line.number = document.number
    ) AS lines
    CROSS JOIN LATERAL (
        SELECT CASE document.kind WHEN 'credit_note' THEN 'credit_note' ELSE 'invoice' END AS kind,
            {_CENT} * CASE document.kind WHEN 'credit_note' THEN lines.top_up - document.total_cents
                ELSE document.total_cents - lines.top_up - lines.used END AS femto
    ) AS due
    LEFT JOIN ledger_transaction AS booked ON booked.id = document.transaction_id
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(amount), 0) AS femto FROM ledger_entry AS entry
        WHERE entry.transaction_id = document.transaction_id
            AND entry.account IN ('revenue', 'fees', 'discounts', 'tax_payable')
    ) AS moved
    WHERE document.issued_at >= $1 AND document.issued_at < $2 AND (
        moved.femto <> due.femto OR (document.transaction_id IS NOT NULL AND (
            booked.id IS NULL OR booked.tenant_id <> document.tenant_id OR booked.kind <> due.kind)))
"""  # noqa: S608  names of columns
LEDGER_WITHOUT_DOCUMENT: Final = """
    SELECT moved.id::text AS object_id,
        format('no document names this %s of the ledger', moved.kind) AS differs
    FROM ledger_transaction AS moved
    WHERE moved.kind IN ('invoice', 'credit_note') AND moved.at >= $1 AND moved.at < $2
        AND NOT EXISTS (SELECT FROM invoice WHERE invoice.transaction_id = moved.id)
    UNION ALL
    SELECT moved.id::text, 'no document was paid by this payment of the ledger'
    FROM ledger_transaction AS moved
    WHERE moved.kind = 'payment' AND moved.at >= $1 AND moved.at < $2
        AND NOT EXISTS (SELECT FROM invoice_payment AS paid WHERE paid.transaction_id = moved.id)
"""
DOCUMENTS_PAID: Final = f"""
    SELECT paid.number || ' ' || paid.reference AS object_id,
        format('paid were %s cents, transaction %s books %s', paid.cents, paid.transaction_id,
            coalesce(-sum(entry.amount), 0)) AS differs
    FROM invoice_payment AS paid
    LEFT JOIN ledger_transaction AS moved
        ON moved.id = paid.transaction_id AND moved.kind = 'payment' AND moved.tenant_id = paid.tenant_id
    LEFT JOIN ledger_entry AS entry ON entry.transaction_id = moved.id AND entry.account = 'cash'
    WHERE paid.at >= $1 AND paid.at < $2
    GROUP BY paid.number, paid.reference
    HAVING coalesce(-sum(entry.amount), 0) <> paid.cents * {_CENT}
    UNION ALL
    SELECT document.number, format('its payments are %s cents, it says %s', coalesce(sum(paid.cents), 0),
        document.paid_cents)
    FROM invoice AS document LEFT JOIN invoice_payment AS paid USING (number)
    WHERE document.issued_at < $2
    GROUP BY document.number HAVING coalesce(sum(paid.cents), 0) <> document.paid_cents
"""  # noqa: S608  names of columns
# The key of a leg names the object, or the order of a refund that is ours (`billing.payments.payment`).
_NAMED: Final = "coalesce(CASE payment.kind WHEN 'refund' THEN payment.order_id END, payment.id)"
PAYMENTS_AND_LEDGER: Final = f"""
    SELECT payment.id AS object_id,
        format('leg %s should move %s of cash, the ledger moved %s', leg, due.femto,
            coalesce(sum(entry.amount), 0)) AS differs
    FROM payment
    CROSS JOIN LATERAL generate_series(1, payment.legs) AS leg
    CROSS JOIN LATERAL (
        SELECT payment.amount
            * CASE WHEN payment.kind IN ('refund', 'dispute') AND leg % 2 = 1 THEN 1 ELSE -1 END AS femto
    ) AS due
    LEFT JOIN ledger_transaction AS moved ON moved.tenant_id = payment.tenant_id
        AND moved.idempotency_key = 'stripe:' || {_NAMED} || ':' || leg
    LEFT JOIN ledger_entry AS entry ON entry.transaction_id = moved.id AND entry.account = 'cash'
    WHERE payment.kind <> 'invoice' AND payment.fact_at >= $1 AND payment.fact_at < $2
    GROUP BY payment.id, leg, due.femto HAVING coalesce(sum(entry.amount), 0) <> due.femto
    UNION ALL
    SELECT payment.id, format('it paid %s, our document was paid %s of it', payment.amount,
        coalesce(sum(paid.cents), 0) * {_CENT})
    FROM payment LEFT JOIN invoice_payment AS paid
        ON paid.reference = payment.id AND paid.tenant_id = payment.tenant_id
    WHERE payment.kind = 'invoice' AND payment.legs > 0 AND payment.fact_at >= $1 AND payment.fact_at < $2
    GROUP BY payment.id HAVING coalesce(sum(paid.cents), 0) * {_CENT} <> payment.amount
"""  # noqa: S608  names of columns
LEDGER_WITHOUT_PAYMENT: Final = f"""
    SELECT of.named AS object_id,
        format('transaction %s of the ledger moved leg %s, which is not known', of.id, of.leg) AS differs
    FROM (
        SELECT id, tenant_id, (regexp_match(idempotency_key, ':([0-9]{{1,4}})$'))[1]::int AS leg,
            substring(idempotency_key from '^stripe:(.+):[0-9]{{1,4}}$') AS named
        FROM ledger_transaction AS moved
        WHERE moved.kind <> 'charge' AND moved.at >= $1 AND moved.at < $2
            AND idempotency_key ~ '^stripe:.+:[0-9]{{1,4}}$'
    ) AS of
    WHERE NOT EXISTS (
        SELECT FROM payment WHERE payment.tenant_id = of.tenant_id
            AND {_NAMED} = of.named AND of.leg <= payment.legs
    ) AND NOT EXISTS (
        SELECT FROM payment_outbox AS told WHERE told.tenant_id = of.tenant_id AND told.id = of.named
            AND told.kind = 'refund' AND (of.leg = 1 OR told.outcome = 'failed')
    )
"""  # noqa: S608  names of columns
ORDERS_FAILED: Final = """
    SELECT id AS object_id, format('Stripe was to be told of a %s, and was not: %s', kind, reason) AS differs
    FROM payment_outbox WHERE outcome = 'failed' AND created_at >= $1 AND created_at < $2
"""
REVERSALS_OF_NOTHING: Final = """
    SELECT payment.id AS object_id, format('its payment %s is not known', payment.parent) AS differs
    FROM payment WHERE payment.parent IS NOT NULL AND payment.fact_at >= $1 AND payment.fact_at < $2
        AND NOT EXISTS (SELECT FROM payment AS root WHERE root.id = payment.parent)
"""
# Nothing goes out that never came in, and an invoice of Stripe's that we did not ask for is none of ours.
PAYMENTS_TO_MOVE: Final = """
    SELECT payment.* FROM payment LEFT JOIN payment AS root ON root.id = payment.parent
    WHERE payment.fact_at >= $1 AND payment.fact_at < $2 AND CASE payment.kind WHEN 'payment' THEN true
        WHEN 'invoice' THEN payment.order_id IS NOT NULL ELSE root.legs > 0 END
"""
DOCUMENTS: Final = """
    SELECT * FROM (
        SELECT number, tenant_id, kind, currency, issued_at, since, until, cut, carried_out::text,
            total_cents, credits_applied_cents, due_cents,
            lag(number) OVER periods AS before, lag(until) OVER periods AS begins,
            lag(cut) OVER periods AS cut_before, lag(carried_out) OVER periods::text AS carried_in
        FROM invoice
        WINDOW periods AS (PARTITION BY tenant_id, kind IN ('invoice', 'statement') ORDER BY until, number)
    ) AS document
    WHERE issued_at >= $1 AND issued_at < $2
"""
_REQUESTS: Final = f"""
    SELECT event.request_id FROM usage_event AS event
    WHERE {_RECORDED} AND event.request_id > $3 ORDER BY event.request_id LIMIT $4
"""  # noqa: S608  names of columns


async def rows_of(
    connection: AsyncConnection, statement: str, since: datetime, until: datetime
) -> AsyncIterator[Row]:
    """What a statement above finds, page by page. It may take minutes."""
    driver = driver_of(connection)
    await driver.execute("SET LOCAL statement_timeout = '15min'")
    # A name of its own: the driver remembers by its text what a FETCH answers.
    name = f"found_{crc32(statement.encode())}"
    await driver.execute(f"DECLARE {name} NO SCROLL CURSOR FOR {statement}", since, until)
    while True:
        page = await driver.fetch(f"FETCH {PAGE} FROM {name}")
        for row in page:
            yield row
        if len(page) < PAGE:
            break
    await driver.execute(f"CLOSE {name}")


async def select_requests(
    connection: AsyncConnection, since: datetime, until: datetime, after: UUID
) -> list[UUID]:
    """Requests behind one, by their ids, whose events were recorded in ``[since, until)``: a page."""
    driver = driver_of(connection)
    return [row["request_id"] for row in await driver.fetch(_REQUESTS, since, until, after, PAGE)]


async def select_lines(connection: AsyncConnection, number: str) -> list[Line]:
    """A document's, as they are beside it."""
    c = invoice_line.c
    columns = (c.kind, c.text, c.cents, c.tax_rate, c.coupon, c.credits)
    found = await connection.execute(select(*columns).where(c.number == number).order_by(c.position))
    return [Line(*row) for row in found]


async def select_usage(connection: AsyncConnection, number: str) -> list[UsageRow]:
    """Likewise."""
    c = invoice_usage.c
    side = (c.section, c.model, c.price_row_id, c.price_window, c.tier, c.bucket)
    columns = (*side, c.requests, c.tokens, as_text(c.rate), as_text(c.amount))
    found = await connection.execute(select(*columns).where(c.number == number).order_by(c.position))
    return [UsageRow(*row) for row in found]
