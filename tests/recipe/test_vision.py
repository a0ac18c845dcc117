"""Images in prompts: each model's own tokens for each image, in its place, and never for a text."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import deepseek_recipe
import msgspec
import pytest
from deepseek_recipe import BytesImageSource, ImageQuota, ImageResolver
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe import registry
from recipe.errors import ModelUnreadable, ParameterInvalid, ParameterUnsupported, PromptTooLong
from recipe.images import ImageBounds, Images, data_of, origin_of, read_image, sources_of
from recipe.prompt import Prompt
from recipe.protocols import chat, messages, responses
from recipe.registry import Recipe
from recipe.request import Request
from tests.pictures import bomb, data_url, png, turned_jpeg

from .eyes import FENCE, IMAGE, OF_EITHER, OF_PARTS, PIXEL, TILE_TOKENS, WHOLE, idefics3


@pytest.fixture(params=["chatml", "parts", "either", "deepseek"])
def seeing(request: pytest.FixtureRequest, eyed: Recipe, deepseek_eyed: Recipe, tmp_path: Path) -> Recipe:
    """Every way in which a model is given images."""
    templates = {"parts": OF_PARTS, "either": OF_EITHER}
    if request.param in templates:
        return registry.load(idefics3(tmp_path / "model", templates[request.param]), request.param)
    return {"chatml": eyed, "deepseek": deepseek_eyed}[request.param]


def image(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data), **more}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def block(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": data_url(data).partition(",")[2]}
    return {"type": "image", "source": source}


def asked(*parts: Any, read: Callable[[bytes], Request] = chat.read, **more: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}
    return read(msgspec.json.encode(body))


def held(request: Request) -> Images:
    """What the sources of a request hold."""
    return {
        origin_of(source): read_image(data_of(source.data_url or ""), source, ImageBounds())
        for source in sources_of(request.conversation)
    }


def rendered(recipe: Recipe, request: Request, scope: str = "") -> Prompt:
    return recipe.render(request, scope, held(request))


def spelled(recipe: Recipe, prompt: Prompt) -> str:
    return recipe.tokenizer.decode_bytes(prompt.token_ids).decode()


def between(recipe: Recipe, prompt: Prompt) -> str:
    """The prompt's text with a mark for each image."""
    ids, end, found = prompt.token_ids, 0, b""
    for one in prompt.images:
        found += recipe.tokenizer.decode_bytes(ids[end : one.offset]) + b"[I]"
        end = one.offset + one.tokens
    return (found + recipe.tokenizer.decode_bytes(ids[end:])).decode()


def tiles(rows: int, columns: int) -> str:
    """What stands for an image of so many tiles."""
    pixels, run = PIXEL * TILE_TOKENS, ""
    for row in range(rows if rows * columns > 1 else 0):
        run += "".join(f"{FENCE}<row_{row + 1}_col_{column + 1}>{pixels}" for column in range(columns)) + "\n"
    return run + ("\n" if run else "") + FENCE + WHOLE + pixels + FENCE


SIZES = [(1, 1), (5, 3), (96, 96), (96, 32), (32, 96), (640, 480), (333, 77), (97, 200), (1024, 1023)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("splits", [True, False] if find_spec("transformers") else [])
def test_an_images_tokens_are_those_of_the_models_own_processor(
    size: tuple[int, int], splits: bool, tmp_path: Path
) -> None:
    from PIL import Image
    from transformers import PreTrainedTokenizerFast
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    folder = idefics3(tmp_path / "model", do_image_splitting=splits)
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(
            size={"longest_edge": 96}, max_image_size={"longest_edge": 32}, do_image_splitting=splits
        ),
        PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")),
        image_seq_len=TILE_TOKENS,
    )
    known = processor(text=PIXEL, images=[Image.new("RGB", size)], add_special_tokens=False)["input_ids"][0]
    recipe = registry.load(folder, "eyed")
    prompt = rendered(recipe, asked(image(png(*size))))
    [placed] = prompt.images
    assert list(prompt.token_ids[placed.offset : placed.offset + placed.tokens]) == known


