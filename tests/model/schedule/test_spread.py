"""S2: `H` makes values for each job that never change and are spread evenly over the field."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from uuid import UUID

import msgspec
import pytest

from ondot.model.schedule import Cron, Interval, Schedule, check, for_job, in_words, next_fire
from ondot.model.schedule.cron import parsed_of
from ondot.model.schedule.expression import expression
from ondot.model.schedule.spread import is_spread, resolve, spread_of
from tests.model.schedule.making import cron, fires_after, next_fires, utc
from tests.proves import proves

JOBS = [UUID(int=n) for n in range(6000)]
SPREADS = [spread_of(job) for job in JOBS]
NOON = utc("2026-11-15 12:00")

# A job that has run at this time of day must go on to do so: a change of the hash would move every job that has an H.
PINNED = ["29 9 * * *", "44 20 * * *", "30 0 * * *"]


def surprise(counts: Counter[int], values: range) -> float:
    """Chi-square over its degrees of freedom: about 1 if the values are even."""
    expected = sum(counts.values()) / len(values)
    assert set(counts) <= set(values)
    return sum((counts[value] - expected) ** 2 / expected for value in values) / (len(values) - 1)


@proves("S2")
@pytest.mark.parametrize(
    ("expression_text", "field", "values"),
    [
        ("H * * * * *", 0, range(60)),
        ("H * * * *", 0, range(60)),
        ("0 H * * *", 1, range(24)),
        ("0 0 H * *", 2, range(1, 29)),
        ("0 0 1 H *", 3, range(1, 13)),
        ("0 0 * * H", 4, range(7)),
        ("H(10-19) * * * *", 0, range(10, 20)),
        ("0 0 1 H(JAN-JUN) *", 3, range(1, 7)),
        ("0 0 * * H(mon-fri)", 4, range(1, 6)),
        ("0 0 H(29-31) * *", 2, range(29, 32)),
    ],
)
def test_jobs_are_spread_evenly_over_a_field(expression_text: str, field: int, values: range) -> None:
    counts = Counter(int(resolve(expression_text, spread).split()[field]) for spread in SPREADS)
    assert set(counts) == set(values)
    assert surprise(counts, values) < 2


@proves("S2")
def test_the_minute_says_nothing_about_the_hour_and_one_term_nothing_about_the_next() -> None:
    fields = [resolve("H(0-3),H(4-7) H(0-3) * * *", spread).split()[:2] for spread in SPREADS]
    pairs = Counter(int(minutes[0]) * 4 + int(hour) for minutes, hour in fields)
    assert surprise(pairs, range(16)) < 2
    terms = Counter(int(minutes[0]) * 4 + int(minutes[2]) - 4 for minutes, _ in fields)
    assert surprise(terms, range(16)) < 2


@proves("S2")
@pytest.mark.parametrize(
    ("text", "begins", "last", "step"),
    [("H/15 * * * *", range(15), 59, 15), ("H(0-29)/10 * * * *", range(10), 29, 10), ("H/1 * * * *", range(1), 59, 1)],
)
def test_a_step_begins_within_the_first_one_and_goes_on(text: str, begins: range, last: int, step: int) -> None:
    seen = {resolve(text, spread) for spread in SPREADS}
    assert seen == {f"{first}-{last}/{step} * * * *" for first in begins}


@proves("S2")
def test_a_job_keeps_its_values_and_they_are_those_of_every_release() -> None:
    assert [spread_of(job) for job in JOBS[:3]] == SPREADS[:3]
    assert [resolve("H H * * *", spread) for spread in SPREADS[:3]] == PINNED
    assert 0 not in SPREADS
    assert max(SPREADS) < 2**53  # exact in every reader's JSON


@proves("S2")
def test_h_stands_in_lists_in_any_case_and_beside_names_that_contain_it() -> None:
    assert is_spread("5,h 0 * * *")
    assert not is_spread("0 0 * * THU")
    assert not is_spread("@hourly")
    assert resolve("0 0 * MAR THU", 7) == "0 0 * MAR THU"
    minute = resolve("5,h 9 * * thu", SPREADS[0]).split()[0]
    assert minute.startswith("5,")
    assert minute[2:].isdigit()


@proves("S2")
def test_a_job_gets_its_seed_in_each_rule_where_h_stands_and_nowhere_else() -> None:
    plain, hashed = Cron(expression="0 9 * * *"), Cron(expression="H 9 * * *")
    every = Interval(every_s=60, anchor_at=NOON)
    schedule = for_job(Schedule(when=hashed, include=(plain, hashed, every), exclude=(hashed, plain)), JOBS[1])
    rules = [schedule.when, *schedule.include, *schedule.exclude]
    assert [getattr(rule, "spread", None) for rule in rules] == [SPREADS[1], 0, SPREADS[1], None, SPREADS[1], 0]
    untouched = Schedule(when=plain, include=(every,))
    assert for_job(untouched, JOBS[1]) is untouched
    decoded = msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule)
    assert next_fires(decoded, "2026-11-15 12:00", 3) == next_fires(schedule, "2026-11-15 12:00", 3)


@proves("S2")
def test_a_job_fires_at_its_own_time_once_a_day() -> None:
    schedule = for_job(cron("H H * * *", "Europe/Berlin"), JOBS[3])
    check(schedule)
    fires = list(islice(fires_after(schedule, datetime(2026, 4, 1, tzinfo=UTC)), 100))
    assert {later - sooner for sooner, later in pairwise(fires)} == {timedelta(days=1)}


@proves("S2", "S9")
def test_before_there_is_a_job_the_words_say_that_each_gets_its_own_values() -> None:
    preview = cron("H H * * *")
    check(preview)
    assert next_fire(preview, NOON) is not None
    assert in_words(preview).endswith(", UTC, for example: each job gets its own values for H")
    assert "each job" not in in_words(for_job(preview, JOBS[0]))


@proves("S2")
def test_jobs_that_h_spreads_share_the_expressions_they_end_up_with() -> None:
    parsed = {id(parsed_of(Cron(expression="H 3 * * *", spread=spread))) for spread in SPREADS}
    assert len(parsed) == 60
    assert expression("17 3 * * *") in [parsed_of(Cron(expression="H 3 * * *", spread=spread)) for spread in SPREADS]
