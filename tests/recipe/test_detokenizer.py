"""Incremental decoding: whole characters only, and nothing lost."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from recipe.detokenizer import Detokenizer
from recipe.tokenizer import Tokenizer


class Bytes:
    """A vocabulary of the 256 bytes."""

    def decode_bytes(self, token_ids: Sequence[int]) -> bytes:
        return bytes(token_ids)


def pushed(content: bytes, cuts: list[int]) -> list[str]:
    detokenizer = Detokenizer(Bytes())
    ends = sorted({min(cut, len(content)) for cut in cuts} | {len(content)})
    starts = [0, *ends[:-1]]
    pieces = [detokenizer.push(list(content[a:b])) for a, b in zip(starts, ends, strict=True)]
    return [*pieces, detokenizer.flush()]


CUTS = st.lists(st.integers(0, 80), max_size=30)


@given(st.binary(max_size=80), CUTS)
def test_pieces_concatenate_to_the_whole_decoded_at_once(content: bytes, cuts: list[int]) -> None:
    assert "".join(pushed(content, cuts)) == content.decode("utf-8", "replace")


@given(st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"]), max_size=20), CUTS)
def test_a_character_comes_whole_or_not_at_all(text: str, cuts: list[int]) -> None:
    pieces = pushed(text.encode(), cuts)
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[-1] == ""


def test_a_character_cut_off_by_the_end_is_a_replacement_character() -> None:
    assert pushed("é😀".encode()[:-1], [1, 2, 3]) == ["", "é", "", "", "\ufffd"]


def test_an_emoji_of_several_tokens_waits_for_its_last_one(smol_tokenizer: Tokenizer) -> None:
    token_ids = smol_tokenizer.encode_plain("🦄")
    assert len(token_ids) > 1
    detokenizer = Detokenizer(smol_tokenizer)
    assert [detokenizer.push([token_id]) for token_id in token_ids] == [""] * (len(token_ids) - 1) + ["🦄"]
