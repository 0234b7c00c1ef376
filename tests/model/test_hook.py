"""Tokens of hooks, and the signatures of senders of webhooks, against values that the senders document."""

import base64
import hashlib
import hmac
from typing import Any
from uuid import UUID

import pytest

from ondot.model.hook import Signature, find_forgery, hide_tokens, identify, is_token, new_token
from ondot.model.signature import parse_secret, sign
from tests.proves import proves

ID = UUID("019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a")
NOW_S = 1_531_420_618.0
STANDARD_KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()


def forge(signature: Signature, headers: dict[str, str], body: bytes, **changes: Any) -> str | None:
    fields: dict[str, Any] = {"header": "x-signature", "keys": ["It's a Secret to Everybody"], "now_s": NOW_S}
    return find_forgery(signature, headers=headers, body=body, **(fields | changes))


@proves("S11")
def test_the_example_of_githubs_documentation_is_accepted() -> None:
    given = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert forge(Signature.GITHUB, {"x-hub-signature-256": given}, b"Hello, World!") is None
    assert "does not match" in str(forge(Signature.GITHUB, {"x-hub-signature-256": given}, b"Hello, World?"))
    assert "no signature" in str(forge(Signature.GITHUB, {}, b"Hello, World!"))
    sha1 = {"x-hub-signature": "sha1=" + hmac.new(b"It's a Secret to Everybody", b"Hello", "sha1").hexdigest()}
    assert forge(Signature.GITHUB, sha1, b"Hello") is not None


SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
    b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121"
    b".803a0bc887a14d10d2c447fce8b6703c"
)
SLACK = {
    "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    "x-slack-request-timestamp": "1531420618",
}


@proves("S11")
def test_the_example_of_slacks_documentation_is_accepted_for_five_minutes() -> None:
    keys = ["8f742231b10e8888abcd99yyyzzz85a5"]
    assert forge(Signature.SLACK, SLACK, SLACK_BODY, keys=keys) is None
    assert forge(Signature.SLACK, SLACK, SLACK_BODY, keys=["another one", *keys]) is None
    for away_s in (-301, 301):
        assert "300 s are accepted" in str(forge(Signature.SLACK, SLACK, SLACK_BODY, keys=keys, now_s=NOW_S + away_s))
    moved = SLACK | {"x-slack-request-timestamp": "1531420619"}
    assert "does not match" in str(forge(Signature.SLACK, moved, SLACK_BODY, keys=keys))
    for bad in ("", "-1", "1e9", "１５３１４２０６１８", "9" * 30):
        assert "whole seconds" in str(
            forge(Signature.SLACK, SLACK | {"x-slack-request-timestamp": bad}, SLACK_BODY, keys=keys)
        )


@proves("S11")
def test_one_of_several_signatures_of_stripe_is_enough_and_its_old_scheme_is_not() -> None:
    body, at = b'{"id": "evt_1"}', int(NOW_S)
    right = hmac.new(b"whsec_stripe", f"{at}.".encode() + body, "sha256").hexdigest()
    for given, is_right in (
        (f"t={at},v1={right}", True),
        (f"t={at},v1={'0' * 64},v1={right},v0=x", True),
        (f"t={at}, v1={right}", True),
        (f"t={at},v0={right}", False),
        (f"t={at - 400},v1={right}", False),
        (f"v1={right}", False),
        ("", False),
        (f"t={at},v1=é", False),
    ):
        why = forge(Signature.STRIPE, {"stripe-signature": given}, body, keys=["whsec_stripe"])
        assert (why is None) is is_right, (given, why)


@proves("S11")
def test_plain_hmac_is_accepted_in_hex_and_base64_in_the_header_of_the_hook() -> None:
    raw = hmac.new(b"long secret", b"body", "sha256").digest()
    for text in (raw.hex(), raw.hex().upper(), f"sha256={raw.hex()}", base64.b64encode(raw).decode()):
        assert forge(Signature.HMAC, {"x-acme": text}, b"body", keys=["long secret"], header="x-acme") is None
        assert forge(Signature.HMAC, {"x-other": text}, b"body", keys=["long secret"], header="x-acme") is not None
    assert forge(Signature.HMAC, {"x-acme": "%%%"}, b"body", keys=["long secret"], header="x-acme") is not None


@proves("S11")
def test_standard_webhooks_are_known_by_their_signed_id() -> None:
    at = str(int(NOW_S))
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": at,
        "webhook-signature": sign([parse_secret(STANDARD_KEY)], "msg_1", at, b"{}"),
    }
    assert forge(Signature.STANDARD, headers, b"{}", keys=[STANDARD_KEY]) is None
    assert forge(Signature.STANDARD, headers | {"webhook-id": "msg_2"}, b"{}", keys=[STANDARD_KEY]) is not None
    first = identify(Signature.STANDARD, ID, headers, b"{}")
    assert identify(Signature.STANDARD, ID, headers, b"[]") == first
    assert identify(Signature.STANDARD, ID, headers | {"webhook-id": "msg_2"}, b"{}") != first


@proves("S11")
@pytest.mark.parametrize("signature", [Signature.GITHUB, Signature.STRIPE, Signature.SLACK, Signature.HMAC])
def test_a_copy_with_another_unsigned_header_is_the_same_event(signature: Signature) -> None:
    first = identify(signature, ID, {"x-github-delivery": "1"}, b"{}")
    assert first == identify(signature, ID, {"x-github-delivery": "2"}, b"{}")
    assert first != identify(signature, ID, {}, b"{ }")
    assert first != identify(signature, UUID(int=1), {}, b"{}")
    assert identify(Signature.NONE, ID, {}, b"{}") is None


@proves("S11", "T1")
def test_a_token_has_a_form_and_no_path_shows_one() -> None:
    token = new_token()
    assert is_token(token)
    assert not is_token(token[:-1] + ("a" if token[-1] != "a" else "b"))
    assert not is_token(str(ID))
    for path in (f"/v1/hooks/{token}", f"/v1/hooks/{token}/rotate", f"/api/v1/hooks/{token[:20]}", f"/x/{token}/y"):
        assert token[5:15] not in hide_tokens(path)
    assert hide_tokens("/v1/hooks/secret-with-a-typo") == "/v1/hooks/•••"
    assert hide_tokens(f"/v1/hooks/{ID}/rotate") == f"/v1/hooks/{ID}/rotate"
    assert hide_tokens("/v1/jobs") == "/v1/jobs"
    assert hashlib.sha256(token.encode()).hexdigest() not in hide_tokens(token)
