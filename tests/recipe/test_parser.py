"""Output parsing of plain models: stop strings, the model's own end, control tokens."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from recipe.events import Event, Finish, FinishReason, Text
from recipe.parser import PlainParser, StopStrings
from recipe.registry import Recipe
from recipe.tokenizer import Tokenizer

SHORT = st.text("ab", max_size=12)
WRITABLE = st.text(
    st.characters(
        exclude_characters="\x04\x06\x13\x14\x16\x1d", max_codepoint=0x3FFFF, exclude_categories=["Cs"]
    )
)


def until_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """What may be shown, found character by character: the obvious, slow way."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(st.lists(SHORT, max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stop_strings_match_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    stopper = StopStrings(stops)
    shown = "".join(map(stopper.push, pieces))
    matched = stopper.matched is not None
    assert (shown + stopper.flush(), matched) == until_stop("".join(pieces), stops)


@given(st.lists(SHORT, max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_only_the_beginning_of_a_stop_is_held_back(pieces: list[str], stops: list[str]) -> None:
    stopper = StopStrings(stops)
    shown = "".join(map(stopper.push, pieces))
    held = stopper.flush()
    assert not held or any(stop.startswith(held) for stop in stops)
    assert stopper.matched or shown + held == "".join(pieces)


def spoken(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def run(parser: PlainParser, token_ids: Sequence[int], reason: FinishReason = "length") -> list[Event]:
    events = [event for token_id in token_ids for event in parser.push([token_id])]
    return [*events, *parser.finish(reason)]


def test_text_comes_token_by_token_and_ends_with_the_reason(smol_tokenizer: Tokenizer) -> None:
    token_ids = smol_tokenizer.encode_plain("The capital of France is Paris.")
    events = run(PlainParser(smol_tokenizer, [2], []), token_ids)
    assert spoken(events) == "The capital of France is Paris."
    assert len(events) == len(token_ids) + 1
    assert events[-1] == Finish("length")


def test_nothing_of_a_stop_string_or_behind_it_is_shown(smol_tokenizer: Tokenizer) -> None:
    parser = PlainParser(smol_tokenizer, [2], ["END"])
    events = parser.push(smol_tokenizer.encode_plain("one END two END"))
    assert parser.stopped
    assert spoken(events) == "one "
    assert parser.push(smol_tokenizer.encode_plain("more")) == []
    assert parser.finish("length") == [Finish("stop", "END")]


def test_the_models_end_stands_for_no_text_and_ends_the_answer(smol_tokenizer: Tokenizer) -> None:
    parser = PlainParser(smol_tokenizer, [2], [])
    events = parser.push([*smol_tokenizer.encode_plain("yes"), 2, *smol_tokenizer.encode_plain("no")])
    assert spoken(events) == "yes"
    assert not parser.stopped
    assert parser.push(smol_tokenizer.encode_plain("no")) == []
    assert parser.finish("stop") == [Finish("stop")]


def test_control_tokens_are_never_shown(smol_tokenizer: Tokenizer) -> None:
    marks = [smol_tokenizer.special("<|im_start|>"), smol_tokenizer.special("<repo_name>")]
    parser = PlainParser(smol_tokenizer, [2], [])
    events = parser.push([*marks, *smol_tokenizer.encode_plain("yes"), *marks])
    assert spoken([*events, *parser.finish("stop")]) == "yes"


def test_what_was_held_back_comes_at_the_end(smol_tokenizer: Tokenizer) -> None:
    parser = PlainParser(smol_tokenizer, [2], ["END"])
    shown = parser.push(smol_tokenizer.encode_plain("the EN"))
    assert spoken(shown) == "the "
    assert parser.finish("length") == [Text("EN"), Finish("length")]


def test_a_character_left_unfinished_is_shown_as_replaced(smol_tokenizer: Tokenizer) -> None:
    token_ids = smol_tokenizer.encode_plain("🦄")[:-1]
    assert run(PlainParser(smol_tokenizer, [2], []), token_ids) == [Text("\ufffd"), Finish("length")]


@given(text=WRITABLE)
def test_the_answer_does_not_depend_on_how_tokens_arrive(text: str, smol: Recipe) -> None:
    token_ids = smol.tokenizer.encode_plain(text)
    singly = run(PlainParser(smol.tokenizer, [2], ["e"]), token_ids)
    at_once = PlainParser(smol.tokenizer, [2], ["e"])
    together = [*at_once.push(token_ids), *at_once.finish("length")]
    assert (spoken(singly), singly[-1]) == (spoken(together), together[-1])
    assert spoken(singly) == text.partition("e")[0]
