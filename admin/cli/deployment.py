"""`kvitto deployment`: the keys that sign for it."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from admin.cli.options import DataDir, Json, directory

app = typer.Typer(
    help="The deployment's signing keys: all that customers verify goes back to the first of them.",
    no_args_is_help=True,
)


@app.command("keys")
def keys(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the keys that have signed for this deployment, oldest first, and what to trust them by.

    Who verifies pins the anchor, the first key's id. --json prints the ring itself, for `--keys`.

    Example: kvitto deployment keys --json > keys.json
    """
    import json

    from admin.cli.output import Column, console, print_json, print_rows
    from admin.stack import secrets

    ring = secrets.deployment_ring(directory(data_dir))
    if as_json:
        print_json(json.loads(ring.to_text()))
        return
    rows = [
        {
            "id": key.id,
            "since": datetime.fromtimestamp(key.since_s, UTC) if key.since_s else "the beginning",
            "until": "in use" if key.until_s is None else datetime.fromtimestamp(key.until_s, UTC),
        }
        for key in ring.keys
    ]
    columns = (Column("id", "key", style="bold"), Column("since", "signs since"), Column("until", "until"))
    print_rows(rows, columns, as_json=False, empty="")
    console().print(f"Anchor: {ring.keys[0].id}", style="bold", soft_wrap=True)


@app.command("rotate-key")
def rotate_key(
    data_dir: DataDir = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Give the deployment a new signing key, while its stack is down. The private key before is deleted.

    The old key signs the new one, so the anchor that customers pin stays. Workers get new certificates when
    the stack starts; what they have signed until then stays valid.

    Example: kvitto deployment rotate-key --yes
    """
    from admin import clock
    from admin.cli.output import console
    from admin.stack import secrets, state

    chosen = directory(data_dir)
    secrets.deployment_ring(chosen)
    state.Layout(chosen).create()
    with state.locked(chosen):
        if not yes:
            typer.confirm("Delete the private key that signs now, and go on with a new one?", abort=True)
        # From the next second on: what the key before has certified in this one stays valid.
        ring = secrets.rotate_deployment_key(chosen, int(clock.now().timestamp()) + 1)
    said = f"{ring.present.id} signs from now on; the anchor is still {ring.keys[0].id}."
    console().print(said, soft_wrap=True)
