"""`kvitto verify` as people and scripts run it, also where there is no database, no Valkey and no network."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from admin.cli.main import app
from admin.verify.prompt import readings, recipe_of
from billing.money import Femto
from billing.receipts.bundle import KEYS, PRICES, RECEIPTS, write_directory, write_zip
from recipe.errors import RecipeError
from tests.bundles import START, WRITTEN_AT_S, Deployment, Request, contents_of, served_by

HOUSE = Deployment()
SERVED = served_by(HOUSE, 4)
CONTENTS = contents_of(HOUSE, SERVED)
ANCHOR = HOUSE.ring.keys[0].id
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "What is a receipt? " * 40}]}
).encode()

# What may not be imported, and no address may be asked for or connected to.
OFFLINE = """
import sys
BARRED = {"sqlalchemy", "asyncpg", "psycopg", "psycopg_pool", "procrastinate", "alembic", "redis", "vllm",
          "torch", "aiohttp", "httpx", "requests", "urllib3", "litestar", "uvicorn", "stripe"}
class Barred:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BARRED:
            raise AssertionError(f"{name} is not to be imported")
def audit(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind", "socket.gethostbyname"):
        raise AssertionError(event)
sys.meta_path.insert(0, Barred())
sys.addaudithook(audit)
from admin.cli.main import main
main()
"""


def kvitto(*arguments: object) -> tuple[int, str, str]:
    ran = CliRunner().invoke(app, [str(each) for each in arguments])
    return ran.exit_code, ran.stdout, ran.stderr


def offline(*arguments: object) -> tuple[int, str, str]:
    command = [sys.executable, "-c", OFFLINE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_directory(tmp_path / "b", CONTENTS, HOUSE.new, WRITTEN_AT_S)
    return tmp_path / "b"


def statement(contents: Any = CONTENTS, **more: Any) -> dict[str, Any]:
    """What the gateway answers, of the first receipt."""
    sealed = next(iter(contents.receipts))
    return {
        "object": "receipt",
        "state": "sealed",
        "sealed": json.loads(sealed.to_line()),
        "head": json.loads(list(contents.heads)[-1]),
        "keys": json.loads(contents.keys),
        "certificates": [json.loads(each) for each in contents.certificates],
        "prices": [json.loads(each) for each in contents.prices],
        "placements": [json.loads(each) for each in contents.placements],
        **more,
    }


def written(folder: Path, document: Any, **layout: Any) -> Path:
    file = folder / "R.json"
    file.write_text(json.dumps(document, **layout), encoding="utf-8")
    return file


def test_a_bundle_is_verified_offline_and_its_anchor_is_shown(folder: Path) -> None:
    status, out, err = offline("verify", "bundle", folder)
    assert (status, err) == (0, "")
    assert "Verified." in out
    assert "4 of 4 verified" in out
    assert ANCHOR in out  # nobody has said that it is trusted
    status, out, _ = kvitto("verify", "bundle", folder, "--anchor", ANCHOR)
    assert (status, ANCHOR in out) == (0, False)
    status, out, _ = kvitto("verify", "bundle", folder, "--keys", folder / KEYS, "--json")
    assert (status, json.loads(out)["anchor_pinned"], json.loads(out)["findings"]) == (0, True, [])


def test_a_zip_is_verified_by_several_processes(tmp_path: Path) -> None:
    requests = [Request(number, at=START.replace(microsecond=number)) for number in range(900)]
    contents = contents_of(HOUSE, [HOUSE.serve(each) for each in requests], between=0)
    with (tmp_path / "b.zip").open("wb") as file:
        write_zip(file, contents, HOUSE.new, WRITTEN_AT_S)
    status, out, _ = kvitto("verify", "bundle", tmp_path / "b.zip", "--jobs", 2, "--json")
    assert (status, json.loads(out)["checks"]["receipts"]) == (0, "900 of 900 verified, 900 attested")


def test_what_is_wrong_is_named_with_its_line_and_the_status_is_one(folder: Path) -> None:
    lines = (folder / RECEIPTS).read_bytes().replace(b'"output":21', b'"output":22')
    (folder / RECEIPTS).write_bytes(lines)
    status, out, _ = kvitto("verify", "bundle", folder, "--json")
    found = json.loads(out)["findings"]
    assert status == 1
    assert {(each["file"], each["line"]) for each in found} == {(RECEIPTS, 2), (RECEIPTS, None)}
    assert {"inclusion", "usage", "price", "manifest"} <= {each["step"] for each in found}
    status, out, _ = kvitto("verify", "bundle", folder)
    assert status == 1
    assert "what is wrong" in out


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / PRICES).unlink(), "prices.jsonl: missing"),
        (lambda folder: (folder / "x").touch(), "x: no file of a bundle"),
        (lambda folder: (folder / KEYS).write_text("{}"), "keys.json"),
        (lambda folder: (folder / RECEIPTS).write_bytes(b"{"), "receipts.jsonl:1: truncated"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_status_is_two(folder: Path, spoil: Any, said: str) -> None:
    spoil(folder)
    status, out, err = kvitto("verify", "bundle", folder)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_bundle_of_another_house_or_none_at_all_is_unreadable(folder: Path) -> None:
    assert kvitto("verify", "bundle", folder, "--anchor", "ed25519_" + "0" * 32)[0] == 2
    assert kvitto("verify", "bundle", folder / "nowhere")[0] == 2


def test_a_receipt_is_verified_however_its_file_is_laid_out(tmp_path: Path) -> None:
    for layout in ({}, {"indent": 2}, {"sort_keys": True}):
        status, out, err = kvitto("verify", "receipt", written(tmp_path, statement(), **layout), "--json")
        assert (status, err) == (0, "")
    checks = json.loads(out)["checks"]
    assert list(checks) == ["form", "inclusion", "attestations", "request", "coverage", "usage", "price"]
    assert "64 hit, 0 owed, 0 written, 136 missed, 20 output" in checks["usage"]
    assert "SHA-256 of the row" in checks["price"]


def test_a_receipt_that_is_not_as_it_says_is_found(tmp_path: Path) -> None:
    dearer = replace(SERVED[0].receipt, charge=Femto(SERVED[0].receipt.charge + 1))
    contents = contents_of(HOUSE, [replace(SERVED[0], receipt=dearer), *SERVED[1:]])
    status, out, _ = kvitto("verify", "receipt", written(tmp_path, statement(contents)), "--json")
    (found,) = json.loads(out)["findings"]
    assert (status, found["step"], found["file"]) == (1, "price", "R.json")
    swapped = {**statement(), "head": json.loads(next(iter(CONTENTS.heads)))}
    assert kvitto("verify", "receipt", written(tmp_path, swapped))[0] == 1


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"state": "pending"},
        {**statement(), "sealed": {}},
        {**statement(), "sealed": {**statement()["sealed"], "leaf_nonce": "00"}},
        {**statement(), "keys": {}},
        {**statement(), "certificates": None},
        {**statement(), "nonce": "zz"},
    ],
)
def test_what_is_no_receipt_is_unreadable(tmp_path: Path, document: Any) -> None:
    assert kvitto("verify", "receipt", written(tmp_path, document))[0] == 2


def test_a_name_twice_is_refused_whatever_it_would_mean(tmp_path: Path) -> None:
    file = written(tmp_path, statement())
    file.write_text(file.read_text().replace('"window"', '"tenant": "ten_a", "window"', 1))
    status, _, err = kvitto("verify", "receipt", file)
    assert (status, "twice" in err) == (2, True)


def test_a_prompt_is_encoded_again_and_its_commitments_hold(tmp_path: Path, model_dir: Path) -> None:
    recipe = recipe_of(model_dir)
    read = {each.surface: each.token_ids for each in readings(BODY, recipe)}
    assert set(read) == {"chat"}  # Anthropic's bodies must say max_tokens
    served = HOUSE.serve(Request(50, read["chat"]))
    contents = contents_of(HOUSE, [served])
    file = written(tmp_path, statement(contents, nonce=served.nonce.hex()))
    (tmp_path / "body.json").write_bytes(BODY)
    asked = (
        "verify",
        "receipt",
        file,
        "--prompt",
        tmp_path / "body.json",
        "--model-dir",
        model_dir,
        "--json",
    )
    status, out, err = offline(*asked)
    assert (status, err) == (0, "")
    assert json.loads(out)["checks"]["prompt"] == (
        f"{len(read['chat'])} tokens as chat reads it, 64 of them cached"
    )
    for more in (("--nonce", "00" * 32), ("--surface", "messages")):
        assert kvitto(*asked, *more)[0] == (1 if "--nonce" in more else 2)
    (tmp_path / "body.json").write_bytes(BODY.replace(b"receipt", b"recipes"))
    status, out, _ = kvitto(*asked)
    assert (status, json.loads(out)["findings"][0]["step"]) == (1, "prompt")
    (tmp_path / "body.json").write_bytes(b"{")
    assert kvitto(*asked)[0] == 2


def test_a_body_is_read_by_each_surface_that_can(model_dir: Path) -> None:
    recipe = recipe_of(model_dir)
    both = json.dumps({**json.loads(BODY), "max_tokens": 5}).encode()
    assert {each.surface for each in readings(both, recipe)} == {"chat", "messages"}
    raw = json.dumps({"model": "m", "prompt": "Once", "max_tokens": 5, "user": "u"}).encode()
    assert [each.surface for each in readings(raw, recipe)] == ["completions"]
    assert [each.surface for each in readings(b'{"model":"m","input":"Hi"}', recipe)] == ["responses"]
    with pytest.raises(RecipeError):
        list(readings(b"{}", recipe))
    with pytest.raises(RecipeError):
        list(readings(raw, recipe, "chat"))
