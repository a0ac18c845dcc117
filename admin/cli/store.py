"""`kvitto store`: the prefix store, what it holds, what is promised of it and what is owed."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.options import DataDir, Json, directory

if TYPE_CHECKING:
    from admin.cli.lost import Lost
    from admin.cli.output import Row
    from engine.store.operate import Held, StoreStat

app = typer.Typer(
    help="Look after the prefix store: what it holds, what is promised of it, what is owed.",
    no_args_is_help=True,
)

EXIT_FINDINGS: Final = 1
_TENANT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("stat")
def stat(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show what the store holds, what of it is promised, and what broken promises cost.

    Owed blocks were promised and went early. A prompt that meets one is computed again and billed at the hit
    rate: `cost so far` is what the miss rate had brought beyond it, `most to come` what outstanding owed
    tokens would cost, asked for once, by the prices in force now. An owed block that is stored again takes no
    promise's place: it finds the room that is free, or that nothing promised takes.

    Example: kvitto store stat
    """
    from admin import clock
    from admin.cli.lost import lost_by
    from admin.cli.output import Column, console, print_json, print_rows
    from engine.store import operate

    root = _root(data_dir)
    with _progress("counting", as_json, root) as pause:
        found = operate.stat(root, int(clock.now().timestamp()), pause)
    lost = lost_by(directory(data_dir))
    document = _document(root, found, lost)
    if as_json:
        print_json(document)
        return
    held = (
        Column("blocks", "blocks", right=True),
        Column("bytes", "bytes", right=True),
        Column("promised_blocks", "promised", right=True, style="green"),
        Column("promised_until", "until at most (UTC)"),
    )
    owed = (
        Column("owed_blocks", "owed", right=True, style="yellow"),
        Column("owed_tokens", "tokens", right=True),
        Column("owed_until", "owed until at most (UTC)"),
        Column("owed_because", "because of"),
        Column("owed_cost_so_far", "cost so far", right=True),
        Column("owed_cost_to_come", "most to come", right=True),
    )
    namespaces, tenants = _namespace_rows(found), _tenant_rows(found, lost)
    console().print(
        f"{root}: {found.blocks:,} blocks, {found.bytes:,} bytes{_room_text(found)}", markup=False
    )
    if lost is None:
        console().print("No database can be reached: what broken promises cost is not shown.")
    print_rows(
        namespaces,
        (Column("short", "namespace", style="bold"), *held),
        as_json=False,
        empty="The store is empty.",
    )
    if tenants:
        print_rows(tenants, (Column("tenant", "tenant", style="bold"), *held, *owed), as_json=False, empty="")


