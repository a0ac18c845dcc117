"""`kvitto verify promise` on a folder as customers keep it."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from admin.verify.prompt import readings, recipe_of
from billing.receipts.bundle import RECEIPTS, write_directory
from tests.admin.cli.test_verify import kvitto, statement
from tests.bundles import START, WRITTEN_AT_S, Deployment, Request, Served, contents_of

HOUSE = Deployment()
UNTIL_S = int((START + timedelta(days=7)).timestamp())
TOKENS = tuple(range(300))
FIRST = Request(1, TOKENS[:200], START, hit=0, promised_until=UNTIL_S)
MISSED = Request(2, TOKENS, START + timedelta(hours=1), hit=64)
SERVED = [HOUSE.serve(FIRST), HOUSE.serve(MISSED)]


def kept(folder: Path, served: list[Served], prompts: dict[int, Any]) -> Path:
    """Receipts in a bundle, prompts by the number of their request, and all nonces."""
    write_directory(folder / "bundle", contents_of(HOUSE, served), HOUSE.new, WRITTEN_AT_S)
    (folder / "prompts").mkdir()
    nonces = {}
    for one in served:
        named = one.receipt.request_id
        nonces[str(named)] = one.nonce.hex()
        prompt = prompts.get(one.request.number, {"token_ids": one.request.token_ids})
        name = f"{named}.json" if "model" in prompt else f"{named}.ids.json"
        (folder / "prompts" / name).write_text(json.dumps(prompt))
    (folder / "nonces.json").write_text(json.dumps(nonces))
    return folder


def test_a_miss_that_a_promise_covered_is_shown_with_what_it_cost(tmp_path: Path) -> None:
    status, out, err = kvitto("verify", "promise", kept(tmp_path, SERVED, {}), "--json")
    (broken,) = json.loads(out)["broken"]
    assert (status, err) == (1, "")
    assert {name: broken[name] for name in ("promised", "hit", "owed", "missed", "cost")} == {
        "promised": 192,
        "hit": 64,
        "owed": 0,
        "missed": 128,
        "cost": "0.00000002304",  # 128 tokens at 200,000 less 20,000 femto-units
    }
    assert broken["by"] == str(SERVED[0].receipt.request_id)
    status, out, _ = kvitto("verify", "promise", tmp_path)
    assert status == 1
    assert str(SERVED[1].receipt.request_id) in out


@pytest.mark.parametrize(
    "changes",
    [{"hit": 192}, {"owed": 128}, {"token_ids": (7, *TOKENS[1:])}, {"at": START + timedelta(days=8)}],
)
def test_a_promise_that_was_kept_or_made_to_another_prompt_is_none(tmp_path: Path, changes: Any) -> None:
    served = [SERVED[0], HOUSE.serve(replace(MISSED, **changes))]
    status, out, _ = kvitto("verify", "promise", kept(tmp_path, served, {}), "--json")
    assert (status, json.loads(out)["broken"]) == (0, [])


def test_another_user_of_the_tenant_has_promises_of_his_own(tmp_path: Path) -> None:
    prompts = {2: {"token_ids": TOKENS, "user_id": "u"}}
    assert kvitto("verify", "promise", kept(tmp_path, SERVED, prompts))[0] == 0


def test_a_prompt_that_is_not_the_attested_one_is_a_finding_and_judges_nobody(tmp_path: Path) -> None:
    prompts = {1: {"token_ids": TOKENS[:199]}}
    status, out, _ = kvitto("verify", "promise", kept(tmp_path, SERVED, prompts), "--json")
    (found,) = json.loads(out)["findings"]
    assert (status, found["step"], json.loads(out)["broken"]) == (1, "prompt", [])


def test_a_receipt_that_is_forged_is_a_finding_and_judges_nobody(tmp_path: Path) -> None:
    folder = kept(tmp_path, SERVED, {})
    file = folder / "bundle" / RECEIPTS
    file.write_bytes(file.read_bytes().replace(b'"hit_tokens":64', b'"hit_tokens":63'))
    status, out, _ = kvitto("verify", "promise", folder, "--json")
    assert (status, json.loads(out)["broken"]) == (1, [])
    assert {each["file"] for each in json.loads(out)["findings"]} == {"bundle/receipts.jsonl"}


def test_bodies_are_encoded_and_answers_of_the_api_carry_their_nonces(
    tmp_path: Path, model_dir: Path
) -> None:
    said = [{"role": "user", "content": "What is a receipt? " * 40}]
    more = [*said, {"role": "assistant", "content": "A statement."}, {"role": "user", "content": "Of what?"}]
    bodies = [json.dumps({"model": "m", "messages": each, "user": "u"}).encode() for each in (said, more)]
    recipe = recipe_of(model_dir)
    tokens = [next(readings(body, recipe)).token_ids for body in bodies]
    first = Request(1, tokens[0], START, hit=0, promised_until=UNTIL_S)
    (tmp_path / "receipts").mkdir()
    (tmp_path / "prompts").mkdir()
    for request, body in zip((first, Request(2, tokens[1], MISSED.at, hit=0)), bodies, strict=True):
        served = HOUSE.serve(request)
        named = served.receipt.request_id
        answer = statement(contents_of(HOUSE, [served]), nonce=served.nonce.hex())
        (tmp_path / "receipts" / f"{named}.json").write_text(json.dumps(answer))
        (tmp_path / "prompts" / f"{named}.json").write_bytes(body)
    status, out, err = kvitto("verify", "promise", tmp_path, "--model-dir", model_dir, "--json")
    (broken,) = json.loads(out)["broken"]
    assert (status, err, broken["promised"] > 64) == (1, "", True)
    status, out, _ = kvitto("verify", "promise", tmp_path, "--json")  # without its tokenizer nothing is known
    assert (status, json.loads(out)["checks"]["judged"][0]) == (0, "0")


@pytest.mark.parametrize("name", ["nonces.json", "prompts/ID.ids.json"])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    folder = kept(tmp_path, SERVED, {})
    name = name.replace("ID", str(SERVED[0].receipt.request_id))
    (folder / name).write_text('{"x": 1}')
    status, _, err = kvitto("verify", "promise", folder)
    assert (status, name in err) == (2, True)


def test_a_folder_without_receipts_is_unreadable(tmp_path: Path) -> None:
    assert kvitto("verify", "promise", tmp_path)[0] == 2
