"""Constraints, compiled by the backend that enforces them, over the default model's vocabulary."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers
import xgrammar
from deepseek_recipe import Conversation, ToolDefinition

from recipe import constraint
from recipe.errors import ParameterInvalid, ParameterUnsupported
from recipe.prompt import Constraint
from tests.schemas import random_schema

STOP = 2
STEPS_FREE, STEPS_MAX = 60, 400
ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ToolDefinition("weather", parameters=ARGUMENTS, strict=True)
CLOCK = ToolDefinition("clock")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "clock", "arguments": {"any": [1]}}\n</tool_call>'

Accepts = Callable[[Constraint, str], bool]


class Vocabulary:
    """The default model's, as vLLM gives it to xgrammar."""

    def __init__(self, model_dir: Path) -> None:
        tokenizer = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        tokens = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        self.info = xgrammar.TokenizerInfo(
            [token for token, _ in tokens], xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[STOP]
        )
        self.compiler = xgrammar.GrammarCompiler(self.info, max_threads=2)
        self.bytes = [bytes(token) for token in self.info.decoded_vocab]
        self.raw_controls = np.array(
            [any(byte < 32 and byte != 10 for byte in token) for token in self.bytes]
        )
        self.closers = [self.bytes.index(text) for text in (b'"', b"}", b"]", b"0", b"1")]

    def compile(self, made: Constraint) -> Any:
        assert made.kind == "structural_tag"
        return self.compiler.compile_structural_tag(made.text)

    def random_answer(self, made: Constraint, chance: random.Random) -> bytes | None:
        """An answer of random tokens among those allowed, closed as soon as may be; None when it goes on."""
        matcher = xgrammar.GrammarMatcher(self.compile(made))
        mask = xgrammar.allocate_token_bitmask(1, self.info.vocab_size)
        answer = b""
        for step in range(STEPS_MAX):
            matcher.fill_next_token_bitmask(mask, 0)
            bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: len(self.bytes)].astype(
                bool
            )
            bits &= ~self.raw_controls  # `engine.worker.grammar` does it
            allowed = bits.nonzero()[0]
            assert len(allowed), f"nothing may follow {answer!r}"
            token = int(chance.choice(allowed))
            if step >= STEPS_FREE:
                token = next((closer for closer in [STOP, *self.closers] if bits[closer]), token)
            if token == STOP:
                return answer
            assert matcher.accept_token(token)
            answer += self.bytes[token]
        return None


@pytest.fixture(scope="module")
def vocabulary(model_dir: Path) -> Vocabulary:
    return Vocabulary(model_dir)


