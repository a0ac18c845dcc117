"""`kvitto chat`: one question to the running stack, and what its answer cost."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from admin.cli.book import BUCKETS, rates_text
from admin.cli.options import DataDir, Json, directory

if TYPE_CHECKING:
    from admin.cli.stream import Answer, Endpoint

MAX_TOKENS_DEFAULT: Final = 256


def chat(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    question: Annotated[str, typer.Argument(metavar="TEXT", help="What to ask.")],
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message to begin with.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model of the API; its first one, if not given.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = MAX_TOKENS_DEFAULT,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=2.0, help="0 always takes the likeliest token; the model's own, if not given."
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Ask the running stack, stream the answer, then print what it cost.

    After the answer: tokens by bucket (cache hits at their own rate), the price row and window that rated
    them, the rate per 1M tokens, the exact charge, and the time to the first token. Ask something long twice:
    the second time its prompt comes from the cache.

    Example: kvitto chat 'What is the capital of France?'
    """
    from admin.cli import session
    from admin.cli.output import print_json

    place = directory(data_dir)
    messages = [{"role": "user", "content": question}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    body: dict[str, object] = {"messages": messages, "max_tokens": max_tokens}
    if temperature is not None:
        body["temperature"] = temperature

    answer = session.run(_ask(_endpoint(place), body, model, quiet=as_json))
    cost = session.run(_cost(place, answer))
    if as_json:
        print_json({**_spoken(answer), **cost})
    else:
        sys.stdout.write("\n\n")
        _print_cost(answer, cost)


def _endpoint(data_dir: Path) -> "Endpoint":
    from admin.cli.errors import CommandFailed
    from admin.cli.stream import Endpoint

    path = data_dir / "credentials.json"
    try:
        written = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CommandFailed(
            f"no stack has run in {data_dir}: `kvitto up` starts one and makes a demo key"
        ) from None
    return Endpoint(base_url=str(written["base_url"]).rstrip("/"), api_key=str(written["api_key"]))


async def _ask(endpoint: "Endpoint", body: dict[str, Any], model: str | None, *, quiet: bool) -> "Answer":
    from admin.cli.stream import complete, model_of

    def show(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    named = {**body, "model": model or await model_of(endpoint)}
    return await complete(endpoint, named, on_text=(lambda _: None) if quiet else show)


async def _cost(data_dir: Path, answer: "Answer") -> dict[str, Any]:
    """The request's usage event, rated again by the price book: buckets, rates, charge."""
    from uuid import UUID

    from admin.cli import session
    from admin.cli.errors import CommandFailed
    from admin.cli.usage import row_of
    from billing.money import decimal_of
    from billing.pricing.rating import rate
    from billing.reports.usage_row import UsageFilter
    from billing.request_id import instant_of
    from billing.usage import TokenUsage

    async with session.books(data_dir) as books:
        rows = await books.reports.usage(UsageFilter(since=instant_of(UUID(answer.request_id))))
        book = await books.prices.book()
    found = [row for row in rows if str(row.request_id) == answer.request_id]
    if not found:
        raise CommandFailed(
            f"request {answer.request_id} has no usage event: `kvitto logs gateway` may say why"
        )
    event = found[0]
    usage = TokenUsage(event.cache_hit, event.cache_owed, event.cache_write, event.cache_miss, event.output)
    book = book.of(event.tenant_id)
    charge = rate(book, event.model, event.currency, usage, event.rated_at)
    _, rates = book.row(event.model, event.currency, event.rated_at).rates_at(event.rated_at)
    return {
        **row_of(event),
        "price_row_id": charge.price_row_id,
        "window": charge.window,
        "rates": rates_text(rates),
        "charges": {bucket: decimal_of(getattr(charge, bucket)) for bucket in BUCKETS},
        "charge_by_price_book": decimal_of(charge.amount),
    }


def _spoken(answer: "Answer") -> dict[str, Any]:
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": answer.usage,
        "first_token_s": answer.first_token_s,
        "total_s": answer.total_s,
    }


def _print_cost(answer: "Answer", cost: dict[str, Any]) -> None:
    from admin.cli.output import Column, console, print_pairs, table_of

    rows = [
        {
            "bucket": bucket.replace("_", " "),
            "tokens": cost[bucket],
            "rate": cost["rates"][rate],
            "charge": cost["charges"][bucket],
        }
        for bucket, rate in BUCKETS.items()
    ]
    columns = (
        Column("bucket", "bucket"),
        Column("tokens", "tokens", right=True),
        Column("rate", f"{cost['currency']} per 1M", right=True),
        Column("charge", cost["currency"], right=True),
    )
    console().print(table_of(rows, columns))
    first = "-" if answer.first_token_s is None else f"{answer.first_token_s:.3f} s"
    print_pairs(
        [
            ("charge", f"{cost['charge']} {cost['currency']}"),
            ("rated by", f"price row {cost['price_row_id']}, window {cost['window']}"),
            ("first token", f"after {first}, the whole answer after {answer.total_s:.3f} s"),
            ("request", cost["request_id"]),
        ]
    )
