"""Prompts again: the tokens of a body that was sent, and whether a receipt commits to them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from admin.verify.receipt import CheckedReceipt
from engine.proof.attestation import PrefillAttestation, commitment
from engine.proof.signed import PayloadInvalid
from recipe import registry
from recipe.errors import RecipeError
from recipe.protocols import chat, completions, messages, responses
from recipe.registry import Recipe
from recipe.request import Request

SURFACES: Final[Mapping[str, Callable[[bytes], Request]]] = {
    "chat": chat.read,
    "messages": messages.read,
    "responses": responses.read,
    "completions": completions.read,
}


@dataclass(frozen=True, slots=True)
class Encoded:
    """A body as one surface reads it; ``user_id`` is whose it says it is, "" nobody's."""

    surface: str
    user_id: str
    token_ids: tuple[int, ...]


def recipe_of(model_dir: Path) -> Recipe:
    """The recipe of a model's folder: its tokenizer and configuration; weights are not read.

    Raises:
        ModelUnreadable: the folder lacks something.
    """
    return registry.load(model_dir, model_dir.name, memo_bytes_max=0)


def readings(body: bytes, recipe: Recipe, surface: str | None = None) -> Iterator[Encoded]:
    """The body as each surface encodes it that can read it, or as the one named.

    Raises:
        RecipeError: none can; the error is the first's.
    """
    first, read = None, False
    for name in SURFACES if surface is None else (surface,):
        try:
            request = SURFACES[name](body)
            encoded = Encoded(name, request.user_id, tuple(recipe.render(request).token_ids))
        except RecipeError as error:
            first = first or error
            continue
        read = True
        yield encoded
    if not read and first is not None:
        raise first


def prefill_of(checked: CheckedReceipt) -> PrefillAttestation | None:
    """What is attested of the prompt that was accepted."""
    if checked.document is None:
        return None
    accepted = {each.attempt for each in checked.document.attempts if each.stage != "decode"}
    found = (one for one in checked.attestations if isinstance(one, PrefillAttestation))
    return next((one for one in found if one.attempt in accepted), None)


def prompt_fault(prefill: PrefillAttestation, nonce: bytes, token_ids: Sequence[int]) -> str | None:
    """How a prompt is not the one that is attested; None where it is, and its cached part too."""
    if len(token_ids) != prefill.prompt_tokens:
        return f"it has {len(token_ids)} tokens, attested are {prefill.prompt_tokens}"
    try:
        whole = commitment(nonce, token_ids)
        cached = commitment(nonce, token_ids[: prefill.hit_tokens])
    except PayloadInvalid as error:
        return str(error)
    if whole != prefill.prompt_commitment:
        return "the commitment is to other tokens, or by another nonce"
    if cached != prefill.cached_prefix_commitment:
        return f"the commitment to the {prefill.hit_tokens} cached tokens is to others"
    return None
