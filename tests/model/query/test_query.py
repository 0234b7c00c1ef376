"""The query language: what it reads, what it rejects, and that printing is the inverse of parsing."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.errors import InvalidQuery
from ondot.model.query import FIELDS, Kind, Of, Op, Query, Term, Value, parse, render
from ondot.model.query.query import duration_s, id_range, instant
from tests.proves import proves

NOW = datetime(2026, 11, 16, 19, 30, tzinfo=UTC)

_TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
_SAMPLES = {
    Kind.CHOICE: None,
    Kind.ID: st.sampled_from(["019a", "019A8453-5d2e", "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"]),
    Kind.DURATION: st.sampled_from(["5m", "90", "1h30m", "PT15M", "0"]),
    Kind.NUMBER: st.sampled_from(["0", "7", "999999999"]),
    Kind.INSTANT: st.sampled_from(["24h", "2026-11-15", "2026-11-15T06:00+01:00", "yesterday", "NOW"]),
}


@st.composite
def _terms(draw: st.DrawFn, of: Of) -> Term:
    name = draw(st.sampled_from(["", *FIELDS[of]]))
    field = FIELDS[of].get(name)
    kind = field.kind if field else Kind.PART
    op = Op.IS
    path: tuple[str, ...] = ()
    values = st.lists(_TEXT, min_size=1, max_size=4).map(tuple).map(Value)
    if field and kind is Kind.CHOICE:
        values = st.sampled_from(field.choices).map(lambda text: Value((text,)))
    elif kind in _SAMPLES:
        values = _SAMPLES[kind].map(lambda text: Value((text,)))  # type: ignore[union-attr]
    if kind is Kind.LABEL:
        path = (draw(_TEXT),)
    if kind is Kind.PAYLOAD:
        path = tuple(draw(st.lists(_TEXT, min_size=1, max_size=3)))
    if field and field.is_compared:
        op = draw(st.sampled_from(list(Op)))
        if kind is Kind.PAYLOAD and op is not Op.IS:
            values = st.sampled_from(["42", "-0.5"]).map(lambda text: Value((text,)))
    most = 1 if op is not Op.IS or kind is Kind.INSTANT else 3
    return Term(name, tuple(draw(st.lists(values, min_size=1, max_size=most))), op, path, draw(st.booleans()))


@st.composite
def _queries(draw: st.DrawFn) -> Query:
    of = draw(st.sampled_from(list(FIELDS)))
    return Query(of, tuple(draw(st.lists(_terms(of), max_size=5))))


@given(_queries())
@proves("O1")
def test_a_query_that_is_printed_and_parsed_is_the_same(query: Query) -> None:
    assert parse(render(query), query.of) == query


@given(st.text(max_size=60), st.sampled_from(list(FIELDS)))
@proves("O1", "O6")
def test_any_text_is_a_query_or_is_rejected_with_a_position(text: str, of: str) -> None:
    facts: dict[str, object] = {}
    query = Query("jobs")
    try:
        query = parse(text, of)  # type: ignore[arg-type]
    except InvalidQuery as error:
        facts = error.facts
    assert parse(render(query), query.of) == query
    assert not facts or (1 <= int(str(facts["position"])) <= len(text) + 1 and facts["expected"])


@proves("O1")
def test_the_query_of_the_documents_is_read_as_it_looks() -> None:
    query = parse('state:failed,cancelled job:nightly* label.team=bi error:"timed out" took>5m payload.a.b=42 -x "y z"')
    assert [
        (term.name, term.op, term.path, term.is_negated, [value.text for value in term.values]) for term in query.terms
    ] == [
        ("state", Op.IS, (), False, ["failed", "cancelled"]),
        ("job", Op.IS, (), False, ["nightly*"]),
        ("label", Op.IS, ("team",), False, ["bi"]),
        ("error", Op.IS, (), False, ["timed out"]),
        ("took", Op.OVER, (), False, ["5m"]),
        ("payload", Op.IS, ("a", "b"), False, ["42"]),
        ("", Op.IS, (), True, ["x"]),
        ("", Op.IS, (), False, ["y z"]),
    ]
    assert parse("label.app.io/name=x").terms[0].path == ("app.io/name",)
    assert parse("state!=failed").terms == parse("-state:failed").terms
    assert parse("  ").terms == ()


@pytest.mark.parametrize(
    ("text", "position", "words", "near"),
    [
        ("stat:failed", 1, "Did you mean state?", "state"),
        ("state:failed jobs:x", 14, "Did you mean job?", "job"),
        ("state:faild", 7, "Did you mean failed?", "failed"),
        ("state:", 7, "A value is missing", None),
        ('job:"nightly', 5, "not closed", None),
        ("took>abc", 6, "must be a duration", None),
        ("took>999999999999999999999d", 6, "at most 30 years", None),
        ("attempt>1e9", 9, "whole number", None),
        ("attempt>" + "9" * 400, 9, "whole number", None),
        ("since:2026-11-15T12:00[Mars/Phobos]", 7, "must be a duration back from now", None),
        ("since:0001-01-01T00:00+23:59", 7, "between 1970 and 2200", None),
        ("since:1h,2h", 6, "takes one value", None),
        ("job>x", 4, "cannot be compared", None),
        ("label=x", 1, "needs a key", None),
        ("state.x=failed", 1, "has no parts", None),
        ("id:xyz", 4, "first 4 characters", None),
        ("state:fail*", 7, "no wildcards", None),
        ("payload.x>1e400000", 11, "a number", None),
        ("job:a\0b", 6, "NUL", None),
        ("job:" + "*" * 20, 5, "at most 10 stars", None),
        ("x " * 41, 81, "at most 40 terms", None),
        ("state:" + ",".join(["failed"] * 102), 713, "at most 100 values", None),
        ("http://example.com", 1, "put it in quotes", None),
    ],
)
@proves("O1", "O6")
def test_an_error_names_its_position_and_what_was_expected(
    text: str, position: int, words: str, near: str | None
) -> None:
    with pytest.raises(InvalidQuery) as raised:
        parse(text)
    assert words in raised.value.message
    assert (raised.value.facts["position"], raised.value.facts.get("near")) == (position, near)


@proves("O6")
def test_a_text_of_100_kb_is_rejected_before_it_is_read() -> None:
    for text in ("a " * 50_000, '"' * 100_000, "\\" * 100_000, "job:" + "*" * 100_000):
        with pytest.raises(InvalidQuery, match="2,000 are allowed"):
            parse(text)


@proves("O6")
def test_characters_that_mean_something_to_like_are_escaped() -> None:
    [value] = parse(r'error:50%_"a\\b"*').terms[0].values
    assert value.as_like(part=True) == r"%50\%\_a\\b%%"


@proves("O1")
def test_a_number_is_no_instant_but_a_duration_in_seconds() -> None:
    for text in ("since:24", "until:24", "fire>=24"):
        with pytest.raises(InvalidQuery, match="24h, 24m or 24s"):
            parse(text)
    [term] = parse("took>5").terms
    assert duration_s(term.values[0]) == 5


@proves("O1", "O6")
def test_patterns_ignore_the_case_of_every_letter_and_stay_few() -> None:
    [ascii_only] = parse("job:Nightly*").terms[0].values
    assert ascii_only.as_ilikes() == ["Nightly%"]
    [value] = parse("job:äß*").terms[0].values
    assert sorted(value.as_ilikes()) == ["Äß%", "äß%"]
    [long] = parse('"ежемесячный отчёт"').terms[0].values
    assert sorted(long.as_ilikes(part=True)) == sorted(
        ["%ежемесячный отчёт%", "%ЕЖЕМЕСЯЧНЫЙ ОТЧЁТ%", "%Ежемесячный отчёт%", "%Ежемесячный Отчёт%"]
    )
    [most] = parse("é" * 1000).terms[0].values
    assert len(most.as_ilikes()) <= 5


@proves("O1")
def test_instants_are_absolute_or_count_back_from_now() -> None:
    assert instant(Value(("24h",)), NOW) == NOW - timedelta(days=1)
    assert instant(Value(("yesterday",)), NOW) == datetime(2026, 11, 15, tzinfo=UTC)
    assert instant(Value(("2026-11-15T06:00+01:00",)), NOW) == datetime(2026, 11, 15, 5, tzinfo=UTC)
    first, last = id_range(Value(("019a",)))
    assert (str(first)[:4], str(last)[:4]) == ("019a", "019a")
