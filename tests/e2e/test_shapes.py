"""Every shape serves and bills right: the default one, no store, two workers of each kind, no promise."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from engine.proof.attestation import DecodeAttestation, PrefillAttestation

BLOCK_TOKENS = 64
TOKENS_PER_RATE = 1_000_000


@contextmanager
def running(house: Any, *shape: str) -> Iterator[Any]:
    house.up(*shape)
    try:
        yield house
    finally:
        house.down()


def whole_blocks(reply: Any) -> int:
    """Tokens of a prompt that can be hit: one is always left to compute."""
    return int((reply.prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS)


def prefill_of(house: Any, reply: Any) -> PrefillAttestation:
    """What the accepted prefill of a request attests; it is all that there is."""
    (found,) = (
        one for one in house.receipt(reply.request_id).attestations if isinstance(one, PrefillAttestation)
    )
    return found


def handed_off(house: Any, reply: Any) -> tuple[int, ...]:
    """Tokens that decode workers had from the store; they attest a little later."""
    attested = house.receipt(reply.request_id).attestations
    return tuple(one.handoff_tokens for one in attested if isinstance(one, DecodeAttestation))


def restart_mono(house: Any) -> None:
    """Empty the only worker's memory; a busy machine's gateway may take a while to see it back."""
    house.done("restart", "mono-1", timeout_s=240)
    with house.http() as http:
        house.until(lambda: http.get("/readyz").status_code == 200, "a gateway that knows of its worker")


def blocks_of(house: Any, tenant: Any) -> int:
    return sum(tenant.id in path.parts for path in house.data_dir.rglob("*.kv"))


def owed_in_store(house: Any) -> dict[str, Any]:
    """What `kvitto store stat` tells of tenants whose promises were broken, by their ids."""
    rows = house.told("store", "stat")["tenants"]
    return {row["tenant"]: row for row in rows if row["owed_blocks"] or row["owed_billed_tokens"]}


def break_a_promise(house: Any, letter: Any, asked: dict[str, tuple[Any, str]]) -> tuple[Any, str]:
    """Ask for more than there is room for: who is owed of those ``asked`` for, and with what."""
    for seed in range(41, 46):
        tenant = house.tenant()
        asked[tenant.id] = tenant, letter(seed)
        house.ask(*asked[tenant.id], max_tokens=1)
        for broken in asked.keys() & owed_in_store(house).keys():
            return asked[broken]
    raise AssertionError(f"no promise had to go: {house.told('store', 'stat')}")


def test_the_default_shape_serves_bills_what_it_attests_and_owes_what_had_to_go(
    house: Any, letter: Any
) -> None:
    with running(house):
        assert set(house.parts()) == {"postgres", "valkey", "mono-1", "gateway", "jobs"}
        tenant = house.tenant()
        cold = house.ask(tenant, letter(40))
        warm = house.ask_streamed(tenant, letter(40))
        assert (cold.hit, warm.hit) == (0, whole_blocks(cold))
        assert (warm.text, warm.output) == (cold.text, cold.output)
        for reply in (cold, warm):
            event = house.event(tenant, reply.request_id)
            assert Decimal(event["charge"]) == house.charge_by_hand(reply, event)
            attested = prefill_of(house, reply)
            assert (attested.stage, attested.worker) == ("both", "mono-1")
            assert (attested.prompt_tokens, attested.hit_tokens) == (reply.prompt, reply.hit)
        assert house.faults_in_ledger() == []

        broken, text = break_a_promise(house, letter, {tenant.id: (tenant, letter(40))})
        owed_tokens = owed_in_store(house)[broken.id]["owed_tokens"]
        restart_mono(house)
        again = house.ask(broken, text, max_tokens=1)
        event = house.event(broken, again.request_id)
        assert 0 < event["cache_owed"] <= owed_tokens
        assert event["cache_hit"] + event["cache_owed"] == again.hit == whole_blocks(again)
        assert Decimal(event["charge"]) == house.charge_by_hand(again, event)
        told, rates = owed_in_store(house)[broken.id], house.rates_of(event)
        cost = event["cache_owed"] * (rates["miss"] - rates["hit"]) / TOKENS_PER_RATE
        assert told["owed_billed_tokens"] == event["cache_owed"]
        assert told["owed_cost_so_far"] == f"{cost.normalize():f} {event['currency']}"


def test_a_stack_without_store_remembers_no_prefix_beyond_its_worker(house: Any, letter: Any) -> None:
    with running(house, "--mono", "1", "--store", "off"):
        tenant = house.tenant()
        first = house.ask(tenant, letter(43))
        beside = house.ask_streamed(tenant, letter(43))
        attested = prefill_of(house, beside)
        assert (attested.hit_device_tokens, attested.hit_store_tokens) == (whole_blocks(first), 0)
        assert (attested.promised_until, attested.namespace) == (None, "")
        assert (first.hit, beside.text) == (0, first.text)
        for reply in (first, beside):
            event = house.event(tenant, reply.request_id)
            assert event["cache_owed"] == 0
            assert Decimal(event["charge"]) == house.charge_by_hand(reply, event)
        assert blocks_of(house, tenant) == 0


def test_two_workers_of_each_kind_share_one_store_also_without_promises(house: Any, letter: Any) -> None:
    with running(house, "--prefill", "2", "--decode", "2", "--promise", "off"):
        tenant = house.tenant()
        first = house.ask(tenant, letter(44))
        wrote = prefill_of(house, first).worker
        house.until(lambda: handed_off(house, first) == (whole_blocks(first),), "a decode that is attested")
        os.kill(house.parts()[wrote]["pid"], signal.SIGKILL)
        second = house.ask(tenant, letter(44))
        loaded = prefill_of(house, second)
        assert loaded.worker != wrote
        assert loaded.hit_tokens == second.hit == whole_blocks(first)
        assert second.text == first.text
        assert [prefill_of(house, reply).promised_until for reply in (first, second)] == [None, None]
        assert house.ask(house.tenant(), letter(44)).hit == 0
