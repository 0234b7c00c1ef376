"""Durations as people write them: every form of the contract, and what is refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.duration import as_written, seconds

READ = [
    (90, 90.0),
    (0, 0.0),
    (0.25, 0.25),
    ("90s", 90.0),
    ("15m", 900.0),
    ("1h30m", 5400.0),
    ("1h 30m", 5400.0),
    ("2d", 172_800.0),
    ("1w", 604_800.0),
    ("500ms", 0.5),
    ("1m500ms", 60.5),
    ("1.5h", 5400.0),
    (" 10s ", 10.0),
    ("0s", 0.0),
    ("PT15M", 900.0),
    ("PT0.5S", 0.5),
    ("P1DT2H", 93_600.0),
    ("P2W", 1_209_600.0),
    ("PT1H30M5S", 5405.0),
]
REFUSED: list[object] = [
    "",
    " ",
    "15",
    "15 minutes",
    "m",
    "1M",
    "30m1h",
    "-5s",
    -1,
    -0.001,
    "1e3s",
    "P",
    "PT",
    "P1DT",
    "P1M",
    "P1Y",
    "P1Y2M3D",
    "PT5",
    "١٥m",
    "9" * 400 + "s",
    float("inf"),
    float("nan"),
    10**400,
    True,
    False,
    None,
    [],
    {},
    "abc",
]


@pytest.mark.parametrize(("written", "expected_s"), READ)
def test_every_form_of_the_contract_is_read(written: object, expected_s: float) -> None:
    assert seconds(written) == expected_s


@pytest.mark.parametrize("written", REFUSED, ids=lambda written: repr(written)[:20])
def test_what_is_no_duration_is_refused_with_what_is_expected(written: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds(written)


def test_months_and_years_are_refused_with_advice_to_use_days() -> None:
    with pytest.raises(ValueError, match="use days"):
        seconds("P1M")


@given(st.integers(0, 9), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_short_and_iso_forms_mean_the_same(d: int, h: int, m: int, s: int) -> None:
    assert seconds(f"{d}d{h}h{m}m{s}s") == seconds(f"P{d}DT{h}H{m}M{s}S") == 86_400 * d + 3600 * h + 60 * m + s


@given(st.one_of(st.integers(0, 10**12), st.floats(0, 1e12)))
def test_what_goes_out_comes_in_again(duration_s: float) -> None:
    assert seconds(as_written(seconds(duration_s))) == duration_s


@given(st.text(max_size=80))
def test_no_text_does_worse_than_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert seconds(text) >= 0


def test_whole_seconds_go_out_without_a_point() -> None:
    assert repr(as_written(90.0)) == "90"
    assert repr(as_written(0.5)) == "0.5"