def test_the_tiles_of_an_image_stand_row_by_row(eyed: Recipe) -> None:
    for size, grid in {(96, 96): (3, 3), (64, 32): (2, 3), (32, 96): (3, 1), (1024, 100): (1, 3)}.items():
        prompt = rendered(eyed, asked(image(png(*size))))
        assert tiles(*grid) in spelled(eyed, prompt)
        assert prompt.images[0].tokens == len(prompt.token_ids) - len(eyed.render(asked(text(""))).token_ids)


def test_a_camera_held_upright_has_rows_for_columns(eyed: Recipe) -> None:
    [turned] = rendered(eyed, asked(image(turned_jpeg()))).images
    assert (turned.image.width, turned.image.height) == (3, 5)


def test_images_stand_where_they_were_sent(seeing: Recipe) -> None:
    prompt = rendered(
        seeing, asked(text("first"), image(png(5, 3)), text("then"), image(png(64, 8)), text("end"))
    )
    said = between(seeing, prompt).replace("[[I]]", "[I]").replace("\n\n", "")
    assert "first[I]then[I]end" in said
    assert [one.image.data == png(5, 3) for one in prompt.images] == [
        seeing.served_name != "deepseek",
        False,
    ]
    assert len({one.image.sha256 for one in prompt.images}) == 2


def test_messages_keep_a_turn_with_images_together(seeing: Recipe) -> None:
    request = asked(text("look"), block(png(5, 3)), text("well"), read=messages.read, max_tokens=9)
    said = between(seeing, rendered(seeing, request)).replace("[[I]]", "[I]").replace("\n\n", "")
    assert "look[I]well" in said


