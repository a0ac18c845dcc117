"""Options of `kvitto up` that say which workers there are and what they may do, and the shape they make."""

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

if TYPE_CHECKING:
    from engine.shapes.shape import Shape

PANEL_SHAPE: Final = "The shape of the engine"
WORKERS_MAX: Final = 64
STEP_BUDGET_S: Final = 0.1
DRAFT_TOKENS_MAX: Final = 16

Switch = Literal["on", "off"]

Prefill = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=WORKERS_MAX,
        rich_help_panel=PANEL_SHAPE,
        help="Workers that compute prompts, apart from those that write answers.",
    ),
]
Decode = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=WORKERS_MAX,
        rich_help_panel=PANEL_SHAPE,
        help="Workers that write answers, apart from those that compute prompts.",
    ),
]
Mono = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=WORKERS_MAX,
        show_default="1",
        rich_help_panel=PANEL_SHAPE,
        help="Workers that do everything, each on its share of all cores.",
    ),
]
Encode = Annotated[
    int,
    typer.Option(
        min=0,
        max=WORKERS_MAX,
        rich_help_panel=PANEL_SHAPE,
        help="Workers that encode images and nothing else, for a model that takes images. 0: who computes a "
        "prompt encodes its images.",
    ),
]
StepBudget = Annotated[
    float,
    typer.Option(
        min=0,
        max=60,
        rich_help_panel=PANEL_SHAPE,
        help="Cut prompts so that no step beside answers takes longer (half as long again, where steps cost "
        "much to begin with); cheap prompts first, fair between tenants. 0: fixed chunks, first come.",
    ),
]
FirstToken = Annotated[
    Switch,
    typer.Option(
        rich_help_panel=PANEL_SHAPE,
        help="The prefill worker sends the first token, when nothing depends on decode's state: sooner, but "
        "the second comes a hand-off later.",
    ),
]
Store = Annotated[
    Switch,
    typer.Option(
        rich_help_panel=PANEL_SHAPE, help="Keep prefixes on disk, shared by all workers and restarts."
    ),
]
Promise = Annotated[
    Switch,
    typer.Option(
        rich_help_panel=PANEL_SHAPE,
        help="Promise to keep what is stored; what had to go early is billed as a hit.",
    ),
]
Speculate = Annotated[
    int,
    typer.Option(
        min=0,
        max=DRAFT_TOKENS_MAX,
        metavar="N",
        rich_help_panel=PANEL_SHAPE,
        help="Draft up to N tokens a step from what the request has said before, and keep those that the "
        "model would have drawn: sooner where answers repeat their prompts, slower where not. Answers held "
        "to a grammar are never drafted. 0: none.",
    ),
]


def seated(prefill: int | None, decode: int | None, mono: int | None, encode: int = 0) -> "Shape":
    """The workers asked for, on the cores of this machine; raises typer.BadParameter for both at once."""
    from admin.stack.workers import own_cores
    from engine.shapes.shape import Shape

    if prefill is None and decode is None:
        return Shape.mono(mono or 1, own_cores()).encoding(encode)
    if mono is not None:
        raise typer.BadParameter("--mono comes instead of --prefill and --decode, not beside them")
    return Shape.split(prefill or 1, decode or 1, own_cores()).encoding(encode)
