"""`ondot webhook verify`: what a receiver runs to check a call."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ondot.model.signature import sign, write_secret
from tests.cli.running import Ran, ondot
from tests.proves import proves

KEY = b"k" * 32
BODY = '{"order": 17}'


@pytest.fixture(autouse=True)
def secret() -> Iterator[None]:
    os.environ["WEBHOOK_SECRET"] = write_secret(KEY)
    yield
    del os.environ["WEBHOOK_SECRET"]


def verify(*words: str, body: str = BODY, key: bytes = KEY, age_s: int = 0, message_id: str = "e-1") -> Ran:
    timestamp = str(int(time.time()) - age_s)
    signature = sign([key], "e-1", timestamp, BODY.encode())
    headers = ["--id", message_id, "--timestamp", timestamp, "--signature", signature]
    return ondot("webhook", "verify", *headers, *words, stdin=body)


@proves("T3")
def test_an_authentic_call_is_valid() -> None:
    ran = verify()
    assert (ran.code, ran.out) == (0, "Valid.\n"), ran.err


@proves("T3")
def test_a_call_that_was_changed_is_not_valid_and_the_reason_is_shown() -> None:
    for ran, words in [
        (verify(body=BODY + "\n"), "No signature matches"),
        (verify(key=b"x" * 32), "No signature matches"),
        (verify(message_id="e-2"), "No signature matches"),
        (verify(age_s=301), "is it a replay?"),
        (verify("--tolerance", "10s", age_s=60), "is it a replay?"),
    ]:
        assert ran.code == 1, ran
        assert words in ran.out.replace("\n", " ")
    assert json.loads(verify("-o", "json", key=b"x" * 32).out)["valid"] is False


@proves("T3")
def test_the_body_and_the_secret_may_be_in_files(tmp_path: Path) -> None:
    (tmp_path / "body").write_text(BODY)
    (tmp_path / "secret").write_text(f"{write_secret(b'o' * 24)}\n{write_secret(KEY)}\n")
    assert verify(str(tmp_path / "body"), "--secret-file", str(tmp_path / "secret"), body="").code == 0


@proves("T3", "P12")
@pytest.mark.parametrize("text", ["", "whsec_short", "whsec_c2VjcmV0c2VjcmV0"])
def test_a_secret_that_cannot_be_used_is_a_usage_error_and_not_shown(text: str, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    ran = verify("--secret-file", str(path))
    assert ran.code == 2
    assert not text or text not in ran.out + ran.err


@proves("T3")
def test_bytes_that_are_not_text_are_verified_as_they_are(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"\xff\x00\r\n")
    timestamp = str(int(time.time()))
    signature = sign([KEY], "e-1", timestamp, b"\xff\x00\r\n")
    ran = ondot("webhook", "verify", str(body), "--id", "e-1", "--timestamp", timestamp, "--signature", signature)
    assert ran.code == 0, ran
