"""Errors that differ only in what changes from run to run have one fingerprint, others have not."""

import time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.fingerprint import fingerprint
from tests.proves import proves


def of(message: str, **facts: object) -> str:
    return fingerprint({"code": "exception", "type": "ValueError", "message": message, **facts})


@proves("E10")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 is gone", "order 99102 is gone"),
        (
            "no row 0190a0b0-7c11-7c11-a0b3-6f1e2d3c4b5a in orders",
            "no row 0190FFFF-7c11-7c11-a0b3-6f1e2d3c4b5b in orders",
        ),
        ("timed out at 2026-11-15T12:00:00.123Z", "timed out at 2027-01-01 00:00:01+01:00"),
        ("KeyError: 'user_id'", "KeyError: 'name'"),
        ('column "a" does not exist', 'column "b c" does not exist'),
        ("<Order object at 0x7f12ab>", "<Order object at 0x55aa00ff>"),
        ("commit 9fceb02d0ae5 is unknown", "commit 1b2c3d4e5f60 is unknown"),
        ("/var/run/job-17/out.txt is full", "/var/run/job-181/out.txt is full"),
        ("cannot open /tmp/tmpabc_x/data", "cannot open /tmp/tmpq9zz/data"),
        ("cannot connect to 10.0.0.1:5432", "cannot connect to 192.168.17.4:6000"),
        ("took 1.5 s, at most 1 s", "took 17 s, at most 3,5 s"),
        ("GET https://example.com/a?page=2&x=y failed", "GET https://example.com/a?page=x failed"),
        ("pod api-7d9f8b6c5-x2xkq died", "pod api-66b4c7f9d-qqq1z died"),
        ("balance is -5", "balance is 5"),
        ("two  blanks", "two blanks "),
    ],
)
def test_messages_that_differ_in_what_changes_from_run_to_run_are_alike(one: str, other: str) -> None:
    assert of(one) == of(other)


@proves("E10")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("connection refused", "connection reset"),
        ("order 17 is gone", "order 17 is late"),
        ("can't reach it, won't try", "can't reach it, will try"),
        ("https://one.example/a failed", "https://two.example/a failed"),
        ("/var/data is full", "/var/log is full"),
    ],
)
def test_messages_that_say_something_else_are_not(one: str, other: str) -> None:
    assert of(one) != of(other)


@proves("E10")
@pytest.mark.parametrize(
    "facts", [{"code": "timeout"}, {"type": "KeyError"}, {"status": 503}, {"exit_code": 2}, {"signal": "SIGKILL"}]
)
def test_another_code_type_status_exit_code_or_signal_is_another_error(facts: dict[str, object]) -> None:
    assert of("it broke", **facts) != of("it broke")


@proves("E10")
def test_the_traceback_and_the_fingerprint_itself_do_not_count() -> None:
    first = of("it broke", detail="line 17")
    assert of("it broke", detail="line 18", fingerprint=first) == first


@proves("E10")
def test_the_fingerprint_of_an_error_is_the_same_in_every_release() -> None:
    assert fingerprint({"code": "http_status", "status": 503, "message": "HTTP 503 after 12 ms"}) == "906da43d173b"
    assert len(fingerprint({})) == 12


@proves("E10")
@given(
    st.sampled_from(["no order {}", "worker {} is lost", "{}: gone", "at /orders/{}/items", "(id={})"]),
    st.uuids() | st.integers(0) | st.datetimes().map(lambda at: at.isoformat()),
    st.uuids() | st.integers(0) | st.datetimes().map(lambda at: at.isoformat()),
)
def test_whatever_id_number_or_instant_stands_in_a_message_it_is_alike(
    template: str, one: UUID | int | str, other: UUID | int | str
) -> None:
    assert of(template.format(one)) == of(template.format(other))


@proves("E10")
@given(st.text(max_size=300))
def test_any_text_has_a_fingerprint(text: str) -> None:
    assert len(of(text)) == 12
    assert of(text) == of(text)


@proves("E10")
@pytest.mark.parametrize("part", ["'", '"a', "/", "a1-", "0x", "?=", "(", "1:", "“", "/1/", "-1"])
def test_a_hostile_message_takes_no_longer_than_another(part: str) -> None:
    began_s = time.process_time()
    of(part * 100_000)
    assert time.process_time() - began_s < 0.5