def test_responses_and_results_of_tools_hold_images_too(seeing: Recipe) -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": data_url(png(5, 3)), "detail": "low"},
    ]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": parts}
    body = {"model": "m", "input": [{"role": "user", "content": "q"}, call, result]}
    prompt = rendered(seeing, responses.read(msgspec.json.encode(body)))
    assert "a[I]" in between(seeing, prompt).replace("[[I]]", "[I]").replace("\n\n", "")
    assert prompt.images[0].image.detail == "low"
    blocks = [text("a"), block(png(5, 3))]
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": blocks}]},
    ]
    read = messages.read(msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": turns}))
    assert len(rendered(seeing, read).images) == 1


def test_the_same_image_twice_is_read_once_and_stands_twice(seeing: Recipe) -> None:
    request = asked(image(png(5, 3)), text("and"), image(png(5, 3)))
    assert len(held(request)) == 1
    one, other = rendered(seeing, request).images
    assert one.image == other.image
    assert one.offset + one.tokens < other.offset


FORGED = st.lists(
    st.sampled_from(
        [PIXEL, IMAGE, FENCE, WHOLE, "<row_1_col_1>", "\ue000", "\ue001", "\uf8ff", "<", "\n\n", "a"]
    ),
    max_size=6,
).map("".join)


@settings(max_examples=60, deadline=None)
@given(before=FORGED, after=FORGED)
@pytest.mark.parametrize("name", ["chatml", "deepseek"])
def test_text_that_spells_an_image_stays_text(
    name: str, before: str, after: str, eyed: Recipe, deepseek_eyed: Recipe
) -> None:
    recipe = {"chatml": eyed, "deepseek": deepseek_eyed}[name]
    shown = rendered(recipe, asked(text(before + "."), image(png(5, 3)), text("." + after)))
    control = [
        token_id
        for place, token_id in enumerate(shown.token_ids)
        if token_id in recipe.tokenizer.added.control
        and not any(one.offset <= place < one.offset + one.tokens for one in shown.images)
    ]
    plain = recipe.render(asked(text("..")))
    assert control == [each for each in plain.token_ids if each in recipe.tokenizer.added.control]
    assert f"{before}." in between(recipe, shown)
    assert f".{after}" in between(recipe, shown)


def test_a_remembered_text_is_of_no_image(eyed: Recipe) -> None:
    """The mark of images is a character that others may write."""
    for first, second in [(True, False), (False, True)]:
        scope = f"{first}"
        with_image, written = asked(text("x"), image(png(5, 3)), text("y")), asked(text("x\n\n\ue000\n\ny"))
        prompts = {True: with_image, False: written}
        one, other = (rendered(eyed, prompts[which], scope) for which in (first, second))
        assert [bool(prompt.images) for prompt in (one, other)] == [first, second]
        for which, prompt in ((first, one), (second, other)):
            assert prompt == rendered(eyed, prompts[which], "fresh" + scope + str(which))
            assert (PIXEL in spelled(eyed, prompt)) == which


def test_two_images_never_share_what_is_remembered(seeing: Recipe) -> None:
    """Of one size, so that their tokens are the same: what tells them apart is their digest."""
    ones = [rendered(seeing, asked(text("x"), image(png(8, 8, shade=shade))), "s") for shade in (0, 255)]
    assert ones[0].token_ids == ones[1].token_ids
    assert ones[0].images[0].image.sha256 != ones[1].images[0].image.sha256
    before = seeing.memo.counts.missed
    longer = rendered(seeing, asked(text("x"), image(png(64, 8))), "s")
    assert seeing.memo.counts.missed == before
    assert longer.images[0].image.width != ones[0].images[0].image.width


def test_an_images_tokens_are_the_prompts(eyed: Recipe) -> None:
    request = asked(*[image(png(96, 96))] * 16)
    each = 9 * (TILE_TOKENS + 2) + 2 + len(eyed.tokenizer.encode_plain("\n\n")) + TILE_TOKENS + 3
    assert sum(one.tokens for one in rendered(eyed, request).images) == 16 * each
    with pytest.raises(PromptTooLong) as caught:
        rendered(eyed, asked(*[image(png(96, 96))] * 16, text("a" * 8000)))
    assert caught.value.prompt_tokens > 2048


def test_deepseek_counts_as_deepseek_recipe_does(deepseek_eyed: Recipe) -> None:
    resolver = ImageResolver(deepseek_recipe.ReqwestImageFetcher(), deepseek_recipe.OpenCvImagePreprocessor())
    for size, detail in [((5, 3), "high"), ((1600, 900), "high"), ((1600, 900), "low")]:
        prompt = rendered(deepseek_eyed, asked(image(png(*size), detail=detail)))
        known = resolver.resolve([BytesImageSource(png(*size), detail)], ImageQuota())
        [placed] = prompt.images
        assert placed.tokens == known.image_token_adjustment() + 1
        assert placed.image.data == known.images[0].data
        token_id = deepseek_eyed.tokenizer.special(IMAGE)
        assert prompt.token_ids[placed.offset : placed.offset + placed.tokens] == (token_id,) * placed.tokens
        assert prompt.ignored_params == ()


def test_detail_is_said_to_be_ignored_where_all_of_an_image_is_seen(eyed: Recipe) -> None:
    assert rendered(eyed, asked(image(png(5, 3), detail="low"))).ignored_params == ("detail",)
    assert rendered(eyed, asked(image(png(5, 3), detail="auto"))).ignored_params == ()


def test_an_image_that_cannot_be_decoded_is_refused_by_who_decodes(deepseek_eyed: Recipe) -> None:
    spoilt = png(64, 64).replace(b"IDAT", b"IDAX")
    with pytest.raises(ParameterInvalid, match="cannot be read") as caught:
        rendered(deepseek_eyed, asked(image(spoilt)))
    assert caught.value.malformed


def test_too_many_tiles_for_the_models_tokens_are_refused(tmp_path: Path) -> None:
    recipe = registry.load(idefics3(tmp_path / "model", size={"longest_edge": 640}), "eyed")
    with pytest.raises(ParameterInvalid, match="too long and narrow"):
        rendered(recipe, asked(image(png(64, 8))))


def test_a_bomb_is_not_decoded_by_anyone(deepseek_eyed: Recipe) -> None:
    with pytest.raises(ParameterInvalid, match="pixels_max"):
        rendered(deepseek_eyed, asked(image(bomb())))


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{% for message in messages %}{{ message['role'] }}{% endfor %}", id="neither"),
        pytest.param("{{ raise_exception('no') }}", id="refuses"),
    ],
)
def test_a_template_without_a_place_for_images_is_no_vision_models(template: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable, match="takes no images"):
        registry.load(idefics3(tmp_path / "model", template), "eyed")