@app.command("verify")
def verify(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Read every block and check it, bit for bit, against its name and checksum. Exit status 1 with findings.

    A finding harms nobody: when it is met, such a block is put aside and computed again.

    Example: kvitto store verify
    """
    from admin import clock
    from admin.cli.output import console, print_json
    from engine.store.directory import PrefixStore

    root = _root(data_dir)
    store = PrefixStore(root, lambda: int(clock.now().timestamp()))
    with _progress("reading", as_json, root) as pause:
        findings = store.check_integrity(pause)
    if as_json:
        print_json({"store": root, "findings": findings})
    else:
        for finding in findings:
            console().print(finding, markup=False)
        console().print(f"{len(findings)} findings." if findings else "Every block is what its name says.")
    if findings:
        raise typer.Exit(EXIT_FINDINGS)


@app.command("sweep")
def sweep(
    quota: Annotated[
        int | None,
        typer.Option(metavar="BYTES", min=0, help="Also evict until the blocks take no more than this."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Remove what is promised no longer and what killed workers left. Workers do it too; safe beside them.

    With a quota blocks leave in the order of their promises' ends, and what was promised for longer is owed.

    Example: kvitto store sweep --quota 50000000000
    """
    from dataclasses import asdict

    from admin import clock
    from admin.cli.output import print_json, print_pairs
    from engine.store.directory import PrefixStore
    from engine.store.evict import Quotas

    root = _root(data_dir)
    store = PrefixStore(root, lambda: int(clock.now().timestamp()), Quotas(quota))
    with _progress("sweeping", as_json) as pause:
        report = asdict(store.sweep(store.now_s(), pause))
    if as_json:
        print_json({"store": root, **report})
        return
    names = {
        "temporary": "leftovers of killed writers",
        "expired": "blocks whose promise had ended",
        "quarantined": "old quarantined files",
        "tombstones": "tombstones that were over",
        "pins": "pins that had lapsed",
        "evicted": "blocks beyond the quota",
    }
    print_pairs([(f"{report[key]:,}", name) for key, name in names.items()])


@app.command("erase")
def erase(
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="ID", help="Id of the tenant, from `kvitto tenant list`.")
    ],
    yes: Yes = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Remove all that the store has of a tenant: its blocks and its tombstones. Nothing is owed after it.

    Example: kvitto store erase --tenant ten_0123456789abcdef01234567
    """
    from admin import clock
    from admin.cli.errors import CommandFailed
    from admin.cli.output import console, print_json
    from engine.store import operate

    root = _root(data_dir)
    if not _TENANT.fullmatch(tenant):
        raise typer.BadParameter(f"{tenant!r} is no id of a tenant: `kvitto tenant list` shows them")
    with _progress("counting", as_json, root) as pause:
        found = operate.stat(root, int(clock.now().timestamp()), pause)
    if tenant not in found.tenants and tenant not in found.owed:
        raise CommandFailed(
            f"the store has nothing of {tenant}: `kvitto store stat` shows whose blocks it has"
        )
    blocks = found.tenants[tenant].blocks if tenant in found.tenants else 0
    owed = found.owed[tenant].blocks if tenant in found.owed else 0
    _ask(f"Erase {blocks:,} blocks of {tenant}, and forget {owed:,} that are owed?", yes, as_json)
    try:
        with _progress("erasing", as_json) as pause:
            erased = operate.erase(root, tenant, pause)
    except OSError as error:
        raise CommandFailed(f"{error.filename}: {error.strerror}; run it again") from error
    if as_json:
        print_json({"tenant": tenant, "blocks": erased.blocks, "tombstones": erased.tombstones})
    else:
        console().print(f"Erased {erased.blocks:,} blocks and {erased.tombstones:,} tombstones of {tenant}.")


@app.command("retire")
def retire(
    namespace: Annotated[
        str, typer.Argument(metavar="NAMESPACE", help="From `kvitto store stat`; its first digits do.")
    ],
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade/--operator", help="Why: a newer engine took its place, or you want the room."
        ),
    ] = True,
    yes: Yes = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Remove the blocks of a namespace that no worker uses any more. Says first what it will cost, and asks.

    Promises that have not ended are owed until they end: prompts that meet them are computed again by the new
    engine and billed at the hit rate.

    Example: kvitto store retire 3fa9
    """
    from dataclasses import asdict

    from admin import clock
    from admin.cli.lost import lost_by
    from admin.cli.output import console, print_json
    from engine.store import operate
    from engine.store.tombstone import Reason

    root = _root(data_dir)
    with _progress("counting", as_json, root) as pause:
        found = operate.stat(root, int(clock.now().timestamp()), pause)
    digest = _chosen(namespace, found)
    held, tokens = found.namespaces[digest], _promised_tokens(found, digest)
    lost = lost_by(directory(data_dir))
    costs = lost.of(tokens) if lost is not None else []
    if not as_json:
        console().print(_cost_text(held, tokens, costs), markup=False)
    _ask(f"Retire {digest[:12]}?", yes, as_json)
    with _progress("retiring", as_json) as pause:
        reason = Reason.UPGRADE if upgrade else Reason.OPERATOR
        retired = operate.retire(root, digest, reason, lambda: int(clock.now().timestamp()), pause)
    if as_json:
        print_json({"namespace": digest, **asdict(retired), "owed_tokens_most": tokens, "costs_most": costs})
        return
    console().print(f"Retired {retired.blocks:,} blocks; {retired.owed_blocks:,} of them are owed now.")
    if retired.spared:
        console().print(f"{retired.spared:,} are being loaded or were just used: run it again.")


def _root(data_dir: Path | None) -> Path:
    from admin.cli.errors import CommandFailed

    root = directory(data_dir) / "store"
    if not root.is_dir():
        raise CommandFailed(f"there is no prefix store in {root}: `kvitto up` makes one")
    try:
        next(root.iterdir(), None)
    except OSError as error:
        raise CommandFailed(f"{root}: {error.strerror}") from error
    return root


