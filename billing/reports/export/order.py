"""What a file is to hold, as one value that also travels to the process of the jobs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec

from billing.errors import ReportInvalid
from billing.interval import Interval, zone_of
from billing.reports.export.column import REQUESTS, Column, totals_columns
from billing.reports.export.focus_column import FOCUS
from billing.reports.selection import ANY, Selection
from billing.reports.usage_total import Dimension, UsageQuestion

Content = Literal["requests", "totals", "focus"]
Form = Literal["csv", "jsonl", "parquet"]
Step = Literal["hour", "day"]

CONTENTS: Final[tuple[Content, ...]] = get_args(Content)
FORMS: Final[tuple[Form, ...]] = get_args(Form)
STEPS: Final[tuple[Step, ...]] = get_args(Step)
MEDIA_TYPES: Final = {
    "csv": "text/csv; charset=utf-8; header=present",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """``by`` is of totals alone, ``step`` of FOCUS. ``tenant_id`` None: all tenants, an operator's.

    Raises:
        IntervalInvalid: there is no such zone.
        ReportInvalid: a dimension, content, form or step that there is not, or that does not go together.
    """

    content: Content
    form: Form
    interval: Interval
    zone: str = "UTC"
    tenant_id: str | None = None
    only: Selection = ANY
    by: tuple[Dimension, ...] = ()
    step: Step = "day"

    def __post_init__(self) -> None:
        for field, value, known in (
            ("content", self.content, CONTENTS),
            ("form", self.form, FORMS),
            ("step", self.step, STEPS),
        ):
            if value not in known:
                raise ReportInvalid(field, f"{value!r} is not one of {', '.join(known)}")
        if self.by and self.content != "totals":
            raise ReportInvalid("by", f"{self.content} are not added up by dimensions")
        self.question  # noqa: B018  it refuses what is wrong with zone and dimensions

    @property
    def question(self) -> UsageQuestion:
        """What its totals are asked by."""
        return UsageQuestion(self.interval, self.by, self.tenant_id, self.zone, self.only)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those of its file, in their order."""
        match self.content:
            case "requests":
                return REQUESTS
            case "totals":
                return totals_columns(self.by)
            case "focus":
                return FOCUS

    @property
    def file_name(self) -> str:
        """Content, ``[since, until)`` and zone: ``kvitto_requests_2026-12-01_2027-01-01_UTC.csv``."""
        zone = zone_of(self.zone)
        since, until = (_short(at, zone) for at in (self.interval.since, self.interval.until))
        said = self.zone.replace("/", "-")
        return f"kvitto_{self.content}_{since}_{until}_{said}.{self.form}"

    def to_builtins(self) -> dict[str, Any]:
        """As JSON; `order_of` reads it back."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def order_of(plain: object) -> ExportOrder:
    """Read what `ExportOrder.to_builtins` wrote."""
    return msgspec.convert(plain, ExportOrder)


def _short(at: datetime, zone: ZoneInfo) -> str:
    local = at.astimezone(zone)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    return f"{local:%Y-%m-%d}" if local == midnight else f"{local:%Y-%m-%dT%H%M%S}"
