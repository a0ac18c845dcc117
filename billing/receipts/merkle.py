"""Merkle trees of RFC 9162 (and 6962), section 2.1: hashes, what proofs consist of, how they are verified.

A tree is stored as its *perfect nodes*: the one at ``(level, position)`` is over the leaves
``[position << level, (position + 1) << level)`` and never changes. A proof is a list of hashes over ranges of
leaves; each range is covered by few perfect nodes.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final

from billing.errors import ProofBroken

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = sha256(b"").digest()

Node = tuple[int, int]  # level, position
Range = tuple[int, int]  # of leaves, half-open


def leaf_hash(entry: bytes) -> bytes:
    """The hash of a leaf."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of the node over two others."""
    return sha256(b"\x01" + left + right).digest()


def cover(leaves: Range) -> list[Node]:
    """The perfect nodes over a range, left to right, as few as there can be."""
    start, end = leaves
    length = end - start
    if length & (length - 1) == 0 < length and start & (length - 1) == 0:
        return [(length.bit_length() - 1, start // length)]
    nodes: list[Node] = []
    while start < end:
        level = (end - start).bit_length() - 1
        if start:
            level = min(level, (start & -start).bit_length() - 1)
        nodes.append((level, start >> level))
        start += 1 << level
    return nodes


def range_hash(leaves: Range, hashes: Mapping[Node, bytes]) -> bytes:
    """The hash over a range that is a subtree, from the hashes of its cover; of no leaves, the empty root."""
    return covered_hash([hashes[node] for node in cover(leaves)])


def covered_hash(covering: Sequence[bytes]) -> bytes:
    """The same from the hashes of the cover, in order."""
    if len(covering) == 1:
        return covering[0]
    if not covering:
        return EMPTY_ROOT
    *before, last = covering
    for left in reversed(before):
        last = node_hash(left, last)
    return last


def grow(size: int, frontier: Mapping[Node, bytes], leaves: Iterable[bytes]) -> Iterator[tuple[Node, bytes]]:
    """Append leaf hashes to a tree of ``size`` leaves: yields each perfect node that comes to be.

    ``frontier`` has the hashes of `cover` ``((0, size))``.
    """
    stack = [frontier[node] for node in cover((0, size))]
    for position, leaf in enumerate(leaves, size):
        level, newest = 0, leaf
        yield (level, position), newest
        while position >> level & 1:
            newest = node_hash(stack.pop(), newest)
            level += 1
            yield (level, position >> level), newest
        stack.append(newest)


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """Ranges whose hashes prove a leaf to be in a tree (RFC 9162, 2.1.3.1), from the leaf to the root."""
    assert 0 <= index < size, f"leaf {index} of {size}"
    return _siblings(index, 0, size)


def inclusion_ranges_of(indexes: Sequence[int], size: int) -> Iterator[tuple[Range, ...]]:
    """The same for many leaves, given in their order and once each: what they share is walked once."""
    stack: list[tuple[int, int, int, int, tuple[Range, ...]]] = [(0, size, 0, len(indexes), ())]
    while stack:
        start, end, first, last, shared = stack.pop()
        if last - first == 1:
            yield (*_siblings(indexes[first], start, end), *shared)
            continue
        middle = start + _left_leaves(end - start)
        split = bisect_left(indexes, middle, first, last)
        if split < last:
            stack.append((middle, end, split, last, ((start, middle), *shared)))
        if first < split:
            stack.append((start, middle, first, split, ((middle, end), *shared)))


def _siblings(index: int, start: int, end: int) -> list[Range]:
    """What a leaf is hashed with on the way to the root of the subtree ``[start, end)``."""
    ranges: list[Range] = []
    while end - start > 1:
        middle = start + _left_leaves(end - start)
        if index < middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((start, middle))
            start = middle
    return ranges[::-1]


def consistency_ranges(first: int, second: int) -> list[Range]:
    """Likewise, to prove that a tree of ``second`` leaves begins with one of ``first`` (2.1.4.1)."""
    assert 0 < first <= second, f"tree of {first} in one of {second}"
    ranges: list[Range] = []
    start, end, known = 0, second, True
    while end != first:
        middle = start + _left_leaves(end - start)
        if first <= middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((start, middle))
            start, known = middle, False
    return ([] if known else [(start, end)]) + ranges[::-1]


def check_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """Verify a proof of inclusion (2.1.3.2).

    Raises:
        ProofBroken: the leaf is not at this place of a tree with this root, as far as the path shows.
    """
    if not 0 <= index < size:
        raise ProofBroken(f"leaf {index} is outside a tree of {size}")
    place, last, newest = index, size - 1, leaf
    for sibling in path:
        if not last:
            raise ProofBroken(f"the path has {len(path)} hashes, more than leaf {index} of {size} takes")
        if place & 1:
            newest = sha256(b"\x01" + sibling + newest).digest()
        elif place < last:
            newest = sha256(b"\x01" + newest + sibling).digest()
        else:  # without a sibling it is the next level's node, until there is one before it
            newest = sha256(b"\x01" + sibling + newest).digest()
            alone = (place & -place).bit_length() - 1
            place, last = place >> alone, last >> alone
        place, last = place >> 1, last >> 1
    if last or newest != root:
        raise ProofBroken(f"the path of leaf {index} does not lead to the root of the tree of {size}")


def check_consistency(first: tuple[int, bytes], second: tuple[int, bytes], path: Sequence[bytes]) -> None:
    """Verify that the tree ``second`` (size, root) begins with the tree ``first`` (2.1.4.2).

    Raises:
        ProofBroken: it does not, as far as the path shows.
    """
    (size, root), (grown, grown_root) = first, second
    if not 0 <= size <= grown:
        raise ProofBroken(f"a tree of {grown} does not begin with one of {size}")
    if size == 0:
        if path or root != EMPTY_ROOT:
            raise ProofBroken("an empty tree has one root and needs no proof")
        return
    ranges = consistency_ranges(size, grown)
    if len(path) != len(ranges):
        raise ProofBroken(f"the proof has {len(path)} hashes, {size} in {grown} takes {len(ranges)}")
    steps = list(zip(ranges, path, strict=True))
    old = new = root
    if steps and ranges[0][1] == size:
        old = new = steps.pop(0)[1]
    for (_, end), sibling in steps:
        if end <= size:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
        else:
            new = node_hash(new, sibling)
    if old != root:
        raise ProofBroken(f"the proof does not lead to the root of the tree of {size}")
    if new != grown_root:
        raise ProofBroken(f"the proof does not lead to the root of the tree of {grown}")


def _left_leaves(leaves: int) -> int:
    """The largest power of two below a count of two or more."""
    return 1 << ((leaves - 1).bit_length() - 1)