@contextmanager
def _progress(doing: str, as_json: bool, root: Path | None = None) -> Iterator[Callable[[], None]]:
    """A bar on a terminal's stderr; yields what to call after each folder; ``root`` says how many."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from admin.cli.output import console

    screen = console(stderr=True)
    columns = (
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("folders"),
        TimeElapsedColumn(),
    )
    shown = screen.is_terminal and not as_json
    with Progress(*columns, console=screen, transient=True, disable=not shown) as bar:
        total = sum(1 for _ in root.glob("*/*/??")) if shown and root is not None else None
        task = bar.add_task(doing, total=total)
        yield lambda: bar.advance(task)


def _ask(question: str, yes: bool, as_json: bool) -> None:
    from admin.cli.errors import CommandFailed

    if yes:
        return
    if as_json:
        raise CommandFailed("this removes blocks and machines are not asked: add --yes")
    typer.confirm(question, abort=True, err=True)


def _chosen(prefix: str, found: "StoreStat") -> str:
    from admin.cli.errors import CommandFailed

    digests = [digest for digest in found.namespaces if digest.startswith(prefix.lower())]
    if not digests:
        raise CommandFailed(f"no namespace begins with {prefix!r}: `kvitto store stat` shows all of them")
    if len(digests) > 1:
        raise CommandFailed(f"{len(digests)} namespaces begin with {prefix!r}: write more digits")
    return digests[0]


def _promised_tokens(found: "StoreStat", digest: str) -> int:
    return found.namespaces[digest].promised_blocks * found.described[digest].block_tokens


def _cost_text(held: "Held", tokens: int, costs: list[dict[str, str]]) -> str:
    if not tokens:
        return f"{held.blocks:,} blocks, {held.bytes:,} bytes; none is promised, so it costs nothing."
    until = datetime.fromtimestamp(held.promised_until_s, UTC).strftime("%Y-%m-%d %H:%M")
    text = (
        f"{held.blocks:,} blocks, {held.bytes:,} bytes; {held.promised_blocks:,} are promised, the last "
        f"until {until} UTC.\nUntil then up to {tokens:,} prompt tokens, each time they are asked for, are "
        "computed but billed at the hit rate."
    )
    amounts = ", ".join(f"{cost['amount']} {cost['currency']}" for cost in costs)
    return f"{text}\nAsked for once, by the prices in force now, that is {amounts}." if amounts else text


def _room_text(found: "StoreStat") -> str:
    if found.quota_bytes is None:
        return ""
    return f" of {found.quota_bytes:,}; room for owed blocks: {found.room_for_owed_bytes:,}"


def _document(root: Path, found: "StoreStat", lost: "Lost | None") -> "Row":
    return {
        "store": root,
        "blocks": found.blocks,
        "bytes": found.bytes,
        "namespaces": [{k: v for k, v in row.items() if k != "short"} for row in _namespace_rows(found)],
        "quota_bytes": found.quota_bytes,
        "room_for_owed_bytes": found.room_for_owed_bytes,
        "tenants": _tenant_rows(found, lost),
        "books_reached": lost is not None,
    }


def _namespace_rows(found: "StoreStat") -> "list[Row]":
    return [
        {
            "namespace": digest,
            "short": digest[:12],
            **_held(held),
            "promised_tokens": _promised_tokens(found, digest),
            "promises": found.described[digest].promises,
            "facts": dict(found.described[digest].facts),
        }
        for digest, held in found.namespaces.items()
    ]


def _tenant_rows(found: "StoreStat", lost: "Lost | None") -> "list[Row]":
    """Of every tenant that the store, or what the books say of broken promises, knows."""
    from billing.money import decimal_of
    from engine.store.operate import Held, Owed

    rows: list[Row] = []
    billed = lost.billed if lost is not None else ()
    for tenant in sorted({*found.tenants, *found.owed, *(row.tenant_id for row in billed)}):
        owed = found.owed.get(tenant, Owed())
        cost = [f"{decimal_of(row.cost)} {row.currency}" for row in billed if row.tenant_id == tenant]
        to_come = lost.of(owed.tokens) if lost is not None and owed.tokens else []
        rows.append(
            {
                "tenant": tenant,
                **_held(found.tenants.get(tenant, Held())),
                "owed_blocks": owed.blocks,
                "owed_bytes": owed.bytes,
                "owed_tokens": owed.tokens,
                "owed_until": _instant(owed.until_s),
                "owed_because": ", ".join(sorted(owed.by_reason)) or None,
                "owed_billed_tokens": sum(row.tokens for row in billed if row.tenant_id == tenant),
                "owed_cost_so_far": ", ".join(cost) or None,
                "owed_cost_to_come": ", ".join(f"{c['amount']} {c['currency']}" for c in to_come) or None,
            }
        )
    return rows


def _held(held: "Held") -> dict[str, object]:
    return {
        "blocks": held.blocks,
        "bytes": held.bytes,
        "promised_blocks": held.promised_blocks,
        "promised_bytes": held.promised_bytes,
        "promised_until": _instant(held.promised_until_s),
    }


def _instant(at_s: int) -> datetime | None:
    return datetime.fromtimestamp(at_s, UTC) if at_s else None
