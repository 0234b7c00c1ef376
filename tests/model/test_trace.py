"""`traceparent` as W3C Trace Context defines it, and ids that follow from those of executions."""

from uuid import UUID

import pytest

from ondot.model.ids import uuid7
from ondot.model.trace import (
    MAX_STATE,
    Part,
    TraceContext,
    derive_span_id,
    find_trace_id,
    mix_bits,
    parse_traceparent,
    parse_tracestate,
)
from tests.proves import proves

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@proves("O3")
def test_a_valid_traceparent_is_read_and_written_as_it_was() -> None:
    for flags, is_sampled in (("01", True), ("00", False)):
        text = f"00-{TRACE}-{SPAN}-{flags}"
        context = parse_traceparent(text)
        assert context == TraceContext(TRACE, SPAN, is_sampled)
        assert context.traceparent == text
    # Other flags are ignored, and a later version may have more fields.
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-ff") == TraceContext(TRACE, SPAN, is_sampled=True)
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-follows") == TraceContext(TRACE, SPAN, is_sampled=True)


@proves("O3")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN[:-1]}٣-01",
        "00-" + "a" * 100_000,
        f"cc-{TRACE}-{SPAN}-01.more",
    ],
)
def test_everything_else_is_no_traceparent(text: str) -> None:
    assert parse_traceparent(text) is None


@proves("O3")
@pytest.mark.parametrize(
    ("headers", "state"),
    [
        (["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"], "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        (["rojo=1", "congo=2"], "rojo=1,congo=2"),
        ([" rojo=1 ,\tcongo=2", "", ","], "rojo=1,congo=2"),
        (["fw529a3039@dt=FfAn;a b"], "fw529a3039@dt=FfAn;a b"),
        (["3tenant@v=1"], "3tenant@v=1"),
        (["a=" + "~" * 256], "a=" + "~" * 256),
        # Nothing is passed on of what is not valid.
        ([], None),
        ([""], None),
        (["rojo"], None),
        (["=1"], None),
        (["rojo="], None),
        (["Rojo=1"], None),
        (["rojo=1=2"], None),
        (["1rojo=1"], None),
        (["rojo=1,rojo=2"], None),
        (["rojo=1", "rojo=2"], None),
        (["rojo=1\r\nx: y"], None),
        (["rojo=é"], None),
        (["a=" + "~" * 257], None),
        (["a" * 257 + "=1"], None),
        ([",".join(f"k{n}=1" for n in range(33))], None),
        (["a=1," * 1_000_000], None),
        (["a" * 5_000_000], None),
    ],
)
def test_a_tracestate_is_read_as_the_standard_says(headers: list[str], state: str | None) -> None:
    assert parse_tracestate(headers) == state


@proves("O3")
def test_a_tracestate_that_is_too_long_loses_long_members_first_then_the_last_ones() -> None:
    long, short = "a=" + "x" * 200, [f"k{n}={'y' * 40}" for n in range(11)]
    assert parse_tracestate([",".join([long, *short])]) == ",".join(short)
    short = [f"k{n:02}={'y' * 40}" for n in range(32)]
    cut = parse_tracestate([",".join(short)])
    assert cut == ",".join(short[:11])
    assert len(cut) <= MAX_STATE < len(",".join(short[:12]))


@proves("O3")
def test_ids_of_spans_differ_by_part_and_attempt_and_samplers_see_even_bits() -> None:
    ids = [UUID(bytes=uuid7(4096 * 1_800_000_000_000 + n, n * 0x2545F4914F6CDD1D)) for n in range(2000)]
    one = ids[7]
    spans = {derive_span_id(one, part, attempt_no) for part in Part for attempt_no in range(50)}
    assert len(spans) == len(Part) * 50
    assert all(len(span) == 16 for span in spans)
    share = sum(mix_bits(id_) < 2**64 // 10 for id_ in ids) / len(ids)
    assert 0.05 < share < 0.15
    assert find_trace_id(None, one) == one.hex
    assert find_trace_id(f"00-{TRACE}-{SPAN}-00", one) == TRACE
