"""Real vLLM over a tiny vision model of random weights: what it says is noise, always the same."""

import dataclasses
import hashlib
import secrets
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from PIL import Image

from engine import wire
from engine.api import Engine, EngineOptions, GenerateRequest, ImageInput, Sampling, WorkerAddress
from engine.cluster.salt import cache_salt
from engine.proof.attestation import commitment
from engine.proof.prefix import ImageRun, block_hashes, image_name
from engine.proof.ring import DeploymentRing
from engine.wire import IMAGE_REFUSED

from . import vision_model
from .conftest import TENANT, Ask, Place, Worker, chunks, tokens_of

LEAD = "<|im_start|>user\n" + "Look at the picture behind these words, and take your time over it. " * 6
ANSWER = "\nWhat do you see?<|im_end|>\n<|im_start|>assistant\n"
SQUARE = (96, 96)


def picture(seed: int, size: tuple[int, int] = SQUARE, kind: str = "PNG") -> bytes:
    """An image of its own, as a file."""
    tiles = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(tiles).resize(size, Image.Resampling.NEAREST).save(file, kind)
    return file.getvalue()


@dataclass(frozen=True)
class Stage:
    """The workers of this module, and how its prompts are written. ``decode`` alone encodes all by itself."""

    encode: Worker
    prefill: Worker
    decode: Worker
    tokenizer: tokenizers.Tokenizer
    encoded_dir: Path

    def ask(self, *files: bytes, size: tuple[int, int] = SQUARE, **changes: Any) -> Ask:
        """A question about pictures of one size, in a scope of its own, for a worker that does it all."""
        ids: list[int] = self.tokenizer.encode(LEAD).ids
        run = self.tokenizer.encode(vision_model.image_text(*size)).ids
        images = []
        for file in files:
            images.append(ImageInput(len(ids), len(run), file, hashlib.sha256(file).hexdigest()))
            ids = ids + run
        ids = ids + self.tokenizer.encode(ANSWER).ids
        salt = f"salt-{secrets.token_hex(8)}"
        ask = Ask(ids, "both", 8, salt, sampling={"ignore_eos": True}, images=images)
        return dataclasses.replace(ask, **changes)

    def encoded(self, ask: Ask) -> Path:
        """Let the encode worker have a request's images; the file that it leaves of the first."""
        body = ask.body(stream=False) | {"sampling_params": {"max_tokens": 1}}
        assert self.encode.post(wire.GENERATE_PATH, body).status == 200
        (path,) = self.encoded_dir.glob(f"*/{runs(ask)[0].name}.safetensors")
        return path


def runs(ask: Ask) -> list[ImageRun]:
    """A request's images as its blocks name them."""
    assert ask.salt is not None
    return [ImageRun(each.offset, each.tokens, image_name(ask.salt, each.digest)) for each in ask.images]


@pytest.fixture(scope="module")
def stage(place: Place, model_dir: Path) -> Iterator[Stage]:
    folder = vision_model.make(place.folder / "vision", model_dir)
    encoded_dir = place.folder / "encoded"
    small = {"model_dir": folder, "kv_cache_bytes": 16 * 1024**2, "cpu_cores": None}
    workers = (
        place.worker("encode-0", "encode", encoded_dir=encoded_dir, **small),
        place.worker("prefill-0", "prefill", encoded_dir=encoded_dir, **small),
        place.worker("decode-0", "decode", **small),
    )
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_ready()
        yield Stage(*workers, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), encoded_dir)
    finally:
        for worker in workers:
            worker.stop()


def test_an_answer_hangs_on_the_image_and_is_the_same_cold_warm_and_in_another_scope(stage: Stage) -> None:
    red, blue = picture(1), picture(2)
    ask = stage.ask(red)
    cold, warm = stage.prefill.ask(ask), stage.prefill.ask(ask)
    elsewhere = stage.prefill.ask(stage.ask(red))
    text, other = stage.prefill.ask(stage.ask()), stage.prefill.ask(stage.ask(blue))
    assert cold.ids == warm.ids == elsewhere.ids
    assert len({tuple(answer.ids) for answer in (cold, text, other)}) == 3
    whole = (len(ask.ids) - 1) // 64 * 64
    hits = [answer.attested.hit_tokens for answer in (cold, warm, elsewhere)]
    assert hits == [0, whole, 0], "a scope finds what it had itself, and nothing of another's"
    assert warm.attested.prompt_tokens == len(ask.ids)
    which = [(ask.images[0].offset, ask.images[0].digest)]
    assert warm.attested.prompt_commitment == commitment(ask.nonce, ask.ids, which)
    assert warm.attested.cached_prefix_commitment == commitment(ask.nonce, ask.ids[:whole], which)


