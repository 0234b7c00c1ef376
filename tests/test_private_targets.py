"""`ONDOT_ALLOW_PRIVATE_TARGETS`: a switch, or the networks that may be called."""

from ipaddress import ip_network

import pytest

from ondot.model.addresses import EVERYWHERE, PUBLIC
from ondot.model.errors import Misconfigured
from ondot.settings import load_settings
from tests.proves import proves


@proves("T3")
@pytest.mark.parametrize(
    ("written", "reach"),
    [("1", EVERYWHERE), ("True", EVERYWHERE), ("yes", EVERYWHERE), ("0", PUBLIC), ("off", PUBLIC), ("", PUBLIC)],
)
def test_the_setting_is_a_switch(written: str, reach: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONDOT_ALLOW_PRIVATE_TARGETS", written)
    assert load_settings().reach == reach


@proves("T3")
def test_the_setting_may_name_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONDOT_ALLOW_PRIVATE_TARGETS", " 10.1.0.0/16, fd12::/48,192.168.7.9")
    reach = load_settings().reach
    assert reach.networks == (ip_network("10.1.0.0/16"), ip_network("fd12::/48"), ip_network("192.168.7.9/32"))
    assert not reach.any_private


@proves("T3")
@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("10.1.0.0/8", "bits set after its prefix"),
        ("intranet", "'intranet' is none"),
        ("10.0.0.0/8;192.168.0.0/16", "separated by commas"),
        ("169.254.0.0/16", "never called"),
        ("169.254.169.254", "never called"),
        ("fe80::/64", "never called"),
        ("2", "'2' is none"),
    ],
)
def test_anything_else_is_rejected_with_the_value(written: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONDOT_ALLOW_PRIVATE_TARGETS", written)
    with pytest.raises(Misconfigured, match="ONDOT_ALLOW_PRIVATE_TARGETS") as refusal:
        load_settings()
    assert words in refusal.value.message
