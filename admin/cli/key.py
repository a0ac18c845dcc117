"""`kvitto key`: the secrets that tenants call the API with, and what each may do."""

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, cast

import typer

from admin.cli.options import ACTOR, DataDir, Json, directory, duration_of, future_of
from billing.tenancy.api_key import Scope, TrafficClass
from billing.tenancy.tenant import DEFAULT_PROJECT

if TYPE_CHECKING:
    from billing.tenancy.api_key import ApiKey, KeyChanges

app = typer.Typer(
    help="Create, change, rotate and revoke API keys, and say what each may do.", no_args_is_help=True
)

NAME_DEFAULT = "default"
GRACE_DEFAULT = "24h"


class ScopeName(StrEnum):
    """`billing.tenancy.api_key.Scope`: options that repeat take an enumeration, no literal."""

    INFERENCE = "inference"
    USAGE_READ = "usage_read"
    MANAGEMENT = "management"


class ClassName(StrEnum):
    """`billing.tenancy.api_key.TrafficClass`, likewise."""

    AGENT = "agent"
    CHAT = "chat"
    NONE = "none"


class Cleared(StrEnum):
    """A restriction that can be taken away, as its option is called."""

    MODELS = "models"
    NETWORKS = "networks"
    EXPIRES = "expires"
    TRAFFIC_CLASS = "traffic-class"
    MAX_TOKENS = "max-tokens"


KeyId = Annotated[
    str, typer.Argument(metavar="KEY_ID", help="Id of the key, from `kvitto key list`.", show_default=False)
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="A public model it may ask; repeat for more.", show_default=False),
]
Networks = Annotated[
    list[str] | None,
    typer.Option(
        "--network",
        metavar="CIDR",
        help="Addresses it may be used from, such as 203.0.113.0/24; repeat for more.",
        show_default=False,
    ),
]
Expires = Annotated[
    str | None,
    typer.Option(metavar="INSTANT", help="When it stops working by itself.", show_default=False),
]
Class = Annotated[
    TrafficClass | None,
    typer.Option(
        "--traffic-class",
        help="How long its prompts stay cached: agent 3 days, chat 7.",
        show_default=False,
    ),
]
Choices = Annotated[
    list[ClassName] | None,
    typer.Option(
        "--allow-class",
        help="A class that requests may choose by X-Traffic-Class; repeat for more. [default: both]",
        show_default=False,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="The longest answer it may ask for.", show_default=False),
]


@app.command("create")
def create(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    tenant: Annotated[str, typer.Argument(help="Name or id of the tenant.")],
    name: Annotated[str, typer.Option(help="What the key is for; shown in lists and usage.")] = NAME_DEFAULT,
    project: Annotated[str, typer.Option(help="Name or id of its project.")] = DEFAULT_PROJECT,
    scope: Annotated[
        list[ScopeName] | None,
        typer.Option(
            help="What it is good for; repeat for more. Management never goes with inference.",
            show_default="inference, usage_read",
        ),
    ] = None,
    models: Models = None,
    networks: Networks = None,
    expires: Expires = None,
    traffic_class: Class = None,
    allow_class: Choices = None,
    max_tokens: MaxTokens = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Create an API key. Its secret is shown now and never again: only a keyed hash of it is stored.

    Unless told otherwise it asks all models, from any address, until it is revoked.

    Example: kvitto key create acme --name ci --network 203.0.113.0/24 --expires 2027-01-01 --max-tokens 1000
    """
    from admin import clock
    from admin.cli import session
    from billing.tenancy.api_key import TRAFFIC_CLASSES, USUAL_SCOPES, KeyTerms, network_of

    at = clock.now()
    terms = KeyTerms(
        scopes=frozenset(cast("list[Scope]", list(map(str, scope)))) if scope else USUAL_SCOPES,
        models=frozenset(models) if models else None,
        networks=tuple(map(network_of, networks)) if networks else None,
        expires_at=_expiry(expires, at),
        traffic_class=traffic_class,
        traffic_classes=TRAFFIC_CLASSES if allow_class is None else _classes(allow_class) or frozenset(),
        max_tokens=max_tokens,
    )

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            owner = await books.tenancy.tenant(tenant)
            issued = await books.tenancy.create_key(
                owner.id, name, at, terms=terms, project=project, actor=ACTOR
            )
        return {**_row(issued.key, owner.name), "secret": issued.secret}

    _show_secret(session.run(work()), as_json=as_json)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant, by name or id.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List API keys, revoked ones too; never their secrets.

    Example: kvitto key list --tenant acme
    """
    from admin.cli import session
    from admin.cli.output import Column, Row, print_rows

    async def work() -> list[Row]:
        async with session.books(directory(data_dir)) as books:
            wanted = (await books.tenancy.tenant(tenant)).id if tenant else None
            names = {each.id: each.name for each in await books.tenancy.tenants()}
            keys = await books.tenancy.keys(wanted)
        return [_row(key, names[key.tenant_id]) for key in keys]

    columns = (
        Column("id", "id"),
        Column("tenant", "tenant", style="bold"),
        Column("name", "name"),
        Column("prefix", "secret begins"),
        Column("created_at", "created (UTC)"),
        Column("expires_at", "expires (UTC)"),
        Column("revoked_at", "revoked (UTC)"),
    )
    empty = "No keys: `kvitto key create TENANT`."
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)


