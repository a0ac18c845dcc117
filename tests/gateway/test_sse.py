"""Ready bytes that every client tried can read."""

import json

from gateway import sse


def test_a_frame_is_one_data_line_and_carries_no_id() -> None:
    framed = sse.frame({"text": "two\nlines"})
    assert framed.endswith(b"\n\n")
    assert framed.count(b"\n") == 2
    assert json.loads(framed.removeprefix(b"data: ")) == {"text": "two\nlines"}
    assert b"id:" not in framed


def test_a_heartbeat_is_a_comment_of_one_line() -> None:
    assert sse.COMMENT.startswith(b":")
    assert sse.COMMENT.count(b"\n") == 1


def test_anthropics_heartbeat_is_an_event_of_its_own() -> None:
    assert sse.frame({"type": "ping"}) == sse.PING


def test_proxies_are_told_to_keep_their_hands_off() -> None:
    assert sse.HEADERS["x-accel-buffering"] == "no"
    assert "no-transform" in sse.HEADERS["cache-control"]
