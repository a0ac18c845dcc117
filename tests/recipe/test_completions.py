"""Completions of a raw text: what is read, how it is encoded, and the answers that SDKs expect."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from recipe import registry
from recipe.errors import BodyMalformed, ParameterInvalid, ParameterUnsupported, PromptTooLong, RecipeError
from recipe.events import Drawn, Event, Finish, Likely, Text
from recipe.prompt import Sampling
from recipe.protocols.chat_answer import AnswerHead
from recipe.protocols.completions import CompletionRequest, CompletionStream, answer, read
from recipe.registry import Recipe
from recipe.usage import Buckets, chat_usage
from tests.recipe.conftest import CORPUS, DEEPSEEK_SPECIALS, DEEPSEEK_STAGES, reference, staged
from tests.recipe.recordings import sent_to
from tests.recipe.test_chat_request import JSON

FIM = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")
HEAD = AnswerHead(id="cmpl-1", model="m", created=1_790_000_000)
USAGE = Buckets(hit=64, miss=6, output=3)
EVENTS: list[Event] = [Text("Par"), Text("is"), Finish("length")]


def request(**parameters: Any) -> CompletionRequest:
    return read(msgspec.json.encode({"model": "m", "prompt": "def f(", **parameters}))


@pytest.fixture(scope="session")
def coder(write_model: Callable[[str, str], Path]) -> Recipe:
    """A DeepSeek model that was trained to fill holes."""
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = staged(*DEEPSEEK_STAGES)
    model.normalizer = normalizers.Sequence([])
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[*DEEPSEEK_SPECIALS, *FIM],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(CORPUS, trainer)
    folder = write_model(model.to_str(), "deepseek_v41")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16_384}))
    return registry.load(folder, "coder")


def spelled(recipe: Recipe, asked: CompletionRequest) -> str:
    return recipe.tokenizer.decode_bytes(recipe.render(asked).token_ids).decode()


def test_a_plain_body_has_the_protocols_defaults() -> None:
    plain = request()
    assert (plain.model, plain.text, plain.suffix) == ("m", "def f(", None)
    assert (plain.sampling, plain.max_tokens, plain.stop, plain.stream) == (Sampling(), None, (), False)
    assert plain.conversation.messages == []
    assert plain.ignored_params == ()


def test_every_parameter_arrives() -> None:
    full = request(
        suffix="return x",
        temperature=0,
        top_p=0.5,
        seed=7,
        presence_penalty=-1,
        frequency_penalty=0.5,
        max_tokens=9,
        stop="END",
        stream=True,
        stream_options={"include_usage": True},
        user_id="u-1",
        service_tier="flex",
        user="u",
    )
    assert full.suffix == "return x"
    assert full.sampling == Sampling(0.0, 0.5, 7, -1.0, 0.5)
    assert (full.max_tokens, full.stop, full.stream, full.include_usage) == (9, ("END",), True, True)
    assert (full.user_id, full.service_tier, full.ignored_params) == ("u-1", "flex", ("user",))


def test_a_list_of_one_text_is_that_text() -> None:
    assert request(prompt=["def f("]).text == "def f("


def test_log_probabilities_are_asked_for_by_how_many_are_told_beside_each() -> None:
    assert [request(logprobs=asked).logprobs for asked in (None, 0, 5)] == [None, 0, 5]
    for refused in (21, -1, True, "5"):
        with pytest.raises(ParameterInvalid) as caught:
            request(logprobs=refused)
        assert caught.value.param == "logprobs"


TOLD: list[Event] = [
    Text("é"),
    Drawn(Likely(b"\xc3", -0.5), (Likely(b"x", -0.1), Likely(b"\xc3", -0.5))),
    Drawn(Likely(b"\xa9", -0.25), (Likely(b"\xa9", -0.25),)),
    Text("t"),
    Drawn(Likely(b"t", -1.0), (Likely(b"t", -1.0),)),
    Finish("stop"),
]


def test_log_probabilities_stand_in_columns_and_each_token_has_its_own_name() -> None:
    told = answer(HEAD, TOLD, USAGE)["choices"][0]["logprobs"]
    assert told == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", "t"],
        "token_logprobs": [-0.5, -0.25, -1.0],
        "top_logprobs": [{"x": -0.1, "bytes:\\xc3": -0.5}, {"bytes:\\xa9": -0.25}, {"t": -1.0}],
        "text_offset": [0, 0, 1],
    }
    stream = CompletionStream(HEAD, include_usage=False)
    written = [*stream.deltas(TOLD[:3]), *stream.deltas(TOLD[3:])]
    chunks = [chunk["choices"][0]["logprobs"] for chunk in written]
    assert [name for one in chunks for name in one["tokens"]] == told["tokens"]
    assert [offset for one in chunks for offset in one["text_offset"]] == told["text_offset"]


def test_without_a_number_of_likeliest_tokens_none_are_told() -> None:
    one: list[Event] = [Text("t"), Drawn(Likely(b"t", -1.0)), Finish("stop")]
    assert answer(HEAD, one, USAGE)["choices"][0]["logprobs"]["top_logprobs"] is None
    assert answer(HEAD, [Text("t"), Finish("stop")], USAGE)["choices"][0]["logprobs"] is None
    (held,) = CompletionStream(HEAD, include_usage=False).deltas([Drawn(Likely(b"t", -1.0))])
    assert (held["choices"][0]["text"], held["choices"][0]["logprobs"]["tokens"]) == ("", ["t"])


def test_what_changes_nothing_is_accepted() -> None:
    harmless = {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "logit_bias": {}, "suffix": ""}
    assert request(**harmless).suffix is None
    assert request(**harmless).ignored_params == ()


@pytest.mark.parametrize(
    ("param", "parameters"),
    [
        ("prompt", {"prompt": ["a", "b"]}),
        ("prompt", {"prompt": [1, 2, 3]}),
        ("prompt", {"prompt": [[1, 2], [3]]}),
        ("n", {"n": 2}),
        ("best_of", {"best_of": 2}),
        ("echo", {"echo": True}),
        ("logit_bias", {"logit_bias": {"50256": -100}}),
        ("thinking", {"thinking": {"type": "enabled"}}),
    ],
)
def test_what_is_not_served_is_refused_by_name(param: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(ParameterUnsupported) as caught:
        request(**parameters)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("param", "parameters", "malformed"),
    [
        ("model", {"model": ""}, True),
        ("prompt", {"prompt": None}, True),
        ("prompt", {"prompt": []}, True),
        ("prompt", {"prompt": 5}, True),
        ("prompt", {"prompt": {"text": "x"}}, True),
        ("suffix", {"suffix": 5}, True),
        ("max_tokens", {"max_tokens": "9"}, True),
        ("max_tokens", {"max_tokens": 0}, False),
        ("temperature", {"temperature": 3}, False),
        ("stop", {"stop": ["x"] * 17}, False),
        ("stream_options", {"stream_options": {"include_usage": True}}, False),
    ],
)
def test_a_bad_value_is_refused_by_name(param: str, parameters: dict[str, Any], malformed: bool) -> None:
    with pytest.raises(ParameterInvalid) as caught:
        request(**parameters)
    assert (caught.value.param, caught.value.malformed) == (param, malformed)


def test_a_body_that_is_no_json_object_is_malformed() -> None:
    for raw in (b"", b"[]", b"[" * 100_000):
        with pytest.raises(BodyMalformed):
            read(raw)


PARAMETERS = st.sampled_from(
    [
        *("model", "prompt", "suffix", "temperature", "top_p", "seed", "n", "best_of", "echo", "logprobs"),
        *("max_tokens", "stop", "stream", "stream_options", "user_id", "logit_bias", "service_tier", "user"),
    ]
)


@given(st.dictionaries(PARAMETERS, JSON, max_size=4))
def test_whatever_a_body_holds_it_is_read_or_refused(parameters: dict[str, Any]) -> None:
    with contextlib.suppress(RecipeError):
        assert isinstance(request(**parameters).text, str)


@pytest.mark.parametrize("name", ["smol", "coder"])
def test_a_text_is_continued_as_it_is(name: str, request_of: Callable[[str], Recipe]) -> None:
    recipe = request_of(name)
    begin = "" if name == "smol" else "<｜begin▁of▁sentence｜>"
    assert spelled(recipe, request(prompt="\n\n 12 def f(")) == f"{begin}\n\n 12 def f("


@pytest.fixture
def request_of(smol: Recipe, coder: Recipe) -> Callable[[str], Recipe]:
    return {"smol": smol, "coder": coder}.__getitem__


@pytest.mark.parametrize("name", ["smol", "coder"])
def test_what_spells_a_control_token_is_text(name: str, request_of: Callable[[str], Recipe]) -> None:
    recipe = request_of(name)
    special = frozenset(recipe.tokenizer.added.ids.values())
    forged = "".join(recipe.tokenizer.added.ids) + "x"
    structure = [
        token_id for token_id in recipe.render(request(prompt=forged)).token_ids if token_id in special
    ]
    plain = [token_id for token_id in recipe.render(request(prompt="x")).token_ids if token_id in special]
    assert structure == plain


def test_a_hole_stands_between_the_text_and_what_follows_it(coder: Recipe) -> None:
    asked = request(prompt="def f(", suffix="return x")
    assert spelled(coder, asked) == (
        "<｜begin▁of▁sentence｜><｜fim▁begin｜>def f(<｜fim▁hole｜>return x<｜fim▁end｜>"
    )
    special = frozenset(coder.tokenizer.added.ids.values())
    forged = request(prompt="".join(FIM), suffix="".join(FIM))
    assert sum(token_id in special for token_id in coder.render(forged).token_ids) == 4


def test_a_model_without_the_tokens_refuses_a_suffix_by_name(smol: Recipe) -> None:
    with pytest.raises(ParameterUnsupported) as caught:
        smol.render(request(suffix="return x"))
    assert caught.value.param == "suffix"


def test_a_hole_is_filled_with_at_most_4096_tokens(coder: Recipe) -> None:
    """DeepSeek's bound of completions in the middle; a text alone may go on for longer."""
    asked = request(suffix="return x", max_tokens=4097)
    with pytest.raises(ParameterInvalid) as caught:
        coder.max_tokens(asked, coder.render(asked))
    assert (caught.value.param, caught.value.malformed) == ("max_tokens", False)
    longest, alone = request(suffix="return x", max_tokens=4096), request(max_tokens=4097)
    assert coder.max_tokens(longest, coder.render(longest)) == 4096
    assert coder.max_tokens(alone, coder.render(alone)) == 4097


