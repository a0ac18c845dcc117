"""A real worker holds its answers to whatever grammar, and takes none that it cannot hold them to."""

import dataclasses
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tokenizers

from engine import wire
from engine.cluster.answer import Refused, names_constraint, read_line
from engine.worker import grammar
from recipe import constraint
from recipe.prompt import Constraint
from tests.schemas import random_schema

from .conftest import Ask, Place, Worker, chunks, tokens_of

Decode = Callable[[list[int]], str]
SCHEMAS, SEED = 50, 20261201
STOP_TOKENS = [0, 2]
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
PROMPT = "<|im_start|>user\nWrite one record as JSON.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module", params=["plain", "drafting"])
def worker(place: Place, request: pytest.FixtureRequest) -> Iterator[Worker]:
    """It does both stages; once with drafts from its prompt."""
    worker = place.worker(f"{request.param}-0", "both")
    drafts = DRAFTS if request.param == "drafting" else None
    worker.spec = dataclasses.replace(worker.spec, speculative=drafts, store_dir=None)
    worker.start()
    try:
        yield worker.wait_ready()
    finally:
        worker.stop()


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))


def asked(
    tokenizer: tokenizers.Tokenizer, made: Constraint | dict[str, Any], max_tokens: int = 800, **more: Any
) -> Ask:
    outputs = {made.kind: made.text} if isinstance(made, Constraint) else made
    sampling = {"stop_token_ids": STOP_TOKENS, "structured_outputs": outputs, **more}
    return Ask(tokenizer.encode(PROMPT).ids, "both", max_tokens, sampling=sampling)


def answered(worker: Worker, tokenizer: tokenizers.Tokenizer, ask: Ask) -> tuple[str, str]:
    """A streamed answer, and why it ended; stop tokens are no text."""
    events = list(chunks(worker.stream(ask)))
    assert "error" not in events[-1], events[-1]
    ids = tokens_of(events)
    finish = [choice["finish_reason"] for event in events for choice in event["choices"]][-1]
    assert worker.decoded(ask).output_to == len(ids), "what is attested is what came, whatever was drafted"
    return tokenizer.decode(
        [token for token in ids if token not in STOP_TOKENS], skip_special_tokens=False
    ), finish


def test_an_answer_always_parses_against_its_schema(worker: Worker, tokenizer: tokenizers.Tokenizer) -> None:
    """vllm-project/vllm#57550, mlc-ai/xgrammar#937: all of a schema is enforced, or it is refused."""
    count = SCHEMAS if worker.spec.speculative is None else SCHEMAS // 5
    chances = [random.Random(SEED + number) for number in range(count)]  # noqa: S311 -- the same schemas each time
    documents = [random_schema(chance, 2 + number % 2) for number, chance in enumerate(chances)]
    print(f"schemas of the seeds from {SEED}")

    def hold(number: int) -> None:
        made = constraint.json_schema(documents[number])
        drawn = {"temperature": 0.0} if number % 2 else {"temperature": 1.0, "seed": SEED + number}
        text, finish = answered(worker, tokenizer, asked(tokenizer, made, **drawn))
        assert finish == "stop", (SEED + number, text)
        jsonschema.validate(json.loads(text), documents[number])

    begun_s = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(hold, range(count)))
    print(f"{count} answers in {time.monotonic() - begun_s:.1f} s")


def test_reasoning_is_free_and_the_answer_behind_it_is_held(
    worker: Worker, tokenizer: tokenizers.Tokenizer
) -> None:
    made = constraint.json_schema(
        {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}, after="."
    )
    text, finish = answered(worker, tokenizer, asked(tokenizer, made))
    thought, _, answer = text.partition(".")
    assert finish == "stop"
    assert thought
    assert json.loads(answer) == {"a": 7}


def test_unstreamed_answers_are_held_as_well(worker: Worker, tokenizer: tokenizers.Tokenizer) -> None:
    answer = worker.ask(asked(tokenizer, constraint.matching(r"(red|green) \d{3}"), temperature=1.0))
    assert answer.body["choices"][0]["finish_reason"] == "stop"
    text = tokenizer.decode(answer.ids[:-1])
    assert text.partition(" ")[0] in {"red", "green"}
    assert text.partition(" ")[2].isdigit()


@pytest.mark.parametrize(
    "outputs",
    [
        {"json": '{"type": "array", "uniqueItems": true}'},
        {"json": "{"},
        {"json": json.dumps({"type": "integer", "minimum": 5, "maximum": 3})},
        {"regex": "(?=a)b"},
        {"regex": "("},
        {"structural_tag": "{}"},
        {"structural_tag": '{"type": "structural_tag", "format": {"type": "nonsense"}}'},
        {"grammar": "root ::= nonsense"},
    ],
)
def test_a_grammar_that_is_none_is_refused_and_the_worker_lives(
    worker: Worker, tokenizer: tokenizers.Tokenizer, outputs: dict[str, Any]
) -> None:
    ask = asked(tokenizer, outputs)
    refused = worker.ask(ask)
    assert refused.status == 400
    message = refused.body["error"]["message"]
    assert names_constraint(message), message
    (streamed,) = chunks(worker.stream(ask))
    with pytest.raises(Refused) as told:
        read_line(b"data: " + json.dumps(streamed).encode())
    assert str(told.value) == message[:500]
    assert worker.ask(Ask(tokenizer.encode(PROMPT).ids, "both", 2)).status == 200


def test_strings_of_bounded_length_hold_no_raw_control_character(
    worker: Worker, tokenizer: tokenizers.Tokenizer
) -> None:
    """xgrammar 0.2.8 lets them pass there, and only there."""
    made = constraint.json_schema({"type": "string", "minLength": 8, "maxLength": 8})
    tabs = [token for token in range(300) if "\t" in tokenizer.decode([token])]
    assert tabs
    bias = {str(token): 100.0 for token in tabs}
    if worker.spec.speculative is None:  # vLLM takes no bias beside drafts
        text, finish = answered(worker, tokenizer, asked(tokenizer, made, logit_bias=bias))
        assert (finish, len(json.loads(text))) == ("stop", 8)


def test_grammars_are_compiled_beneath_the_model(worker: Worker, tokenizer: tokenizers.Tokenizer) -> None:
    worker.ask(asked(tokenizer, constraint.json_object(), 1))
    compiling = [
        Path(f"/proc/{process.pid}/task/{thread.id}/stat").read_text().rpartition(")")[2].split()[16]
        for process in worker.family()
        for thread in process.threads()
        if Path(f"/proc/{process.pid}/task/{thread.id}/stat").read_text().rpartition(")")[2].split()[16]
        != "0"
    ]
    assert "19" in compiling
    assert grammar.COMPILERS == 1


def test_log_probabilities_come_with_each_token(worker: Worker, tokenizer: tokenizers.Tokenizer) -> None:
    ask = Ask(tokenizer.encode(PROMPT).ids, "both", 12, sampling={"logprobs": wire.LOGPROBS_MAX + 1})
    events = list(chunks(worker.stream(ask)))
    choices = [choice for event in events for choice in event["choices"]]
    told = [content for choice in choices for content in choice["logprobs"]["content"]]
    assert [content["token_id"] for content in told] == tokens_of(events)
    assert all(len(content["top_logprobs"]) == wire.LOGPROBS_MAX + 1 for content in told)
    assert all(content["rank"] == 1 for content in told), "greedy"
