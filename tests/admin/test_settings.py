"""What an operator may set, and what is refused."""

import pytest

from admin.settings import SettingsInvalid, ValkeyLost, valkey_lost


def test_without_valkey_gateways_refuse_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVITTO_VALKEY_LOST", "KVITTO_GATEWAY_REPLICAS"):
        monkeypatch.delenv(name, raising=False)
    assert valkey_lost() == ValkeyLost("refuse", 1)
    monkeypatch.setenv("KVITTO_VALKEY_LOST", "share")
    monkeypatch.setenv("KVITTO_GATEWAY_REPLICAS", "3")
    assert valkey_lost() == ValkeyLost("share", 3)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("VALKEY_LOST", "ignore"),
        ("GATEWAY_REPLICAS", "0"),
        ("GATEWAY_REPLICAS", "-1"),
        ("GATEWAY_REPLICAS", "x"),
    ],
)
def test_what_means_nothing_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, written: str
) -> None:
    monkeypatch.setenv(f"KVITTO_{name}", written)
    with pytest.raises(SettingsInvalid, match=f"KVITTO_{name}"):
        valkey_lost()