@app.command("show")
def show(key_id: KeyId, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show what an API key may do; never its secret.

    Example: kvitto key show key_0123456789abcdef
    """
    from admin.cli import session

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            key = await books.tenancy.key(key_id)
            return _row(key, (await books.tenancy.tenant(key.tenant_id)).name)

    _show(session.run(work()), as_json=as_json)


@app.command("set")
def set_(  # noqa: PLR0913, PLR0917 -- each parameter is an option a person types
    key_id: KeyId,
    name: Annotated[str | None, typer.Option(help="What the key is for.", show_default=False)] = None,
    models: Models = None,
    networks: Networks = None,
    expires: Expires = None,
    traffic_class: Class = None,
    allow_class: Choices = None,
    max_tokens: MaxTokens = None,
    clear: Annotated[
        list[Cleared] | None,
        typer.Option(help="Take such a restriction away; repeat for more.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Change what an API key may do. What is not named stays. Every gateway follows within two seconds.

    Example: kvitto key set key_0123456789abcdef --model deepseek-chat --clear expires
    """
    from admin import clock
    from admin.cli import session
    from billing.tenancy.api_key import network_of

    at = clock.now()
    given: dict[str, object] = {
        "name": name,
        "models": frozenset(models) if models else None,
        "networks": tuple(map(network_of, networks)) if networks else None,
        "expires_at": _expiry(expires, at),
        "traffic_class": traffic_class,
        "traffic_classes": _classes(allow_class),
        "max_tokens": max_tokens,
    }
    fields = {"expires": "expires_at", "traffic-class": "traffic_class", "max-tokens": "max_tokens"}
    cleared = {fields.get(field, str(field)): None for field in clear or ()}
    named = {field: value for field, value in given.items() if value is not None}
    changes = cast("KeyChanges", {**named, **cleared})
    if not changes:
        raise typer.BadParameter("nothing to change: name what is to be another", param_hint="--name")

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            key = await books.tenancy.change_key(key_id, changes, at, actor=ACTOR)
            await session.tell_gateways(books.settings, key.id)
            return _row(key, (await books.tenancy.tenant(key.tenant_id)).name)

    _show(session.run(work()), as_json=as_json)


@app.command("rotate")
def rotate(
    key_id: KeyId,
    grace: Annotated[
        str,
        typer.Option(metavar="AGE", help="How long the old secret goes on working: 90s, 24h, 7d."),
    ] = GRACE_DEFAULT,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Give an API key a new secret. The key, its limits and its usage stay; both secrets work for a while.

    Example: kvitto key rotate key_0123456789abcdef --grace 7d
    """
    from admin import clock
    from admin.cli import session

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            issued = await books.tenancy.rotate_key(key_id, duration_of(grace), clock.now(), actor=ACTOR)
            await session.tell_gateways(books.settings, key_id)
            owner = await books.tenancy.tenant(issued.key.tenant_id)
        return {**_row(issued.key, owner.name), "secret": issued.secret}

    _show_secret(session.run(work()), as_json=as_json)


@app.command("revoke")
def revoke(key_id: KeyId, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Revoke an API key with all its secrets, for good. Every gateway refuses it within two seconds.

    Example: kvitto key revoke key_0123456789abcdef
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with session.books(directory(data_dir)) as books:
            key = await books.tenancy.revoke_key(key_id, clock.now(), actor=ACTOR)
            await session.tell_gateways(books.settings, key.id)
            return _row(key, (await books.tenancy.tenant(key.tenant_id)).name)

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"Key {row['id']} of {row['tenant']} is revoked.", markup=False)


def _classes(chosen: list[ClassName] | None) -> "frozenset[TrafficClass] | None":
    if not chosen:
        return None
    return frozenset(cast("list[TrafficClass]", [str(each) for each in chosen if each != ClassName.NONE]))


def _expiry(text: str | None, now: datetime) -> datetime | None:
    return None if text is None else future_of(text, now, "--expires")


def _show(row: dict[str, object], *, as_json: bool) -> None:
    from admin.cli.output import print_json, print_pairs

    if as_json:
        print_json(row)
        return
    listed = {name: ", ".join(value) if isinstance(value, list) else value for name, value in row.items()}
    print_pairs([(name.replace("_", " "), value) for name, value in listed.items()])


def _show_secret(row: dict[str, object], *, as_json: bool) -> None:
    from admin.cli.output import console, print_json, print_pairs

    if as_json:
        print_json(row)
    else:
        print_pairs([("key", row["id"]), ("tenant", row["tenant"]), ("secret", row["secret"])])
        console().print("Keep the secret now: it cannot be shown again.", style="yellow")


def _row(key: "ApiKey", tenant_name: str) -> dict[str, object]:
    terms = key.terms
    return {
        "id": key.id,
        "tenant": tenant_name,
        "tenant_id": key.tenant_id,
        "project_id": key.project_id,
        "name": key.name,
        "prefix": key.prefix,
        "scopes": sorted(terms.scopes),
        "models": None if terms.models is None else sorted(terms.models),
        "networks": None if terms.networks is None else [str(network) for network in terms.networks],
        "traffic_class": terms.traffic_class,
        "traffic_classes": sorted(terms.traffic_classes),
        "max_tokens": terms.max_tokens,
        "created_at": key.created_at,
        "expires_at": terms.expires_at,
        "revoked_at": key.revoked_at,
    }
