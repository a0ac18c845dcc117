"""A witness of a log over HTTP: what it follows, and what it raises the alarm about."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from admin import witness
from admin.cli.errors import CommandFailed
from admin.cli.main import app
from admin.verify.trust import Pin
from billing.receipts import merkle
from billing.receipts.head import TreeHead
from engine.proof.ring import DeploymentRing
from tests.bundles import ROTATED_AT, START, Deployment, Log, key_of, log_of, served_by

HOUSE = Deployment()
LOG = log_of(served_by(HOUSE, 6))
FORKED = log_of(served_by(HOUSE, 6)[::-1])
EARLY = START - timedelta(days=3)  # before the rotation


@dataclass
class Gateway:
    """What a deployment shows just now."""

    log: Log = LOG
    size: int | None = 5
    at: datetime = START
    ring: DeploymentRing = field(default_factory=lambda: HOUSE.ring)
    key: Any = None
    status: int = 200
    asked: int = 0
    stale: list[int] = field(default_factory=list)  # sizes that are shown before

    def head(self) -> Any:
        if self.size is None:
            return None
        size = self.stale.pop(0) if self.stale else self.size
        head = TreeHead(size, self.log.root(size), int(self.at.timestamp()))
        return json.loads(head.sign(self.key or HOUSE.key_at(self.at)))

    async def newest(self, _: web.Request) -> web.Response:
        self.asked += 1
        shown = {"object": "receipt.log", "head": self.head(), "keys": json.loads(self.ring.to_text())}
        return web.json_response(shown, status=self.status)

    async def consistency(self, request: web.Request) -> web.Response:
        first, second = int(request.query["first"]), int(request.query["second"])
        if first > LOG.size - 1:
            return web.json_response({"error": {"code": "not_found"}}, status=404)
        path = self.log.path(merkle.consistency_ranges(first, second)) if first else ()
        return web.json_response({"path": [each.hex() for each in path]})


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[Gateway, str]]:
    one = Gateway()
    application = web.Application()
    application.router.add_get("/v1/receipts/log", one.newest)
    application.router.add_get("/v1/receipts/log/consistency", one.consistency)
    async with TestServer(application) as server:
        yield one, str(server.make_url("/")).rstrip("/")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "STALE_PAUSE_S", 0.0)


async def look(url: str, state: Path, *options: str) -> tuple[int, str, str]:
    """`kvitto witness --once`, in a thread with a loop of its own."""
    arguments = ["witness", url, "--state", str(state), "--once", *options]
    ran = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    return ran.exit_code, ran.stdout, ran.stderr


async def test_a_log_that_grows_is_followed_and_the_state_outlives_the_witness(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with gateway() as (shown, url):
        shown.size = None
        assert (await look(url, state))[0] == 0
        for size in (0, 1, 5, 5, LOG.size):
            shown.size = size
            shown.at += timedelta(hours=1)
            status, out, err = await look(url, state)
            assert (status, err) == (0, ""), size
        assert f"{LOG.size} leaves, root {LOG.root(LOG.size).hex()}" in out
    kept = json.loads(state.read_bytes())
    assert kept["head"]["payload"]["size"] == LOG.size
    assert state.stat().st_mode & 0o077 == 0


Change = Callable[[Gateway], None]


def changed(**fields: Any) -> Change:
    def change(shown: Gateway) -> None:
        vars(shown).update(fields)

    return change


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (changed(log=FORKED), "fork"),  # the same size
        (changed(log=FORKED, size=LOG.size), "fork"),
        (changed(size=4), "shrunk"),
        (changed(size=None), "shrunk"),
        (changed(size=LOG.size, at=START - timedelta(hours=1)), "shrunk"),
        (changed(size=LOG.size, key=key_of("stranger")), "unsigned"),
        (changed(size=LOG.size, key=HOUSE.new), "unsigned"),  # which does not sign yet
        (changed(size=LOG.size, ring=DeploymentRing.of(key_of("stranger").public_key())), "unsigned"),
        (
            changed(
                ring=DeploymentRing.of(HOUSE.old.public_key()).rotated(
                    HOUSE.old, key_of("stolen").public_key(), int(ROTATED_AT.timestamp())
                )
            ),
            "unsigned",
        ),
    ],
)
async def test_what_a_log_must_not_do_raises_the_alarm(tmp_path: Path, change: Change, kind: str) -> None:
    state = tmp_path / "state"
    async with gateway() as (shown, url):
        assert (await look(url, state))[0] == 0
        before = state.read_bytes()
        change(shown)
        status, _, err = await look(url, state)
        assert (status, f"ALARM, {kind}" in err) == (3, True), err
        assert state.read_bytes() == before
        evidence = json.loads((tmp_path / "state.alarm").read_bytes())
        assert evidence["alarm"] == kind
        assert evidence["known"]["head"]["payload"]["size"] == 5
        assert evidence["shown"]["head"] == shown.head()
        vars(shown).update(vars(Gateway()))
        assert (await look(url, state))[0] == 0  # it knows what it knew


async def test_two_trees_that_are_shown_to_two_witnesses_are_found_by_either(tmp_path: Path) -> None:
    async with gateway() as (shown, url):
        await look(url, tmp_path / "ann")
        shown.log = FORKED
        await look(url, tmp_path / "bob")
        assert (await look(url, tmp_path / "ann"))[0] == 3
        shown.log = LOG
        assert (await look(url, tmp_path / "bob"))[0] == 3


async def test_a_log_that_has_forgotten_a_head_is_a_fork(tmp_path: Path) -> None:
    async with gateway() as (shown, url):
        shown.size = LOG.size - 1
        longer = log_of(served_by(HOUSE, 8))
        vars(shown).update(log=longer, size=LOG.size)
        await look(url, tmp_path / "state")
        shown.size = longer.size
        status, _, err = await look(url, tmp_path / "state")
        assert (status, "does not know the head" in err) == (3, True)


async def test_a_rotation_of_keys_is_followed_and_an_old_key_signs_nothing_new(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with gateway() as (shown, url):
        vars(shown).update(ring=DeploymentRing.of(HOUSE.old.public_key()), at=EARLY)
        assert (await look(url, state))[0] == 0
        vars(shown).update(ring=HOUSE.ring, at=ROTATED_AT + timedelta(hours=1), size=8)
        status, out, _ = await look(url, state)
        assert (status, "2 keys" in out) == (0, True)
        shown.key = HOUSE.old
        assert (await look(url, state))[0] == 3
        vars(shown).update(key=None, ring=DeploymentRing.of(HOUSE.old.public_key()))  # a gateway not told yet
        assert (await look(url, state))[0] == 0


async def test_a_head_that_is_a_moment_old_is_asked_for_again(tmp_path: Path) -> None:
    async with gateway() as (shown, url):
        await look(url, tmp_path / "state")
        shown.stale, shown.asked = [3, 4], 0
        assert (await look(url, tmp_path / "state"))[0] == 0
        assert shown.asked == 3


async def test_who_is_trusted_can_be_said(tmp_path: Path) -> None:
    async with gateway() as (_, url):
        assert (await look(url, tmp_path / "a", "--anchor", HOUSE.ring.keys[0].id))[0] == 0
        assert (await look(url, tmp_path / "b", "--anchor", HOUSE.ring.keys[1].id))[0] == 3


@pytest.mark.parametrize("status", [404, 500, 302])
async def test_a_log_that_does_not_answer_is_no_alarm(tmp_path: Path, status: int) -> None:
    async with gateway() as (shown, url):
        shown.status = status
        code, _, err = await look(url, tmp_path / "state")
        assert (code, "ALARM" in err, err.count("\n")) == (1, False, 1)
    code, _, err = await look(url, tmp_path / "state")
    assert (code, "ALARM" in err) == (1, False)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"kind":"kvitto.witness.v1","url":"x","keys":null,"head":null}']
)
async def test_a_state_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    async with gateway() as (_, url):
        arguments = ["witness", url, "--state", str(tmp_path / "state"), "--once"]
        ran = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert isinstance(ran.exception, CommandFailed)
    assert (tmp_path / "state").read_bytes() == content


async def test_it_goes_on_looking_until_it_is_stopped() -> None:
    """The loop itself: every look begins where the last one has ended."""

    class Scripted:
        """Implements `Source`."""

        def __init__(self) -> None:
            self.sizes = [1, 5, LOG.size]

        async def newest(self) -> witness.Shown:
            size = self.sizes.pop(0)
            head = TreeHead(size, LOG.root(size), int(START.timestamp()) + size).sign(HOUSE.old)
            return witness.Shown(head, HOUSE.ring.to_text())

        async def consistency(self, first: int, second: int) -> tuple[bytes, ...]:
            return LOG.path(merkle.consistency_ranges(first, second))

    one, state = witness.Witness(Scripted(), Pin()), witness.State("u")
    for _ in range(3):
        state = await one.look(state)
    assert json.loads(state.head or "")["payload"]["size"] == LOG.size
    assert replace(state, head=None).ring is not None