def test_another_image_of_the_same_size_misses_from_its_first_block_on(stage: Stage) -> None:
    ask = stage.ask(picture(1))
    other = stage.ask(picture(2), salt=ask.salt)
    assert ask.ids == other.ids, "tokens say how large an image is, not which"
    before = ask.images[0].offset // 64 * 64
    assert before >= 64
    stage.prefill.ask(ask)
    alone = stage.decode.ask(stage.ask(picture(2)))
    answer = stage.prefill.ask(other)
    assert answer.attested.hit_tokens == before
    assert answer.ids == alone.ids
    assert stage.prefill.ask(other).attested.hit_tokens == (len(ask.ids) - 1) // 64 * 64


@pytest.mark.parametrize("seeds", [[1], [1, 2], [3, 3]])
def test_blocks_with_images_lie_in_the_store_under_the_names_that_the_cluster_gives_them(
    stage: Stage, place: Place, seeds: list[int]
) -> None:
    ask = stage.ask(*(picture(seed) for seed in seeds))
    stage.prefill.ask(ask)
    assert ask.salt is not None
    names = block_hashes(ask.ids, ask.salt, images=runs(ask))
    assert len(names) == len(ask.ids) // 64
    for name in names:
        digits = name.hex()
        assert list(place.store_dir.glob(f"*/{TENANT}/{digits[:2]}/{digits}.kv")), "vLLM calls it otherwise"


@pytest.mark.parametrize("size", [(300, 150), (150, 300), (37, 500), (10, 10), (640, 480)])
def test_an_image_has_as_many_tokens_as_its_shape_asks_for(stage: Stage, size: tuple[int, int]) -> None:
    assert stage.decode.ask(stage.ask(picture(4, size, "JPEG"), size=size)).status == 200


def test_a_decode_worker_goes_on_from_what_a_prefill_worker_has_computed(stage: Stage) -> None:
    red = picture(1)
    alone = stage.decode.ask(stage.ask(red))
    ask = stage.ask(red, stage="prefill", max_tokens=1)
    prefilled = stage.prefill.ask(ask)
    decoding = dataclasses.replace(ask, stage="decode", max_tokens=8)
    events = list(chunks(stage.decode.stream(decoding)))
    assert tokens_of(events) == alone.ids
    assert prefilled.ids == alone.ids[:1]
    attested = stage.decode.decoded(decoding)
    assert (attested.prompt_tokens, attested.handoff_tokens) == (len(ask.ids), (len(ask.ids) - 1) // 64 * 64)
    carried = dataclasses.replace(decoding, ids=[*ask.ids, *alone.ids[:5]], max_tokens=3, output_from=5)
    assert tokens_of(chunks(stage.prefill.stream(carried))) == alone.ids[5:], (
        "an answer that goes on elsewhere"
    )


BOMB = struct.pack(">II5B", 60_000, 60_000, 8, 2, 0, 0, 0)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"no image at all", "image 2 is no PNG, JPEG, WEBP, GIF"),
        (picture(1)[:-40], "image 2 cannot be read"),
        (picture(1, kind="TIFF"), "image 2 is no PNG"),
        (picture(1)[:16] + BOMB + struct.pack(">I", zlib.crc32(b"IHDR" + BOMB)) + picture(1)[33:], "pixels"),
    ],
)
def test_a_corrupt_image_is_refused_and_hurts_nobody_else(stage: Stage, file: bytes, words: str) -> None:
    red = picture(1)
    ask = stage.ask(red, red)
    bystander = stage.prefill.stream(stage.ask(red, max_tokens=60))
    bad = dataclasses.replace(ask, images=[ask.images[0], dataclasses.replace(ask.images[1], data=file)])
    answer = stage.prefill.ask(bad)
    message = answer.body["error"]["message"]
    assert (answer.status, message.startswith(IMAGE_REFUSED), words in message) == (400, True, True), message
    assert len(tokens_of(chunks(bystander))) == 60
    good = stage.prefill.ask(ask)
    assert (good.status, good.attested.hit_tokens) == (200, 0)