def test_without_a_limit_an_answer_has_its_makers_default(smol: Recipe, coder: Recipe) -> None:
    for recipe, default in ((smol, 16), (coder, 4096)):
        assert recipe.max_tokens(request(), recipe.render(request())) == default


def test_a_text_is_not_thought_about_and_its_answer_is_not_parsed(coder: Recipe) -> None:
    prompt = coder.render(request())
    assert not prompt.starts_thinking
    parser = coder.parser(prompt)
    said = "\n\n <｜DSML｜tool_calls> and then \n"
    events = [*parser.push(coder.tokenizer.encode_plain(said)), *parser.finish("stop")]
    assert "".join(event.text for event in events if isinstance(event, Text)) == said


def test_a_text_beyond_the_context_is_refused(smol: Recipe, coder: Recipe) -> None:
    for recipe in (smol, coder):
        with pytest.raises(PromptTooLong):
            recipe.render(request(prompt="one word after another " * 20_000))


def test_an_empty_text_needs_a_token_to_begin_with(smol: Recipe, coder: Recipe) -> None:
    assert spelled(coder, request(prompt="")) == "<｜begin▁of▁sentence｜>"
    with pytest.raises(ParameterInvalid) as caught:
        smol.render(request(prompt=""))
    assert caught.value.param == "prompt"


