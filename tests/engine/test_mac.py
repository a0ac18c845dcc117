import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.mac import SKEW_S, call_mac, holds

SECRET = b"s" * 32


@given(st.text(max_size=8), st.text(max_size=20), st.binary(max_size=40), st.integers(0, 2**40))
def test_a_mac_holds_for_its_own_call(method: str, path: str, body: bytes, at_s: int) -> None:
    assert holds(SECRET, call_mac(SECRET, method, path, body, at_s), method, path, body, at_s)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("GET", "/a", b"x"), ("POST", "/b", b"x"), ("POST", "/a", b"y"), ("POS", "T/a", b"x")],
)
def test_a_mac_of_another_call_does_not_hold(method: str, path: str, body: bytes) -> None:
    assert not holds(SECRET, call_mac(SECRET, "POST", "/a", b"x", 1000), method, path, body, 1000)


def test_a_mac_holds_for_a_minute() -> None:
    mac = call_mac(SECRET, "GET", "/a", b"", 1000)
    assert holds(SECRET, mac, "GET", "/a", b"", 1000 + SKEW_S)
    assert not holds(SECRET, mac, "GET", "/a", b"", 1001 + SKEW_S)
    assert not holds(b"t" * 32, mac, "GET", "/a", b"", 1000)


@pytest.mark.parametrize("header", ["", "1000", "x y", "1000 ", "-1 aa", "9" * 99 + " aa", "1000 ü", "１ aa"])
def test_what_is_no_mac_does_not_hold(header: str) -> None:
    assert not holds(SECRET, header, "GET", "/a", b"", 1000)
