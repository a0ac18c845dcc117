"""What fails: its status, its error frame, and that nothing of it is billed or stays held."""

import asyncio
import json
from dataclasses import replace

import pytest

from billing.db.transaction import Database
from billing.errors import StoreUnavailable
from billing.ledger.balance import BalanceVersion
from billing.settlement.batch import Settlement
from billing.settlement.event import UsageEvent
from billing.tenancy.service import Tenancy
from engine.api import EngineFailed, EngineUnavailable, PromptRefused, WorkerAnswerInvalid
from gateway.sweep import SweepReport
from gateway.valkey import Valkey
from tests.gateway.conftest import CREDIT, OPTIONS, PEPPER, House, furnish, served
from tests.gateway.doubles import Play, says
from tests.gateway.sweeping import sweeper

DEAD = EngineUnavailable("prefill-0 is dead", retry_after_s=7)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_worker_is_503_with_retry_after_and_costs_nothing(house: House, stream: bool) -> None:
    house.engine.play = Play(prefill=DEAD)
    async with house.chat(stream=stream) as answer:
        assert (answer.status, answer.headers["retry-after"]) == (503, "7")
        assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}
    assert await house.nothing_happened()


async def test_a_worker_that_was_called_and_gave_no_answer_leaves_an_event_of_nothing(house: House) -> None:
    house.engine.play = Play(prefill=DEAD, called=True)
    async with house.chat() as answer:
        assert answer.status == 503
    (row,) = await house.settled()
    assert (row.status, row.charge, row.cache_miss) == ("failed", 0, 0)
    assert not (await house.held()).holds


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_dies_before_the_first_token_leaves_an_event_of_nothing(
    house: House, stream: bool
) -> None:
    """QuantumNous/new-api#4168: 0 is billed."""
    house.engine.play = Play([DEAD])
    async with house.chat(stream=stream) as answer:
        assert answer.status == 503
    (row,) = await house.settled()
    assert (row.status, row.charge, row.output) == ("failed", 0, 0)
    assert await house.balance() == CREDIT


async def test_a_stream_that_breaks_ends_with_an_error_frame_and_is_not_billed(house: House) -> None:
    """QuantumNous/new-api#5289: an error frame is never billable output."""
    house.engine.play = Play([says("abc"), EngineFailed("decode-0", "killed")])
    async with house.chat(stream=True) as answer:
        text = (await answer.read()).decode()
    last = [line for line in text.splitlines() if line][-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "service_unavailable"
    assert "decode-0" not in text
    assert "[DONE]" not in text
    (row,) = await house.settled()
    assert (row.status, row.charge, row.output, row.cache_miss) == ("failed", 0, 0, 0)
    assert await house.balance() == CREDIT


async def test_a_whole_answer_that_breaks_is_503_and_is_not_billed(house: House) -> None:
    house.engine.play = Play([says("abc"), EngineFailed("decode-0", "killed")])
    async with house.chat() as answer:
        assert answer.status == 503
        assert "abc" not in await answer.text()
    assert (await house.settled())[0].charge == 0


async def test_a_stream_that_ends_without_a_finish_is_a_failure_not_an_answer(house: House) -> None:
    house.engine.play = Play([says("abc")])
    async with house.chat(stream=True) as answer:
        text = await answer.text()
    assert '"error"' in text
    assert "[DONE]" not in text
    assert (await house.settled())[0].status == "failed"


async def test_a_failure_after_heartbeats_is_an_error_frame(house: House) -> None:
    prefill = asyncio.Event()
    house.engine.play = Play([DEAD], prefill=prefill)
    async with house.chat(stream=True) as answer:
        assert answer.status == 200
        assert await answer.content.readline() == b": ping\n"
        prefill.set()
        text = await answer.text()
    assert '"error"' in text
    assert "[DONE]" not in text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WorkerAnswerInvalid("prefill-0", "bad signature"), 503),
        (PromptRefused("too long for this worker"), 400),
        (RuntimeError("canary"), 500),
    ],
)
async def test_whatever_goes_wrong_before_the_answer_keeps_its_status_and_holds_nothing(
    house: House, error: Exception, status: int
) -> None:
    house.engine.play = Play(prefill=error)
    async with house.chat(stream=True) as answer:
        assert answer.status == status
        assert "canary" not in await answer.text()
    assert await house.nothing_happened()