@pytest.fixture
def accepts(vocabulary: Vocabulary) -> Accepts:
    """Whether a text is a whole answer under a constraint."""

    def accepted(made: Constraint, text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(vocabulary.compile(made))
        return bool(matcher.accept_string(text)) and bool(matcher.is_completed())

    return accepted


@pytest.mark.parametrize("seed", range(0, 60, 12))
def test_whatever_the_grammar_lets_pass_is_what_the_schema_describes(
    vocabulary: Vocabulary, seed: int
) -> None:
    """xgrammar ignores what it does not enforce: this is what its ignorance would show in."""
    ended = 0
    for number in range(seed, seed + 12):
        chance = random.Random(number)  # noqa: S311 -- the same schemas each time
        document = random_schema(chance)
        made = constraint.json_schema(document)
        for _ in range(3):
            answer = vocabulary.random_answer(made, chance)
            if answer is not None:
                ended += 1
                jsonschema.validate(json.loads(answer), document)
    assert ended >= 30


def test_any_object_is_one_and_white_space_ends(accepts: Accepts) -> None:
    made = constraint.json_object()
    assert accepts(made, '{"a": {"b": [1, "x"]}}')
    assert accepts(made, "{\n  \n}")
    assert not accepts(made, "[]")
    assert not accepts(made, "{" + " " * (constraint.WHITESPACE_MAX + 1) + "}")
    assert not accepts(made, '{"a": 1} ')


def test_an_answer_begins_behind_the_reasoning(accepts: Accepts) -> None:
    made = constraint.json_schema(ARGUMENTS, after="</think>")
    for text in ('</think>{"city": "a"}', 'Let me </thin think{}.\n</think>\n\n{"city": "a"}'):
        assert accepts(made, text)
    for text in (
        '{"city": "a"}',
        "ah</think>",
        "ah</think>so",
        'ah</think>\n\n\n{"city": "a"}',
        "ah</think>{}",
    ):
        assert not accepts(made, text)
    assert accepts(constraint.matching("a{2}", after="</think>"), "hm</think>\naa")
    assert accepts(constraint.json_object(after="</think>"), "hm</think>{}")


def test_a_regular_expression_matches_the_whole_answer(accepts: Accepts) -> None:
    made = constraint.matching(r"^\d{3}-(yes|no)$")
    assert accepts(made, "123-yes")
    assert not accepts(made, "123-yes!")
    assert not accepts(made, "x123-no")


def test_a_forced_call_is_one_of_the_tools_and_nothing_else(accepts: Accepts) -> None:
    made = constraint.forced_call([WEATHER, CLOCK])
    for text in (CALL, OTHER, f"{CALL}\n{OTHER}", f"{OTHER}\n{OTHER}\n{CALL}"):
        assert accepts(made, text)
    for text in (
        "",
        "Sure.",
        f"Sure. {CALL}",
        f"{CALL}.",
        CALL.replace("city", "town"),
        CALL.replace("weather", "x"),
    ):
        assert not accepts(made, text)


def test_a_forced_call_may_be_a_named_one_a_single_one_and_behind_reasoning(accepts: Accepts) -> None:
    named = constraint.forced_call([WEATHER, CLOCK], name="weather")
    assert accepts(named, CALL)
    assert not accepts(named, OTHER)
    single = constraint.forced_call([WEATHER, CLOCK], single=True)
    assert accepts(single, OTHER)
    assert not accepts(single, f"{CALL}\n{OTHER}")
    thought = constraint.forced_call([WEATHER, CLOCK], after="</think>")
    assert accepts(thought, f"I call <tool_call> now</think>\n\n{CALL}")
    assert not accepts(thought, f"I call now\n{CALL}")


def test_offered_tools_may_be_called_amid_text_and_rightly_alone(accepts: Accepts) -> None:
    made = constraint.offered_call([WEATHER, CLOCK])
    for text in ("", "Hello.", f"Well: {CALL}", f"{CALL}\n{OTHER}", f"{CALL} and so on"):
        assert accepts(made, text)
    for text in ("<tool_call>nonsense", CALL.replace("city", "town"), f"{CALL}<tool_call>"):
        assert not accepts(made, text)
    single = constraint.offered_call([WEATHER, CLOCK], single=True, after="</think>")
    assert accepts(single, f"hm</think>Well: {CALL}")
    assert not accepts(single, f"hm</think>{CALL}\n{OTHER}")


def test_arguments_that_cannot_be_enforced_are_refused_of_strict_tools_alone(accepts: Accepts) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    lax = ToolDefinition("lax", parameters=parameters)
    call = '<tool_call>\n{"name": "lax", "arguments": {"a": [1, 1]}}\n</tool_call>'
    assert accepts(constraint.forced_call([lax]), call)
    strict = ToolDefinition("strict", parameters=parameters, strict=True)
    with pytest.raises(ParameterUnsupported, match=r"'uniqueItems'.* at /properties/a") as refused:
        constraint.forced_call([WEATHER, strict])
    assert refused.value.param == "tools[1]"


def test_what_no_call_can_be_made_of_is_refused() -> None:
    with pytest.raises(ParameterInvalid, match="'clock'"):
        constraint.forced_call([WEATHER], name="clock")
    with pytest.raises(ParameterInvalid, match="plain name"):
        constraint.forced_call([ToolDefinition('a"b')])
    with pytest.raises(ParameterInvalid, match="128"):
        constraint.forced_call([ToolDefinition(f"t{at}") for at in range(129)])
    for make in (constraint.forced_call, constraint.offered_call):
        with pytest.raises(ParameterInvalid):
            make([])


def test_a_response_format_becomes_its_constraint() -> None:
    assert constraint.of_response_format(Conversation([])) is None
    made = constraint.of_response_format(Conversation([], response_format="json_object"))
    assert made == constraint.json_object()
    made = constraint.of_response_format(Conversation([], response_schema=ARGUMENTS), after="</t>")
    assert made == constraint.json_schema(ARGUMENTS, after="</t>")
    assert constraint.of_response_format(Conversation([], response_regex="a+")) == constraint.matching("a+")


@pytest.mark.parametrize(
    ("document", "raised"),
    [({"not": {}}, ParameterUnsupported), ({"type": 5}, ParameterInvalid)],
)
def test_a_refusal_names_the_parameter(document: Any, raised: type[Exception]) -> None:
    with pytest.raises(raised, match="response_format") as refused:
        constraint.json_schema(document)
    assert refused.value.param == "response_format"  # type: ignore[attr-defined]  # both have it
    with pytest.raises(ParameterUnsupported, match="lookahead"):
        constraint.matching("(?=a)")


def test_the_order_of_keys_is_the_schemas(accepts: Accepts) -> None:
    made = constraint.json_schema(
        {"properties": {"z": {"type": "null"}, "a": {"type": "null"}}, "required": ["a", "z"]}
    )
    assert accepts(made, '{"z": null, "a": null}')
    assert not accepts(made, '{"a": null, "z": null}')
