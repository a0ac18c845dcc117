"""A price row, and who is on which plan, as canonical JSON (RFC 8785): what a customer rates receipts by.

Rates are femto-units per token as text, since RFC 8785 ends at 2^53. What has no value is left out. A row has
one text, so that its SHA-256 names it: a reader refuses everything else that would mean the same.
"""

from dataclasses import replace
from datetime import UTC, datetime, time
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from billing.errors import IntervalInvalid, PriceInvalid
from billing.interval import zone_of
from billing.pricing.book import Instant, Placement, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.window import Window, is_calendar
from engine.proof.signed import canonical

ROW_KIND: Final = "kvitto.price-row.v1"
PLACEMENT_KIND: Final = "kvitto.price-placement.v1"

_Femto = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,37})$")]
_Weekday = Annotated[int, Meta(ge=0, le=6)]


class _Rates(msgspec.Struct, forbid_unknown_fields=True):
    hit: _Femto
    miss: _Femto
    output: _Femto
    write: _Femto | UnsetType = UNSET
    flex: "_Rates | UnsetType" = UNSET
    batch: "_Rates | UnsetType" = UNSET

    def rates(self) -> Rates:
        """The rates that these texts are."""
        return Rates(
            hit=int(self.hit),
            miss=int(self.miss),
            output=int(self.output),
            write=None if self.write is UNSET else int(self.write),
            flex=None if self.flex is UNSET else self.flex.rates(),
            batch=None if self.batch is UNSET else self.batch.rates(),
        )


class _Window(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    rates: _Rates
    start: time
    end: time
    zone: str
    days: Annotated[list[_Weekday], Meta(max_length=7)]
    not_on_holidays_of: str | UnsetType = UNSET

    def window(self) -> Window:
        """The window, if its zone and its calendar are known here; raises PriceInvalid."""
        try:
            zone_of(self.zone)
        except IntervalInvalid as error:
            raise PriceInvalid(f"window {self.name!r}", error.reason) from error
        country = None if self.not_on_holidays_of is UNSET else self.not_on_holidays_of
        if country is not None and not is_calendar(country):
            raise PriceInvalid(f"window {self.name!r}", f"no holiday calendar of {country!r}")
        if self.start.tzinfo is not None or self.end.tzinfo is not None:
            raise PriceInvalid(f"window {self.name!r}", "hours are of wall-clock time")
        days = frozenset(self.days)
        return Window(self.name, self.rates.rates(), self.start, self.end, self.zone, days, country)


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["kvitto.price-row.v1"]
    id: str
    model: str
    currency: str
    effective_from: datetime
    instant: Instant
    standard: _Rates
    standard_name: str
    windows: list[_Window]
    plan: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    effective_until: datetime | UnsetType = UNSET


class _Placement(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["kvitto.price-placement.v1"]
    tenant: str
    effective_from: datetime
    plan: str | None


_ROW: Final = msgspec.json.Decoder(_Row)
_PLACEMENT: Final = msgspec.json.Decoder(_Placement)


def row_text(row: PriceRow) -> str:
    """A line without a break. ``id`` is the row's own (its instant in UTC), for who reads it without us."""
    row = replace(row, effective_from=row.effective_from.astimezone(UTC))
    return _text(
        {
            "kind": ROW_KIND,
            "id": row.id,
            "model": row.model,
            "currency": row.currency,
            "effective_from": _instant(row.effective_from),
            "effective_until": None if row.effective_until is None else _instant(row.effective_until),
            "instant": row.instant,
            "standard": _rates(row.standard),
            "standard_name": row.standard_name,
            "windows": [_window(window) for window in row.windows],
            "plan": row.plan,
            "tenant": row.tenant_id,
        }
    )


def row_sha256(row: PriceRow) -> str:
    """SHA-256 of its text, in hex: by this an invoice names the prices that it was made with."""
    return sha256(row_text(row).encode()).hexdigest()


def read_row(text: bytes) -> PriceRow:
    """Read what `row_text` wrote.

    Raises:
        PriceInvalid: anything else, to the byte; or a time zone or a calendar that is not known here.
    """
    try:
        written = _ROW.decode(text)
        row = PriceRow(
            model=written.model,
            currency=written.currency,
            effective_from=_utc(written.effective_from),
            instant=written.instant,
            standard=written.standard.rates(),
            windows=tuple(window.window() for window in written.windows),
            standard_name=written.standard_name,
            plan=None if written.plan is UNSET else written.plan,
            tenant_id=None if written.tenant is UNSET else written.tenant,
            effective_until=None if written.effective_until is UNSET else _utc(written.effective_until),
        )
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PriceInvalid("price row", str(error)) from error
    if row_text(row).encode() != text:
        raise PriceInvalid(row.id, "written otherwise than a row is: it is canonical JSON")
    return row


def placement_text(placement: Placement) -> str:
    """A line without a break; a ``plan`` of null takes the tenant off its plan."""
    return canonical(
        {
            "kind": PLACEMENT_KIND,
            "tenant": placement.tenant_id,
            "effective_from": _instant(placement.effective_from),
            "plan": placement.plan,
        }
    ).decode()


def read_placement(text: bytes) -> Placement:
    """Read what `placement_text` wrote; raises PriceInvalid for anything else, to the byte."""
    try:
        written = _PLACEMENT.decode(text)
        placement = Placement(written.tenant, _utc(written.effective_from), written.plan)
    except (msgspec.MsgspecError, ValueError) as error:
        raise PriceInvalid("placement on a plan", str(error)) from error
    if placement_text(placement).encode() != text:
        raise PriceInvalid(f"placement of {placement.tenant_id}", "written otherwise than one is")
    return placement


def _text(fields: dict[str, Any]) -> str:
    return canonical(_without_none(fields)).decode()


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _rates(rates: Rates) -> dict[str, Any]:
    return _without_none(
        {
            "hit": str(rates.hit),
            "miss": str(rates.miss),
            "output": str(rates.output),
            "write": None if rates.write is None else str(rates.write),
            "flex": None if rates.flex is None else _rates(rates.flex),
            "batch": None if rates.batch is None else _rates(rates.batch),
        }
    )


def _window(window: Window) -> dict[str, Any]:
    return _without_none(
        {
            "name": window.name,
            "rates": _rates(window.rates),
            "start": window.start.isoformat(),
            "end": window.end.isoformat(),
            "zone": window.tz,
            "days": sorted(window.days),
            "not_on_holidays_of": window.holidays,
        }
    )


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _utc(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise ValueError("an instant without a time zone")
    return at.astimezone(UTC)
