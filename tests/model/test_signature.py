"""Signatures as other libraries see them, and what `find_fault` rejects."""

import base64
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from ondot.model.signature import derive_key, find_fault, parse_secret, sign, signing_host, write_secret
from tests.proves import proves

KEYS = st.binary(min_size=24, max_size=64)


def headers_of(keys: list[bytes], body: bytes, *, message_id: str = "msg", at_s: int | None = None) -> dict[str, str]:
    timestamp = str(int(datetime.now(UTC).timestamp()) if at_s is None else at_s)
    signature = sign(keys, message_id, timestamp, body)
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature}


@proves("T3")
def test_the_signature_is_that_of_the_specification() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signature = sign([parse_secret(secret)], "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@proves("T3")
@given(key=KEYS, body=st.text(max_size=100), message_id=st.uuids())
def test_the_standard_library_of_receivers_accepts_it(key: bytes, body: str, message_id: object) -> None:
    sent = json.dumps(body).encode()
    given_headers = headers_of([b"x" * 32, key], sent, message_id=str(message_id))
    assert Webhook(write_secret(key)).verify(sent, given_headers) == body


@proves("T3")
@given(key=KEYS)
def test_a_secret_is_read_as_it_was_written(key: bytes) -> None:
    assert parse_secret(write_secret(key)) == key
    assert parse_secret(base64.b64encode(key).decode() + "\n") == key


@proves("T3")
@pytest.mark.parametrize(
    "text", ["", "whsec_", "whsec_abc", "whsec_" + "A" * 28, "whsec_" + "A" * 92, "ünïcode", "!" * 40]
)
def test_a_secret_of_another_form_is_rejected_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="a secret") as refusal:
        parse_secret(text)
    assert len(text) < 10 or text not in str(refusal.value)


@proves("T3", "P12")
def test_each_host_has_a_key_of_its_own() -> None:
    root = b"r" * 32
    keys = {derive_key(root, host) for host in ("a.example", "b.example", "example", "a.example.")}
    assert len(keys) == 4
    assert root not in keys
    assert derive_key(b"s" * 32, "a.example") != derive_key(root, "a.example")


@proves("T3")
@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("api.example.com", "api.example.com"),
        ("API.Example.com.", "api.example.com"),
        ("https://api.example.com:8443/hook?x=1", "api.example.com"),
        ("api.example.com:443", "api.example.com"),
        ("127.0.0.1:9000", "127.0.0.1"),
        ("[::1]:9000", "::1"),
        ("::1", "::1"),
        ("http://bücher.example/", "xn--bcher-kva.example"),
    ],
)
def test_a_host_may_be_written_as_a_url(written: str, host: str) -> None:
    assert signing_host(written) == host


@proves("T3")
@pytest.mark.parametrize("written", ["", "  ", "https://", "a b", "http://[::1", "ex\namp.le"])
def test_anything_else_is_no_host(written: str) -> None:
    with pytest.raises(ValueError, match="not a host"):
        signing_host(written)


NOW_S = 1_900_000_000
KEY, OLD_KEY, BODY = b"k" * 32, b"o" * 32, b'{"n": 1}'


def fault(**changes: object) -> str | None:
    sent = headers_of([KEY], BODY, at_s=NOW_S)
    asked: dict[str, object] = {
        "message_id": sent["webhook-id"],
        "timestamp": sent["webhook-timestamp"],
        "signatures": sent["webhook-signature"],
        "body": BODY,
        "now_s": NOW_S + 10.0,
    }
    keys = changes.pop("keys", [KEY])
    return find_fault(keys, **{**asked, **changes})  # type: ignore[arg-type]


@proves("T3")
def test_a_call_is_authentic_with_any_of_the_keys_and_any_of_the_signatures() -> None:
    assert fault() is None
    assert fault(keys=[OLD_KEY, KEY]) is None
    both = headers_of([KEY, OLD_KEY], BODY, at_s=NOW_S)["webhook-signature"]
    assert fault(keys=[OLD_KEY], signatures=both) is None
    assert fault(signatures="v2,abc " + both) is None


@proves("T3")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"body": BODY + b" "}, "No signature matches"),
        ({"body": b""}, "No signature matches"),
        ({"message_id": "msg2"}, "No signature matches"),
        ({"timestamp": str(NOW_S + 1)}, "No signature matches"),
        ({"keys": [OLD_KEY]}, "No signature matches"),
        ({"keys": []}, "No signature matches"),
        ({"signatures": "v1,"}, "No signature matches"),
        ({"signatures": "v1,ü"}, "No signature matches"),
        ({"signatures": "v1a,xyz"}, "version v1"),
        ({"signatures": ""}, "no webhook-signature"),
        ({"message_id": ""}, "no webhook-id"),
        ({"timestamp": "soon"}, "whole seconds"),
        ({"timestamp": "1e9"}, "whole seconds"),
        ({"timestamp": "٣"}, "whole seconds"),
        ({"now_s": NOW_S + 301.0}, "replay"),
        ({"now_s": NOW_S - 301.0}, "clock"),
    ],
)
def test_a_call_that_was_changed_is_not_authentic(changes: dict[str, object], words: str) -> None:
    found = fault(**changes)
    assert found is not None
    assert words in found


@proves("T3")
def test_the_standard_library_rejects_the_same() -> None:
    webhook = Webhook(write_secret(KEY))
    now_s = int(datetime.now(UTC).timestamp())
    good = headers_of([KEY], BODY)
    for body, sent in [
        (b'{"n": 2}', good),
        (BODY, {**good, "webhook-id": "other"}),
        (BODY, headers_of([OLD_KEY], BODY)),
        (BODY, headers_of([KEY], BODY, at_s=now_s - 301)),
    ]:
        with pytest.raises(WebhookVerificationError):
            webhook.verify(body, sent)