async def test_an_engine_that_falls_silent_is_given_up_at_the_deadline_and_not_billed(
    impatient_house: House,
) -> None:
    house = impatient_house
    house.engine.play = Play([says("abc"), asyncio.Event()])
    async with house.chat(stream=True) as answer:
        text = await answer.text()
    assert "took too long" in text
    assert (await house.settled())[0].charge == 0
    assert house.engine.running == 0


async def test_a_server_that_stops_ends_its_requests_unbilled_and_unheld(
    database_url: str, valkey_url: str
) -> None:
    house = await furnish(database_url, valkey_url)
    house.engine.play = Play([says("abc"), asyncio.Event()])
    watching = Valkey.connect(valkey_url)
    async with served(house, graceful_s=0.1):
        answer = await house.chat(stream=True).__aenter__()
        await answer.content.readline()
        assert (await house.held()).holds
        await house.stop()
    watch(house, database_url, watching)
    assert [row.charge for row in await house.settled()] == [0]
    assert house.engine.running == 0
    await watching.close()
    await house.parts.database.close()


def watch(house: House, database_url: str, valkey: Valkey) -> None:
    """See the house through fresh connections, its own being closed."""
    house.parts = replace(house.parts, database=Database(database_url), valkey=valkey)


async def test_without_valkey_nobody_is_admitted(database_url: str, valkey_url: str) -> None:
    house = await furnish(database_url, valkey_url)
    house.parts = replace(house.parts, valkey=Valkey.connect("unix:///nonexistent/valkey.sock"))
    async with served(house):
        async with house.chat() as answer:
            assert answer.status == 503
            assert 0 < int(answer.headers["retry-after"]) <= 60
        assert not house.engine.generations
        async with house.session.get(f"{house.url}/readyz") as ready:
            assert (ready.status, (await ready.json())["parts"]["valkey"]) == (503, False)


async def test_without_postgres_a_key_is_not_unknown_but_unavailable(
    database_url: str, valkey_url: str
) -> None:
    house = await furnish(database_url, valkey_url)
    nowhere = Database("postgresql+asyncpg://u:p@/kvitto?host=/nonexistent")
    house.parts = replace(house.parts, tenancy=Tenancy(nowhere, PEPPER))
    async with served(house):
        async with house.chat() as answer:
            assert answer.status == 503
            assert "retry-after" in answer.headers
        assert await house.nothing_happened()


async def test_while_the_pool_is_exhausted_a_key_is_not_unknown_but_unavailable(
    database_url: str, valkey_url: str
) -> None:
    """BerriAI/litellm#34479: 503 with Retry-After, never 401, and it passes with the crowd."""
    house = await furnish(database_url, valkey_url)
    crowded = Database(database_url, pool_size=1, pool_timeout_s=1)
    house.parts = replace(house.parts, tenancy=Tenancy(crowded, PEPPER))
    async with served(house):
        async with crowded.transaction(), house.chat() as answer:
            assert answer.status == 503
            assert 0 < int(answer.headers["retry-after"]) <= 60
        assert await house.nothing_happened()
        async with house.chat() as answer:
            assert answer.status == 200
    await crowded.close()


class LostSettlement(Settlement):
    """Commits, then loses the connection: nobody is told."""

    commits = True

    async def settle(self, event: UsageEvent) -> BalanceVersion:
        if self.commits:
            await super().settle(event)
        raise StoreUnavailable("connection lost")


@pytest.mark.parametrize("commits", [True, False])
async def test_a_charge_of_unknown_fate_is_left_to_the_sweeper_which_asks(
    database_url: str, valkey_url: str, commits: bool
) -> None:
    house = await furnish(
        database_url, valkey_url, replace(OPTIONS, lease_s=0.02, lease_renew_interval_s=0.01)
    )
    settlement = LostSettlement(house.parts.database)
    settlement.commits = commits
    house.parts = replace(house.parts, settlement=settlement)
    async with served(house):
        async with house.chat(stream=True) as answer:
            text = await answer.text()
        assert '"charge_unknown"' in text
        assert "nothing was charged" not in text
        assert "[DONE]" not in text
        assert (await house.held()).holds
        await asyncio.sleep(0.05)
        report = await sweeper(house).sweep_once()
        assert report == (SweepReport(released=1) if commits else SweepReport(voided=1))
        held = await house.held()
        assert not held.holds
        assert held.balance == await house.balance()
        assert len(await house.rows()) == int(commits)
