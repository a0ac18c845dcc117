"""What the measurements stand on: prompts that share nothing, ratios by pair, limits that can break."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.proof.prefix import block_hashes
from tests.bench import encode, export, first_token, log, overhead, settlement, verify
from tests.bench.first_token import AROUND_TOKENS, RATIO_MAX, Pair, Texts
from tests.bench.overhead import Round
from tests.bench.prompts import prompt_ids
from tests.bench.row import Row
from tests.bench.settlement import Load
from tests.bench.stack import Told


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


def test_prompts_have_their_length_and_share_no_block(tokenizer: Tokenizer) -> None:
    ids = [prompt_ids(tokenizer, number, 2_000) for number in range(1, 13)]
    blocks = [set(block_hashes(one, "salt")) for one in ids]
    assert all(not first & second for first, second in combinations(blocks, 2))


@pytest.mark.parametrize("tokens", RATIO_MAX)
def test_texts_have_their_length_as_a_chat(tokenizer: Tokenizer, tokens: int) -> None:
    around = 31
    texts = Texts(tokenizer)
    text = texts.take(100)
    texts.learn(text, len(tokenizer.encode(text).ids) + around)
    for more in AROUND_TOKENS:
        length = len(tokenizer.encode(texts.take(tokens + more)).ids) + around
        assert abs(length - tokens - more) <= 1


def test_stored_prompts_leave_little_and_much_of_a_block_to_compute() -> None:
    left = [(tokens + more - 1) % 64 + 1 for tokens in RATIO_MAX for more in AROUND_TOKENS]
    assert (min(left) < 16, max(left)) == (True, 64)


def test_the_ratio_of_first_tokens_is_taken_pair_by_pair() -> None:
    pairs = [
        Pair(Told(stored_s, 512, 448), Told(cold_s, 512, 0))
        for stored_s, cold_s in ((0.5, 1.0), (0.2, 2.0), (1.6, 4.0))
    ]
    *_, ratio = first_token.rows(512, pairs)
    assert (ratio.value, ratio.kept) == (pytest.approx(0.4), False)
    tenth = pairs[1:2]
    assert [first_token.rows(tokens, tenth)[-1].kept for tokens in RATIO_MAX] == [True, True, False]


def test_the_overhead_is_taken_round_by_round() -> None:
    without = [Round(1.0, 1.0, 0.0), Round(2.0, 1.0, 0.0), Round(4.0, 1.0, 0.0)]
    slower = [Round(each.wall_s * 1.06, 1.01, each.wall_s * 0.0212) for each in without]
    *_, wall, cpu, publishing = overhead.rows(slower, without)
    assert (wall.value, wall.kept) == (pytest.approx(1.06), False)
    assert cpu.value == pytest.approx(1.01)
    assert publishing.value == pytest.approx(0.02)
    *_, wall, _, _ = overhead.rows([Round(5.0, 1.0, 0.0), *without[1:]], without)
    assert (wall.value, wall.kept) == (1.0, True)


def test_the_logs_promises_are_of_medians() -> None:
    sealed, proof, bulk = log.rows(
        [3_000.0, 5_000.0, 4_000.0], [0.5, 0.9, 5.0], [19_000.0, 21_000.0, 25_000.0]
    )
    assert (sealed.value, sealed.promise) == (4_000.0, "")
    assert (proof.value, proof.kept) == (0.9, True)
    assert (bulk.value, bulk.kept) == (21_000.0, True)
    _, proof, bulk = log.rows([1.0], [0.5, 1.1, 5.0], [19_999.0])
    assert (proof.kept, bulk.kept) == (False, False)


def test_settlement_is_compared_round_by_round() -> None:
    together = [
        Load(16_000.0, [40.0] * 100),
        Load(20_000.0, [40.0] * 98 + [90.0, 95.0]),
        Load(4_000.0, [1.0]),
    ]
    alone = [Load(2_000.0, []), Load(5_000.0, []), Load(800.0, [])]
    speed, wait, single, ratio, opened = settlement.rows(together, alone, Load(5_000.0, [26.0] * 100))
    assert (speed.value, speed.kept, speed.promise) == (16_000.0, True, "≥ 15,000/s")
    assert (wait.value, wait.kept) == (40.0, True)
    assert (single.value, single.promise) == (2_000.0, "")
    assert (ratio.value, ratio.kept) == (5.0, True)
    assert not opened.kept


def test_encoding_is_compared_round_by_round() -> None:
    rounds = [encode.Round(0.02 * slow, 0.001 * slow, 0.03, 0.003) for slow in (1, 5, 2)]
    whole, again, ratio, rendered = encode.rows("ChatML", rounds)
    assert (whole.value, again.value) == (pytest.approx(40), pytest.approx(2))
    assert (ratio.value, ratio.promise) == (pytest.approx(20), "≥ 20.000")
    assert (rendered.value, rendered.promise) == (pytest.approx(10), "")
    assert not encode.rows("ChatML", [encode.Round(0.019, 0.001, 1.0, 1.0)])[2].kept


def test_verification_is_judged_by_its_median_and_by_the_cores_it_uses() -> None:
    speed, share = verify.rows([1 / 2_000, 1 / 3_000, 1 / 4_000], 2, 0.7)
    assert (speed.value, speed.kept, speed.promise) == (pytest.approx(3_000), True, "≥ 3,000/s")
    assert (share.kept, "2 cores" in share.name) == (False, True)
    assert not verify.rows([1 / 2_999], 2, 0.7)[0].kept


def test_receipts_to_verify_are_sound_and_have_two_signatures_each() -> None:
    receipts = [one.receipt for one in verify.served(10)]
    assert {len(receipt.attestations) for receipt in receipts} == {2}
    assert len({receipt.request_id for receipt in receipts}) == 10


def test_conversations_to_encode_have_their_length_and_share_no_message(tokenizer: Tokenizer) -> None:
    said = [[each["content"] for each in json.loads(encode.body(number))["messages"]] for number in (0, 1)]
    assert not set(said[0]) & set(said[1])
    lengths = [sum(len(tokenizer.encode(text).ids) for text in each) for each in said]
    assert all(29_500 < length < 31_000 for length in lengths), lengths


def test_a_floor_is_the_least_a_value_may_be() -> None:
    assert Row("x", 1.0, "s", floor=1.0).kept
    assert not Row("x", 0.9, "s", floor=1.0).kept


@pytest.mark.parametrize(("limit", "kept"), [(None, True), (2.0, True), (1.0, True), (0.9, False)])
def test_a_limit_is_the_most_a_value_may_be(limit: float | None, kept: bool) -> None:
    assert Row("x", 1.0, "s", limit).kept is kept


def test_exports_are_set_beside_a_bare_copy_round_by_round() -> None:
    rates = {
        "csv": [9.0, 200_000.0, 90_000.0],
        "jsonl": [1.0],
        "parquet": [1.0],
        "bare": [400_000.0, 100_000.0],
    }
    by_name = {row.name: row for row in export.rows(rates, {"csv": 1.0, "jsonl": 17.0})}
    assert by_name["CSV : bare COPY"].value == pytest.approx(0.7)
    assert not by_name["CSV"].kept
    assert by_name["csv: MiB more for ten times the rows"].kept
    assert not by_name["jsonl: MiB more for ten times the rows"].kept
