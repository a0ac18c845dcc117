"""Our changes to vLLM's manager of structured output, on the real one with the default model's vocabulary."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import ModelConfig, VllmConfig
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.request import StructuredOutputRequest

from engine.worker import grammar
from recipe import constraint


@pytest.fixture(scope="module")
def manager(model_dir: Path) -> Any:
    manager = StructuredOutputManager(VllmConfig(model_config=ModelConfig(model=str(model_dir))))
    grammar.refine(manager)
    return manager


def compiled(manager: Any, document: Any) -> Any:
    params = StructuredOutputsParams(structural_tag=constraint.json_schema(document).text)
    params._backend = "xgrammar"  # as vLLM has chosen it by then
    request = SimpleNamespace(
        request_id="r",
        structured_output_request=StructuredOutputRequest(params),
        sampling_params=SimpleNamespace(structured_outputs=params, all_stop_token_ids={2}),
    )
    manager.grammar_init(request)
    return request.structured_output_request._grammar.result(60)


def allowed(manager: Any, made: Any, token_id: int) -> bool:
    mask = manager.backend.allocate_token_bitmask(1)
    made.fill_bitmask(mask, 0)
    return bool((mask[0][token_id // 32] >> (token_id % 32)) & 1)


def test_raw_control_characters_are_masked_in_strings_of_bounded_length(manager: Any) -> None:
    bounded = compiled(manager, {"type": "string", "maxLength": 8})
    quote, tab, letter = (manager.tokenizer.encode(text, add_special_tokens=False)[0] for text in '"\ta')
    assert allowed(manager, bounded, quote)
    assert bounded.accept_tokens("r", [quote])
    assert allowed(manager, bounded, letter)
    assert not allowed(manager, bounded, tab)


def test_white_space_is_free_where_no_length_is_bounded(manager: Any) -> None:
    made = compiled(manager, {"type": "object"})
    brace, tab = (manager.tokenizer.encode(text, add_special_tokens=False)[0] for text in "{\t")
    assert made.accept_tokens("r", [brace])
    assert allowed(manager, made, tab)


def test_a_newline_stays(manager: Any) -> None:
    mask = grammar.printable(compiled(manager, {"type": "object"}).ctx.tokenizer_info)
    assert mask.dtype == torch.int32
    (newline,) = manager.tokenizer.encode("\n", add_special_tokens=False)
    assert (mask[newline // 32] >> (newline % 32)) & 1


def test_held_answers_are_not_drafted(manager: Any) -> None:
    assert manager.validate_tokens(SimpleNamespace(use_structured_output=True), [5, 6]) == []
    assert manager.validate_tokens(SimpleNamespace(use_structured_output=False), [5, 6]) == [5, 6]
