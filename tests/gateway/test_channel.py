"""The bounded channel between pump and response."""

import asyncio

import pytest

from gateway.channel import Channel
from gateway.refusal import ClientGone


async def test_waiting_frames_are_read_together_in_order_and_the_end_comes_last() -> None:
    channel = Channel(8)
    await channel.send(b"a")
    await channel.send(b"b")
    channel.close()
    assert [await channel.receive(1), await channel.receive(1)] == [b"ab", None]


async def test_silence_is_an_empty_read_not_an_end() -> None:
    channel = Channel(8)
    assert await channel.receive(0.001) == b""
    await channel.send(b"late")
    assert await channel.receive(1) == b"late"
    assert await channel.receive(0.001) == b""


async def test_a_writer_waits_for_a_slow_reader() -> None:
    channel = Channel(1)
    await channel.send(b"a")
    second = asyncio.create_task(channel.send(b"b"))
    await asyncio.sleep(0)
    assert channel.full
    assert not second.done()
    assert await channel.receive(1) == b"a"
    await second
    assert await channel.receive(1) == b"b"


async def test_a_writer_that_waits_learns_that_the_reader_left() -> None:
    channel = Channel(1)
    await channel.send(b"a")
    second = asyncio.create_task(channel.send(b"b"))
    await asyncio.sleep(0)
    channel.leave()
    with pytest.raises(ClientGone):
        await second
    with pytest.raises(ClientGone):
        await channel.send(b"c")


async def test_the_last_frame_needs_no_room() -> None:
    channel = Channel(1)
    await channel.send(b"a")
    channel.append(b"end")
    channel.close()
    assert await channel.receive(1) == b"aend"
