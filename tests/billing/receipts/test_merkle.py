"""Merkle trees beside a slow one by the definition, and the vectors of Certificate Transparency."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import ProofBroken
from billing.receipts import merkle
from billing.receipts.merkle import Node, Range

# The eight leaves and roots of the reference implementation's own tests (google/certificate-transparency).
LEAVES = [
    bytes.fromhex(text)
    for text in (
        *("", "00", "10", "2021", "3031", "40414243", "5051525354555657"),
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def defined(hashes: Sequence[bytes]) -> bytes:
    """MTH of RFC 9162, 2.1.1, word for word."""
    if len(hashes) < 2:
        return hashes[0] if hashes else merkle.EMPTY_ROOT
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    return merkle.node_hash(defined(hashes[:k]), defined(hashes[k:]))


def leaves_of(count: int) -> list[bytes]:
    return [merkle.leaf_hash(str(number).encode()) for number in range(count)]


def stored(hashes: Sequence[bytes]) -> dict[Node, bytes]:
    return dict(merkle.grow(0, {}, hashes))


def path(ranges: Sequence[Range], nodes: dict[Node, bytes]) -> list[bytes]:
    return [merkle.range_hash(leaves, nodes) for leaves in ranges]


@pytest.mark.parametrize("size", range(1, 9))
def test_the_roots_are_those_of_the_reference_implementation(size: int) -> None:
    nodes = stored([merkle.leaf_hash(leaf) for leaf in LEAVES[:size]])
    assert merkle.range_hash((0, size), nodes).hex() == ROOTS[size - 1]


def test_an_empty_tree_has_the_hash_of_nothing_for_a_root() -> None:
    assert merkle.range_hash((0, 0), {}) == defined([])


@given(st.integers(0, 70), st.integers(0, 70))
def test_a_tree_that_grows_in_two_steps_is_the_tree(first: int, more: int) -> None:
    hashes = leaves_of(first + more)
    nodes = stored(hashes[:first])
    frontier = {node: nodes[node] for node in merkle.cover((0, first))}
    nodes |= dict(merkle.grow(first, frontier, hashes[first:]))
    assert nodes == stored(hashes)
    assert merkle.range_hash((0, len(hashes)), nodes) == defined(hashes)


@given(st.data(), st.integers(1, 130))
def test_each_leaf_is_proved_and_no_other_in_its_place(data: st.DataObject, size: int) -> None:
    hashes = leaves_of(size)
    nodes, root = stored(hashes), defined(hashes)
    index = data.draw(st.integers(0, size - 1))
    proof = path(merkle.inclusion_ranges(index, size), nodes)
    merkle.check_inclusion(hashes[index], index, size, proof, root)
    other = data.draw(st.integers(0, size))
    spoilt = [*proof]
    if proof:
        place = data.draw(st.integers(0, len(proof) - 1))
        spoilt[place] = bytes([spoilt[place][0] ^ 1]) + spoilt[place][1:]
    wrong = [
        (merkle.leaf_hash(b"another"), index, size, proof, root),
        (hashes[index], index, size, [*proof, root], root),
        (hashes[index], index, size, proof, bytes(32)),
        (hashes[index], size, size, proof, root),
    ]
    wrong += [(hashes[index], other, size, proof, root)] if other != index else []
    wrong += [(hashes[index], index, size, spoilt, root)] if proof else []
    for each in wrong:
        with pytest.raises(ProofBroken):
            merkle.check_inclusion(*each)


@given(st.data(), st.integers(1, 130))
def test_a_tree_is_proved_to_begin_as_it_was_and_no_fork_is(data: st.DataObject, size: int) -> None:
    hashes = leaves_of(size)
    nodes = stored(hashes)
    first = data.draw(st.integers(1, size))
    old, new = (first, defined(hashes[:first])), (size, defined(hashes))
    proof = path(merkle.consistency_ranges(first, size), nodes)
    merkle.check_consistency(old, new, proof)
    place = data.draw(st.integers(0, first - 1))
    forked = [*hashes[:place], merkle.leaf_hash(b"forked"), *hashes[place + 1 :]]
    of_fork = path(merkle.consistency_ranges(first, size), stored(forked))
    with pytest.raises(ProofBroken):
        merkle.check_consistency(old, (size, defined(forked)), of_fork)
    with pytest.raises(ProofBroken):
        merkle.check_consistency((first, defined(forked[:first])), new, proof)
    with pytest.raises(ProofBroken):
        merkle.check_consistency(old, new, [*proof, bytes(32)])


def test_an_empty_tree_begins_every_tree_and_a_larger_one_none() -> None:
    root = defined(leaves_of(3))
    merkle.check_consistency((0, merkle.EMPTY_ROOT), (3, root), [])
    for first in ((0, root), (4, root)):
        with pytest.raises(ProofBroken):
            merkle.check_consistency(first, (3, root), [])


@given(st.data())
def test_many_leaves_are_proved_by_the_ranges_of_each(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 70))
    indexes = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    expected = [tuple(merkle.inclusion_ranges(index, size)) for index in indexes]
    assert list(merkle.inclusion_ranges_of(indexes, size)) == expected
