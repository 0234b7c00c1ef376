"""Values of secrets in text: every common form of them is removed, and JSON stays JSON."""

import base64
import json
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.outcome import AttemptError, Cancelled, Failed, Interrupted, NotBegun, Report, Succeeded
from ondot.model.scrub import Scrubber, SecretValues
from ondot.model.secret import MASK
from tests.proves import proves

VALUE = 's3cr"et/käse+&= \\x'
_values = st.text(st.characters(codec="utf-8"), min_size=8, max_size=40).filter(lambda v: len(v.strip()) >= 8)


def forms(value: str) -> list[str]:
    raw = value.encode()
    return [
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(value, safe=""),
        quote_plus(value),
        raw.hex(),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
    ]


@proves("T5")
@given(value=_values)
def test_no_form_of_a_value_is_left(value: str) -> None:
    scrubber = Scrubber([value])
    for form in forms(value):
        scrubbed = scrubber.text(f"<{form}>")
        assert MASK in scrubbed
        assert form not in scrubbed


@proves("T5")
@given(value=_values, before=st.binary(max_size=9), after=st.binary(max_size=9))
def test_a_value_inside_a_longer_text_in_base64_is_removed(value: str, before: bytes, after: bytes) -> None:
    encoded = base64.b64encode(before + value.encode() + after).decode()
    scrubbed = Scrubber([value]).text(encoded)
    assert MASK in scrubbed
    left = scrubbed.replace(MASK, "").rstrip("=")
    # Only characters that also depend on the neighbours of the value may be left of it.
    assert len(left) * 6 / 8 <= len(before) + len(after) + 4


@proves("T5")
def test_a_value_of_digits_is_removed_from_json_that_stays_valid() -> None:
    scrubbed = Scrubber(["12345678"]).json('{"id": 12345678, "a12345678": ["x12345678y", 1.5, true, null]}')
    assert msgspec.json.decode(scrubbed) == {"id": MASK, f"a{MASK}": [f"x{MASK}y", 1.5, True, None]}


@proves("T5")
def test_json_in_json_is_scrubbed() -> None:
    inner = json.dumps({"key": VALUE})
    assert VALUE.encode("unicode_escape").decode() not in Scrubber([VALUE]).json(json.dumps({"body": inner}))
    assert "käse" not in Scrubber([VALUE]).json(json.dumps({"body": inner}, ensure_ascii=False))


@proves("T5")
def test_each_long_line_of_a_value_with_several_lines_is_removed() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\nab=\n-----END KEY-----"
    scrubber = Scrubber([pem])
    assert [scrubber.text(line) for line in pem.splitlines()] == [MASK, MASK, MASK, "ab=", MASK]


@proves("T5")
def test_the_rest_of_a_value_at_a_cut_is_removed() -> None:
    value = "".join(chr(97 + i % 26) + str(i) for i in range(40))
    text = f"{value[10:]} {'.' * 5_000} {value[:30]}"
    scrubbed = Scrubber([value]).text(text)
    assert scrubbed == f"{MASK} {'.' * 5_000} {MASK}"


@proves("T5")
@pytest.mark.parametrize(
    "report",
    [
        Succeeded(json.dumps({"echo": VALUE})),
        Failed(
            AttemptError("x", f"no {VALUE}", f"detail {VALUE}", {"location": VALUE, "n": 3}), result=json.dumps(VALUE)
        ),
        Cancelled(f"with {VALUE}", result=json.dumps([VALUE])),
        Interrupted(f"by {VALUE}", detail=f"{VALUE}!"),
        NotBegun("stopping"),
    ],
)
def test_every_part_of_a_report_is_scrubbed(report: Report) -> None:
    scrubbed = repr(Scrubber([VALUE]).report(report))
    assert VALUE not in scrubbed
    assert "käse" not in scrubbed


@proves("T5")
def test_a_short_value_changes_nothing_and_no_representation_shows_a_value() -> None:
    assert Scrubber(["abc"]).text("abc abcdef") == "abc abcdef"
    values = SecretValues({"stripe": VALUE}, ["Bearer other-value"])
    assert VALUE not in repr(values)
    assert values.names == ["stripe"]
    assert values.scrubber.text("Bearer other-value") == MASK


@proves("T5")
def test_the_largest_values_are_scrubbed_too() -> None:
    value = "".join(f"{number:x}-" for number in range(12_000))[:65_536]
    lines = "\n".join(f"line {number} of a long value" for number in range(2_000))
    scrubber = Scrubber([value, lines])
    assert scrubber.text(f"a {value} b") == f"a {MASK} b"
    assert scrubber.text("line 1999 of a long value!") == f"{MASK}!"
    assert scrubber.text("." * 20_000) == "." * 20_000
