"""Real vLLM without a store: one worker that does both."""

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from engine.proof.attestation import PrefillAttestation

from .conftest import Ask, Place, Worker, chunks, tokens_of


@pytest.fixture(scope="module")
def alone(place: Place) -> Iterator[Worker]:
    worker = place.worker("both-0", "both")
    worker.spec = dataclasses.replace(worker.spec, store_dir=None)
    worker.start()
    try:
        yield worker.wait_ready()
    finally:
        worker.stop()


def test_a_worker_without_a_store_hits_its_own_cache_alone_and_attests_it(
    alone: Worker, place: Place, prose: Callable[[str, int], list[int]]
) -> None:
    ids = prose("with", 300)
    cold, warm = (Ask(ids, "both", 5, sampling={"ignore_eos": True}) for _ in range(2))
    streamed = [tokens_of(chunks(alone.stream(ask))) for ask in (cold, warm)]
    for ask, hit in ((cold, 0), (warm, 256)):
        prefilled = alone.journalled(ask)[0]
        assert isinstance(prefilled, PrefillAttestation)
        assert (prefilled.hit_device_tokens, prefilled.hit_tokens, prefilled.owed_tokens) == (hit, hit, 0)
        assert (prefilled.promised_until, prefilled.namespace) == (None, "")
        assert alone.decoded(ask).output_to == 5
    assert streamed[0] == streamed[1]
    assert not place.store_dir.exists()
