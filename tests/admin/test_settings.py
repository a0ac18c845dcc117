"""What an operator may set, and what is refused."""

import pytest

from admin.settings import SettingsInvalid, StripeSettings, ValkeyLost, stripe_settings, valkey_lost


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


STRIPE = ("SECRET_KEY", "WEBHOOK_SECRET", "API_URL")


@pytest.fixture
def no_stripe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STRIPE:
        monkeypatch.delenv(f"KVITTO_STRIPE_{name}", raising=False)


def test_stripe_is_what_its_three_settings_say(monkeypatch: pytest.MonkeyPatch, no_stripe: None) -> None:
    assert stripe_settings() == StripeSettings(None, None, None)
    for name, value in zip(STRIPE, ("rk_live_1", "whsec_2", "http://127.0.0.1:9"), strict=True):
        monkeypatch.setenv(f"KVITTO_STRIPE_{name}", value)
    assert stripe_settings() == StripeSettings("rk_live_1", "whsec_2", "http://127.0.0.1:9")
    assert "rk_live" not in repr(stripe_settings())
    assert "whsec" not in repr(stripe_settings())


@pytest.mark.parametrize(
    ("name", "written"),
    [("SECRET_KEY", "pk_live_1"), ("WEBHOOK_SECRET", "sk_live_1"), ("API_URL", "http://stripe.example")],
)
def test_what_is_no_secret_of_stripes_is_refused_and_a_secret_is_not_quoted(
    monkeypatch: pytest.MonkeyPatch, no_stripe: None, name: str, written: str
) -> None:
    monkeypatch.setenv(f"KVITTO_STRIPE_{name}", written)
    with pytest.raises(SettingsInvalid, match=f"KVITTO_STRIPE_{name}") as refusal:
        stripe_settings()
    assert "live" not in str(refusal.value)
