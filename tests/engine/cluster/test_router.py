"""Where requests go."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engine.api import Deadlines, EngineOptions, Role, WorkerAddress
from engine.cluster.router import KV_TOKENS_PER_REQUEST, Router, Worker
from engine.cluster.worker_client import WorkerClient


def workers(*roles: Role) -> list[Worker]:
    addresses = (WorkerAddress(f"w{n}", role, Path("/nowhere")) for n, role in enumerate(roles))
    return [Worker(WorkerClient(address, Deadlines()), ready=True) for address in addresses]


def router_of(workers: list[Worker], requests_max: int) -> Router:
    addresses = tuple(worker.client.address for worker in workers)
    return Router(workers, EngineOptions(addresses, b"s" * 32, b"", worker_requests_max=requests_max))


def test_a_prefill_goes_where_the_fewest_tokens_wait() -> None:
    first, second = pair = workers("prefill", "prefill")
    router = router_of(pair, 8)
    with router.lease(first, "prefill", 1000), router.lease(second, "prefill", 300):
        with router.lease(second, "prefill", 300):
            assert router.choose("prefill", ()) is second, "two short ones before one long one"
        assert router.choose("prefill", {second}) is first
    assert router.choose("prefill", ()) is first


def test_a_decode_weighs_running_requests_and_context() -> None:
    first, second = pair = workers("decode", "decode")
    router = router_of(pair, 8)
    with (
        router.lease(first, "decode", 10) as lease,
        router.lease(first, "decode", 10),
        router.lease(second, "decode", 100),
    ):
        assert router.choose("decode", ()) is second
        lease.tokens = 10
    with router.lease(first, "decode", 10) as lease, router.lease(second, "decode", KV_TOKENS_PER_REQUEST):
        assert router.choose("decode", ()) is first
        lease.tokens = 10_000
        assert router.choose("decode", ()) is second, "leases grow with their context"


def test_roles_readiness_and_room_are_kept() -> None:
    prefill, decode, both = trio = workers("prefill", "decode", "both")
    router = router_of(trio, 1)
    prefill.ready = False
    assert router.choose("prefill", ()) is both
    with router.lease(both, "decode", 1):
        assert router.choose("prefill", ()) is None
        assert router.choose("decode", ()) is decode
        assert router.ready, "a full worker lives"
    decode.ready = both.ready = False
    assert not router.ready


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_leases_return_what_they_took(sizes: Sequence[int]) -> None:
    pair = workers("prefill", "prefill")
    router = router_of(pair, 100)
    open_leases = []
    for size in sizes:
        chosen = router.choose("prefill", ())
        assert chosen is not None
        lease = router.lease(chosen, "prefill", size)
        lease.__enter__()
        open_leases.append(lease)
    loads = [worker.load("prefill") for worker in pair]
    assert sum(loads) == sum(sizes)
    assert abs(loads[0] - loads[1]) <= max(sizes), "greedy placement is never off by more than one request"
    for lease in open_leases:
        lease.__exit__(None, None, None)
    assert [worker.load("prefill") for worker in pair] == [0, 0]
