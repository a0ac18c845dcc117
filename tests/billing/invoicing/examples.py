"""Bases of documents, and documents, made up for tests."""

from datetime import UTC, date, datetime
from typing import Any

from billing.invoicing.derive import Basis, derive
from billing.invoicing.document import InvoiceDocument, LogPlace, Previous, PriceDigest, with_derived
from billing.invoicing.lines import Adjustment, Cache, UsageRow
from billing.invoicing.period import Period
from billing.invoicing.terms import Coupon, Segment, Terms
from billing.money import FEMTO_PER_CENT, ZERO

NOVEMBER = Period.of(datetime(2026, 11, 15, tzinfo=UTC), "Europe/Stockholm")


def row(tokens: int = 1, rate: int = FEMTO_PER_CENT, **fields: Any) -> UsageRow:
    said = {
        "section": "period",
        "model": "m",
        "price_row": "m/USD/2026-01-01T00:00:00Z",
        "window": "standard",
        "tier": "standard",
        "bucket": "output",
        "requests": 1,
        **fields,
    }
    return UsageRow(**said, tokens=tokens, rate_femto=str(rate), amount_femto=str(tokens * rate))


def percent_text(parts: int) -> str:
    """Write millionths as a percentage; `percent_of` reads it back."""
    whole, fraction = divmod(parts, 10_000)
    return f"{whole}.{fraction:04}".rstrip("0") if fraction else str(whole)


def basis(*rows: UsageRow, terms: Terms | None = None, **fields: Any) -> Basis:
    """An invoice of a month of 30 days that has one set of terms, unless ``fields`` say otherwise."""
    segments = (Segment(date(2026, 11, 1), 30, terms or Terms()),)
    said = {"kind": "invoice", "carried_in": ZERO, "adjustments": (), "segments": segments, **fields}
    return Basis(usage=rows, **said)


def document(of: Basis, **fields: Any) -> InvoiceDocument:
    """The document of a basis, of November, issued on the second of December."""
    previous = Previous("ACME-1", 10, NOVEMBER.since, str(of.carried_in))
    said = {
        "document": of.kind,
        "number": "ACME-2",
        "tenant": "ten_1",
        "currency": "USD",
        "zone": NOVEMBER.zone,
        "since": NOVEMBER.since,
        "until": NOVEMBER.until,
        "issued_at": datetime(2026, 12, 2, 8, 30, tzinfo=UTC),
        "due_at": datetime(2026, 12, 16, 8, 30, tzinfo=UTC),
        "seller": None,
        "buyer": "ab" * 32,
        "log": LogPlace(100, "cd" * 32, 3, previous),
        "prices": (PriceDigest("m/USD/2026-01-01T00:00:00Z", "ef" * 32),),
        "usage": of.usage,
        "carried_in_femto": str(of.carried_in),
        "adjustments": of.adjustments,
        "terms": of.segments,
        "coupons": of.coupons,
        "cache": Cache(0, 0, 0, 0, 1, "1", "1", "0", "0"),
        **fields,
    }
    return with_derived(
        InvoiceDocument(**said, lines=(), tax=(), total_cents=0, credits_applied_cents=0, due_cents=0),
        derive(of),
    )


__all__ = ["NOVEMBER", "Adjustment", "Coupon", "basis", "document", "row"]