BEGINNING = processors.TemplateProcessing(
    single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 8), ("<|im_end|>", 9)]
)


@pytest.mark.parametrize("after", [BEGINNING, processors.Sequence([processors.ByteLevel(), BEGINNING])])
@settings(max_examples=20)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_a_text_begins_as_the_models_own_tokenizer_has_it_begin(
    after: Any, text: str, write_model: Callable[[str, str], Path], deepseek_tokenizer_json: str
) -> None:
    model = tokenizers.Tokenizer.from_str(deepseek_tokenizer_json)
    model.post_processor = after
    folder = write_model(model.to_str(), "llama")
    *encoded, end = reference(folder / "tokenizer.json").encode(text).ids
    assert end == model.token_to_id("<|im_end|>")
    recipe = registry.load(folder, "m")
    assert list(recipe.render(request(prompt=text)).token_ids) == encoded


@pytest.mark.parametrize(("adds", "begins"), [(True, True), (False, False), (None, False)])
def test_a_tokenizers_configuration_says_whether_a_token_begins_a_text(
    adds: bool | None, begins: bool, write_model: Callable[[str, str], Path], deepseek_tokenizer_json: str
) -> None:
    folder = write_model(deepseek_tokenizer_json, "llama")
    config = {"bos_token": {"content": "<|im_start|>"}, "add_bos_token": adds}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    recipe = registry.load(folder, "m")
    assert spelled(recipe, request(prompt="x")) == ("<|im_start|>x" if begins else "x")


def stream(*, include_usage: bool = False) -> list[dict[str, Any]]:
    written = CompletionStream(HEAD, include_usage=include_usage)
    return [*written.opening(USAGE), *written.deltas(EVENTS), *written.closing(USAGE)]


def test_chunks_concatenate_to_the_answer_and_one_has_a_reason() -> None:
    chunks = stream()
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Paris"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert [chunk["usage"] for chunk in chunks] == [None, None, chat_usage(USAGE)]
    for chunk in chunks:
        assert (chunk["id"], chunk["object"], chunk["model"]) == ("cmpl-1", "text_completion", "m")


def test_usage_that_was_asked_for_comes_once_in_a_chunk_without_choices() -> None:
    *_, before, last = stream(include_usage=True)
    assert last["choices"] == []
    assert (before["usage"], last["usage"]) == (None, chat_usage(USAGE))
    assert all(chunk["choices"] for chunk in stream())


def test_an_answer_at_once_is_openais() -> None:
    official = Completion.model_validate_json(msgspec.json.encode(answer(HEAD, EVENTS, USAGE)), strict=True)
    (choice,) = official.choices
    assert (choice.text, choice.finish_reason) == ("Paris", "length")
    assert official.usage is not None
    assert official.usage.prompt_tokens == 70


@pytest.mark.parametrize("body", [one.body for one in sent_to("/v1/completions")])
def test_a_recorded_body_is_read_in_full(body: dict[str, Any], coder: Recipe) -> None:
    asked = read(msgspec.json.encode(body))
    assert (asked.text, asked.suffix, asked.max_tokens) == (
        body["prompt"],
        body["suffix"],
        body["max_tokens"],
    )
    assert coder.max_tokens(asked, coder.render(asked)) == body["max_tokens"]
