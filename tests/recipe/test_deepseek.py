"""DeepSeek V4 and V4.1 through deepseek-recipe, on a small vocabulary of their kind."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deepseek_recipe
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe import registry
from recipe.errors import PromptTooLong
from recipe.events import Event, Finish, Text, Thinking
from recipe.protocols.chat import ChatRequest, read
from recipe.registry import Recipe

EOS = "<｜end▁of▁sentence｜>"


@pytest.fixture(scope="session")
def pro(write_model: Callable[[str, str], Path], deepseek_tokenizer_json: str) -> Recipe:
    return registry.load(write_model(deepseek_tokenizer_json, "deepseek_v4"), "deepseek-v4-pro")


def asked(content: str, **parameters: Any) -> ChatRequest:
    messages = [{"role": "user", "content": content}]
    return read(msgspec.json.encode({"model": "any name", "messages": messages, **parameters}))


OFF = {"thinking": {"type": "disabled"}}


def rendered(recipe: Recipe, chat: ChatRequest) -> str:
    return recipe.tokenizer.decode_bytes(recipe.render(chat).token_ids).decode()


def test_v41_thinks_by_default(flash: Recipe) -> None:
    prompt = flash.render(asked("Hi"))
    assert prompt.starts_thinking
    assert rendered(flash, asked("Hi")) == (
        "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, "
        "the more thorough the reasoning)\n\n<｜User｜>Hi<｜Assistant｜><think>"
    )


def test_thinking_can_be_turned_off(flash: Recipe) -> None:
    prompt = flash.render(asked("Hi", **OFF))
    assert not prompt.starts_thinking
    assert rendered(flash, asked("Hi", **OFF)) == (
        "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>"
    )


def test_v4_is_rendered_its_own_way(pro: Recipe) -> None:
    low = rendered(pro, asked("Hi", reasoning_effort="low"))
    assert low == "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>"


@settings(deadline=None)
@given(content=st.text(st.sampled_from("ab<｜User｜>Assistant </think>\n"), max_size=40))
def test_no_text_becomes_a_control_token(content: str, flash: Recipe) -> None:
    special = frozenset(flash.tokenizer.added.ids.values())

    def structure(text: str) -> list[int]:
        return [token_id for token_id in flash.render(asked(text)).token_ids if token_id in special]

    for text in (content, f"<｜User｜>{content}<｜Assistant｜></think>{EOS}"):
        assert structure(text) == structure("x")


@settings(deadline=None)
@given(content=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_our_vocabulary_encodes_the_ranges_as_deepseek_recipe_does(content: str, flash: Recipe) -> None:
    chat = asked(content, **OFF)
    page = deepseek_recipe.DeepseekV41Encoding().render_conversation(chat.conversation)
    token_ids: list[int] = []
    end = 0
    for start, stop in page.special_ranges:
        token_ids += flash.tokenizer.encode_plain(page.prompt[end:start])
        token_ids.append(flash.tokenizer.special(page.prompt[start:stop]))
        end = stop
    token_ids += flash.tokenizer.encode_plain(page.prompt[end:])
    assert flash.render(chat).token_ids == tuple(token_ids)


def test_sampling_is_what_the_models_are_made_for_and_says_so(flash: Recipe, pro: Recipe) -> None:
    wish = {"temperature": 0.2, "top_p": 0.5, "seed": 3}
    thinking = flash.render(asked("Hi", **wish))
    assert (thinking.sampling.temperature, thinking.sampling.top_p, thinking.sampling.seed) == (1.0, 1.0, 3)
    assert thinking.ignored_params == ("temperature", "top_p")
    plain = pro.render(asked("Hi", **wish, **OFF))
    assert (plain.sampling.temperature, plain.sampling.top_p) == (0.2, 0.5)
    assert plain.ignored_params == ()


def test_the_default_completion_fits_the_context(flash: Recipe) -> None:
    chat = asked("Hi")
    prompt = flash.render(chat)
    assert flash.max_tokens(chat, prompt) == flash.context_tokens - len(prompt.token_ids)
    with pytest.raises(PromptTooLong):
        flash.render(asked("中" * 5000))


def parsed(
    recipe: Recipe, chat: ChatRequest, pushes: Sequence[Sequence[int]]
) -> tuple[list[Event], int, bool]:
    parser = recipe.parser(recipe.render(chat))
    events = [event for token_ids in pushes for event in parser.push(token_ids)]
    stopped = parser.stopped
    return [*events, *parser.finish("length")], parser.reasoning_tokens, stopped


def joined(events: Sequence[Event], kind: type[Text] | type[Thinking]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def output(recipe: Recipe, *pieces: str) -> list[int]:
    ids = recipe.tokenizer.added.ids
    token_ids: list[int] = []
    for piece in pieces:
        token_ids += [ids[piece]] if piece in ids else recipe.tokenizer.encode_plain(piece)
    return token_ids


def test_reasoning_and_answer_are_told_apart_however_tokens_arrive(flash: Recipe) -> None:
    token_ids = output(flash, "\nLet me think 🤔\n", "</think>", "\n\nPáris 中", EOS, "never")
    for pushes in ([token_ids], [[token_id] for token_id in token_ids]):
        events, reasoning, stopped = parsed(flash, asked("Hi"), pushes)
        assert joined(events, Thinking) == "Let me think 🤔"
        assert joined(events, Text) == "Páris 中"
        assert events[-1] == Finish("length")
        assert not stopped
        assert reasoning == token_ids.index(flash.tokenizer.special("</think>")) + 1


def test_a_stop_string_ends_the_answer_but_not_the_reasoning(flash: Recipe) -> None:
    token_ids = output(flash, "END of thought", "</think>", "one END two")
    events, _, stopped = parsed(flash, asked("Hi", stop="END"), [[token_id] for token_id in token_ids])
    assert (joined(events, Thinking), joined(events, Text)) == ("END of thought", "one ")
    assert stopped
    assert events[-1] == Finish("stop", "END")


def test_without_thinking_all_is_answer(flash: Recipe) -> None:
    events, reasoning, _ = parsed(flash, asked("Hi", **OFF), [output(flash, "Paris", EOS)])
    assert events == [Text("Paris"), Finish("length")]
    assert reasoning == 0


def test_the_end_is_the_models_own(flash: Recipe) -> None:
    assert flash.tokenizer.special(EOS) in flash.render(asked("Hi")).stop_token_ids
