"""Statements that read usage in bulk, written as a file wants it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.copying import AS_IT_IS, copy_out
from billing.reports.export.column import REQUESTS, Column, Kind, totals_columns
from billing.reports.export.delimited import MARK, STARTS, Sink
from billing.reports.export.order import ExportOrder, Form
from billing.reports.repository import begin_snapshot, selected, totals_query
from billing.reports.usage_total import UsageQuestion

# An export may take as long as it takes, and its reader too, within reason. Its own name keeps it from
# holding back the rollups: nothing is recorded by it.
_PATIENCE: Final = (
    "SET LOCAL statement_timeout = 0",
    "SET LOCAL idle_in_transaction_session_timeout = '10min'",
    "SET LOCAL application_name = 'kvitto-export'",
)
_FORMULA: Final = ", ".join(f"U&'\\{ord(start):04X}'" for start in STARTS)
# Femto-units in units, exact and without trailing zeros.
_AMOUNT: Final = "trim_scale({0} * 0.000000000000001)"
_WRITTEN: Final[Mapping[Form, Mapping[Kind, str]]] = {
    "csv": {
        "name": f"CASE WHEN left({{0}}, 1) IN ({_FORMULA}) THEN '{MARK * 2}' || {{0}} ELSE {{0}} END",
        "amount": _AMOUNT,
        "instant": "to_json({0}) #>> '{{}}'",
    },
    "jsonl": {"amount": f"CAST({_AMOUNT} AS text)"},
    "parquet": {"amount": _AMOUNT, "instant": "{0} AT TIME ZONE 'UTC'"},
}
_NAMES: Final = ("tenant", "project", "key")


async def begin_export(connection: AsyncConnection, zone: str) -> None:
    """One instant for all that is read, instants written in a zone, and time enough."""
    await begin_snapshot(connection)
    for statement in _PATIENCE:
        await connection.execute(text(statement))
    await connection.execute(text("SELECT set_config('timezone', :zone, true)"), {"zone": zone})


async def copy_requests(connection: AsyncConnection, order: ExportOrder, take: Sink) -> int:
    """The requests of an order, oldest first; how many there were."""
    query = (
        "SELECT event.*, tenant.name AS tenant, api_key.name AS key, project_id, project.name AS project"  # noqa: S608  names of columns
        f" FROM (SELECT * FROM usage_event WHERE {_rated(order.question)}) AS event"
        " JOIN tenant ON tenant.id = event.tenant_id"
        " JOIN api_key ON api_key.id = event.key_id JOIN project ON project.id = api_key.project_id"
        " ORDER BY event.rated_at, event.request_id"
    )
    return await _copy(connection, REQUESTS, order.form, (query, _values(order.question)), take)


async def copy_totals(connection: AsyncConnection, order: ExportOrder, take: Sink) -> int:
    """The groups of an order in the order of its dimensions; how many there were."""
    query, values = await totals_query(connection, order.question)
    named = "".join(f", {one}_name AS {one}" for one in _NAMES if one in order.by)
    query = f"SELECT totals.*{named} FROM ({query}) AS totals"  # noqa: S608  names of columns
    return await _copy(connection, totals_columns(order.by), order.form, (query, values), take)


async def select_span(
    connection: AsyncConnection, question: UsageQuestion
) -> tuple[datetime, datetime] | None:
    """When the first and the last request of a question was rated; None without any."""
    statement = f"SELECT min(rated_at), max(rated_at) FROM usage_event WHERE {_rated(question)}"  # noqa: S608  likewise
    first, last = (await connection.execute(text(statement), _values(question))).one()
    return None if first is None else (first, last)


def _rated(question: UsageQuestion) -> str:
    own = selected(question.only, question.tenant_id)
    return f"rated_at >= :since AND rated_at < :until{own}"


def _values(question: UsageQuestion) -> dict[str, Any]:
    own = {} if question.tenant_id is None else {"tenant": question.tenant_id}
    named = {kind: list(names) for kind, names in question.only.named()}
    return {"since": question.interval.since, "until": question.interval.until, **own, **named}


async def _copy(
    connection: AsyncConnection,
    columns: Sequence[Column],
    form: Form,
    found: tuple[str, Mapping[str, Any]],
    take: Sink,
) -> int:
    """Rows of a query whose columns have the names of the file's, in the words of its form."""
    query, values = found
    written = ", ".join(_cell(column, form) for column in columns)
    statement = f"SELECT {written} FROM ({query}) AS found"  # noqa: S608  likewise
    if form == "jsonl":
        statement = f"SELECT row_to_json(written) FROM ({statement}) AS written"  # noqa: S608  likewise
    return await copy_out(connection, statement, values, take, AS_IT_IS if form == "jsonl" else None)


def _cell(column: Column, form: Form) -> str:
    named = f'"{column.name}"'
    return f"{_WRITTEN[form].get(column.kind, '{0}').format(named)} AS {named}"