@pytest.mark.parametrize("changed", [{"offset": 3}, {"tokens": 100}, {"data": picture(1, (300, 150))}])
def test_an_image_that_is_not_where_its_request_says_is_refused_and_not_remembered(
    stage: Stage, changed: dict[str, Any]
) -> None:
    ask = stage.ask(picture(1))
    wrong = dataclasses.replace(ask, images=[dataclasses.replace(ask.images[0], **changed)])
    answer = stage.prefill.ask(wrong)
    assert answer.status == 400
    assert answer.body["error"]["message"].startswith(IMAGE_REFUSED)
    assert stage.prefill.ask(ask).ids == stage.decode.ask(ask).ids


def test_a_worker_takes_what_an_encode_worker_has_left_and_does_not_encode_itself(stage: Stage) -> None:
    red, blue = stage.ask(picture(5)), stage.ask(picture(6))
    expected = [stage.decode.ask(ask).ids for ask in (red, blue)]
    assert [stage.prefill.ask(dataclasses.replace(ask, salt="first")).ids for ask in (red, blue)] == expected
    files = [stage.encoded(ask) for ask in (red, blue)]
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, reversed(contents), strict=True):
        file.write_bytes(content)
    # Whoever encoded the image it was sent would answer of that one.
    swapped = [dataclasses.replace(ask, tenant="ten_of_nobody") for ask in (red, blue)]
    assert [stage.prefill.ask(ask).ids for ask in swapped] == expected[::-1]


async def test_the_cluster_has_an_image_encoded_then_computed_then_answered_of(
    stage: Stage, place: Place
) -> None:
    ask = stage.ask(picture(9), picture(9))
    alone = stage.decode.ask(ask)
    specs = [worker.spec for worker in (stage.encode, stage.prefill, stage.decode)]
    options = EngineOptions(
        tuple(WorkerAddress(spec.name, spec.role, spec.socket) for spec in specs),
        salt_secret=bytes(32),
        deployment=DeploymentRing.of(place.deployment.public),
        store_dir=place.store_dir,
        elastic=False,
    )
    request = GenerateRequest(
        "0197f3f2-8c00-7000-8000-000000000001",
        TENANT,
        "",
        tuple(ask.ids),
        Sampling(8, temperature=0.0),
        "chat",
        bytes(32),
        "a memo",
        images=tuple(ask.images),
    )
    engine = Engine(options)
    await engine.open()
    try:
        generation = engine.submit(request)
        tokens = [token async for chunk in generation for token in chunk.token_ids]
        attested, _ = await generation.prefilled()
        again = await engine.submit(dataclasses.replace(request)).prefilled()
    finally:
        await engine.close()
    assert tokens == alone.ids
    assert (attested.worker, attested.hit_tokens) == ("prefill-0", 0)
    assert again[0].hit_tokens == (len(ask.ids) - 1) // 64 * 64
    name = image_name(cache_salt(bytes(32), TENANT, ""), ask.images[0].digest)
    assert len(list(stage.encoded_dir.glob(f"*/{name}.safetensors"))) == 1


def test_an_encode_worker_leaves_an_image_once_for_each_scope(stage: Stage) -> None:
    one, other = stage.ask(picture(7)), stage.ask(picture(7))
    first = stage.encoded(one)
    written = first.stat().st_ino
    assert stage.encoded(one).stat().st_ino == written
    assert stage.encoded(other) != first
    assert [file.suffix for file in first.parent.iterdir() if file.suffix != ".safetensors"] == []


def test_a_broken_file_of_an_encode_worker_is_encoded_again(stage: Stage) -> None:
    ask = stage.ask(picture(8))
    file = stage.encoded(ask)
    file.write_bytes(file.read_bytes()[:-9])
    assert stage.prefill.ask(ask).ids == stage.decode.ask(ask).ids