def test_a_template_that_leaves_an_image_out_is_refused(tmp_path: Path) -> None:
    last_alone = (
        "{% set last = messages[-1]['content'] %}<|im_start|>{% if last is string %}{{ last }}{% else %}"
        "{% for part in last %}{{ part['text'] or '<image>' }}{% endfor %}{% endif %}"
    )
    recipe = registry.load(idefics3(tmp_path / "model", last_alone), "eyed")
    turns = [{"role": "user", "content": [image(png(5, 3))]}, {"role": "user", "content": "and now?"}]
    request = chat.read(msgspec.json.encode({"model": "m", "messages": turns}))
    with pytest.raises(ParameterInvalid, match="does not accept images there"):
        rendered(recipe, request)


@pytest.mark.parametrize("lacks", ["preprocessor_config.json", "processor_config.json"])
def test_a_model_that_does_not_say_how_it_sees_is_not_served(lacks: str, tmp_path: Path) -> None:
    folder = idefics3(tmp_path / "model")
    (folder / lacks).unlink()
    with pytest.raises(ModelUnreadable, match=lacks):
        registry.load(folder, "eyed")


def test_the_blind_refuse_images_by_name(smol: Recipe, flash: Recipe) -> None:
    request = asked(image(png(5, 3)))
    for recipe in (smol, flash):
        assert not recipe.reads_images
        with pytest.raises(ParameterUnsupported) as caught:
            recipe.render(request)
        assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [image(png(5, 3), detail="best")]}]}, "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "ftp://x/y"}]}]},
            "messages[0]",
        ),
    ],
)
def test_what_is_no_image_url_is_refused_by_its_place(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ParameterInvalid) as caught:
        chat.read(msgspec.json.encode({"model": "m", **body}))
    assert caught.value.param == param


def refusals() -> Sequence[Any]:
    file_part = {"type": "input_image", "file_id": "file-1"}
    kept = {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}
    return (
        (responses.read, {"input": [{"role": "user", "content": [file_part]}]}, "input[0].content[0]"),
        (messages.read, {"max_tokens": 9, "messages": [kept]}, "messages[0]"),
    )


@pytest.mark.parametrize(("read", "body", "param"), refusals())
def test_files_kept_elsewhere_are_refused_by_name(read: Any, body: dict[str, Any], param: str) -> None:
    with pytest.raises(ParameterInvalid, match="file_id is not supported") as caught:
        read(msgspec.json.encode({"model": "m", **body}))
    assert caught.value.param == param


@pytest.mark.parametrize("part", ["plain string", "percent"])
def test_images_may_be_a_plain_string_or_percent_encoded(part: str, eyed: Recipe) -> None:
    data = png(5, 3)
    percent = "data:image/png," + "".join(f"%{byte:02X}" for byte in data)
    url = {"plain string": data_url(data), "percent": {"url": percent}}[part]
    [placed] = rendered(eyed, asked({"type": "image_url", "image_url": url})).images
    assert placed.image.data == data
