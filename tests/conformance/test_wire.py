"""How hints and beats look on the wire: what is sent is read again, and nothing else is (C4)."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.beats import Beat
from ondot.model.ids import PoolNo
from ondot.ports.transport import Wake
from ondot.telemetry.metrics import HINTS_UNREADABLE
from ondot.transports.wire import LONGEST, decode, encode_beat, encode_wake, receive
from tests.proves import proves

pool_nos = st.integers(1, 2**31 - 1).map(PoolNo)


@given(pool_nos, st.datetimes(timezones=st.just(UTC)))
def test_a_hint_is_read_as_it_was_sent(pool_no: PoolNo, ready_at: datetime) -> None:
    message = encode_wake(Wake(pool_no, ready_at))
    assert decode(message) == Wake(pool_no, ready_at)
    assert len(message) <= LONGEST


@given(pool_nos, st.uuids(), st.integers(0, 2**63))
def test_a_beat_is_read_as_it_was_sent(pool_no: PoolNo, sender: object, number: int) -> None:
    beat = Beat(sender, number)  # type: ignore[arg-type]
    assert decode(encode_beat(beat, pool_no)) == (beat, pool_no)


@proves("C4")
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_any_bytes_are_read_without_an_error(message: bytes) -> None:
    decode(message)


@proves("C4")
@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"wake",
        b"wake 1 yesterday",
        b"wake 1 2026-11-15T12:00:00",
        b"wake 0 2026-11-15T12:00:00+00:00",
        b"wake 9999999999 2026-11-15T12:00:00+00:00",
        b"wake 1 2026-11-15T12:00:00+00:00 more",
        b"beat 1 00000000-0000-0000-0000-000000000001 x",
        b"beat 1 nobody 1",
        "wake 1 2026‑11‑15".encode(),
        b"\xff\xfe",
        b"wake 1 2026-11-15T12:00:00+00:00" + b" " * LONGEST,
    ],
)
def test_what_is_no_message_of_ours_is_counted_and_ignored(message: bytes) -> None:
    before = HINTS_UNREADABLE.labels("wire-test").value
    receive("wire-test", message, _fail, _fail)
    assert HINTS_UNREADABLE.labels("wire-test").value == before + 1


def _fail(*heard: object) -> None:
    raise AssertionError(f"heard {heard}")
