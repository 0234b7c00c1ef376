"""Schedules of several rules, recurrence rules, anchors: how they are read, and what a new version keeps."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ondot.document.parse import job_spec, patched_spec
from ondot.document.render import render_schedule, render_spec
from ondot.document.requests import preview_request, resume_missed
from ondot.model.errors import InvalidBody
from ondot.model.ids import JobId
from ondot.model.job import JobSpec
from ondot.model.schedule import Calendar, Cron, Dst, Interval, Once, Rrule, Schedule, for_job, preview
from tests.proves import proves

NOW = datetime(2026, 11, 15, 12, 0, 0, 250_000, tzinfo=UTC)
LATER = NOW + timedelta(minutes=7)
BERLIN = "Europe/Berlin"


def job(**schedule: Any) -> JobSpec:
    return job_spec({"name": "n", "function": "f", "schedule": schedule}, NOW)


def schedule(**fields: Any) -> Schedule:
    found = job(**fields).schedule
    assert found is not None
    return found


def wall(*parts: int) -> datetime:
    return datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001  wall time


@proves("S10")
@pytest.mark.parametrize(
    ("fields", "begins", "zone", "is_anchored"),
    [
        ({"rrule": "FREQ=DAILY"}, wall(2026, 11, 15, 12), "UTC", False),
        ({"rrule": "FREQ=DAILY", "timezone": BERLIN}, wall(2026, 11, 15, 13), BERLIN, False),
        (
            {"rrule": "FREQ=DAILY", "timezone": BERLIN, "start_at": "2027-06-01T08:00:00Z"},
            wall(2027, 6, 1, 10),
            BERLIN,
            False,
        ),
        ({"rrule": "FREQ=DAILY", "start_at": "2027-06-01T08:00:00.5Z"}, wall(2027, 6, 1, 8, 0, 1), "UTC", False),
        ({"rrule": "FREQ=DAILY", "anchor_at": "2026-01-01T09:00:00Z"}, wall(2026, 1, 1, 9), "UTC", True),
        ({"rrule": "DTSTART:20260101T090000\nRRULE:FREQ=DAILY"}, wall(2026, 1, 1, 9), "UTC", True),
        (
            {"rrule": "DTSTART:20260101T090000\nRRULE:FREQ=DAILY", "timezone": BERLIN},
            wall(2026, 1, 1, 9),
            BERLIN,
            True,
        ),
        (
            {"rrule": f"DTSTART;TZID={BERLIN}:20260101T090000\nRRULE:FREQ=DAILY"},
            wall(2026, 1, 1, 9),
            BERLIN,
            True,
        ),
        (
            {"rrule": f"DTSTART;TZID={BERLIN}:20260101T090000\nRRULE:FREQ=DAILY", "timezone": BERLIN},
            wall(2026, 1, 1, 9),
            BERLIN,
            True,
        ),
        ({"rrule": "DTSTART:20260101T090000Z\nRRULE:FREQ=DAILY"}, wall(2026, 1, 1, 9), "UTC", True),
    ],
)
def test_a_recurrence_rule_begins_at_its_dtstart_or_its_start_or_now(
    fields: dict[str, Any], begins: datetime, zone: str, is_anchored: bool
) -> None:
    expected = Rrule(text=fields["rrule"], begins=begins, timezone=zone, is_anchored=is_anchored)
    assert schedule(**fields).when == expected


@proves("S10", "S4")
def test_a_recurrence_rule_takes_a_policy_for_the_clocks() -> None:
    when = schedule(rrule="FREQ=DAILY", dst={"fold": "both"}).when
    assert isinstance(when, Rrule)
    assert when.dst == Dst(fold="both")


@proves("S2", "S3")
def test_at_every_in_cron_is_an_interval_and_is_written_as_one() -> None:
    found = schedule(cron="@every 90s", timezone=BERLIN)
    assert found.when == Interval(every_s=90, anchor_at=NOW)
    assert render_schedule(found)["every"] == 90
    anchored = schedule(cron="@every 1h30m", anchor_at="2026-01-01T00:00:00Z").when
    assert anchored == Interval(every_s=5400, anchor_at=datetime(2026, 1, 1, tzinfo=UTC), is_anchored=True)


@proves("S2")
def test_an_h_in_cron_is_read_and_written_unchanged() -> None:
    found = schedule(cron="H H(0-7) * * *")
    assert found.when == Cron(expression="H H(0-7) * * *")
    seeded = for_job(found, JobId(_id(1)))
    assert seeded != found
    assert render_schedule(seeded) == render_schedule(found)


@proves("S2", "S9")
def test_a_preview_can_use_the_h_values_of_a_job() -> None:
    body = {"cron": "H H * * *", "n": 1}
    fires = {
        preview(*preview_request({**body, "job_id": str(_id(n))}, NOW)).fires[0].fire_at.timetz() for n in range(20)
    }
    assert len(fires) > 10
    asked, _, _ = preview_request({**body, "jobId": str(_id(3))}, NOW)
    assert asked == for_job(schedule(cron="H H * * *"), JobId(_id(3)))


def fires(after: str | None, n: int = 3, now: datetime = NOW, **fields: Any) -> list[str]:
    body = {"schedule": fields, "n": n} | ({} if after is None else {"after": after})
    return [f"{fire.fire_at:%Y-%m-%d %H:%M:%S}" for fire in preview(*preview_request(body, now)).fires]


@proves("S9")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"cron": "0 9 * * *", "end_at": "2020-06-03T00:00:00Z"},
            ["2020-06-01 09:00:00", "2020-06-02 09:00:00"],
        ),
        ({"at": "2021-01-01T00:00:00Z"}, ["2021-01-01 00:00:00"]),
        ({"at": "2021-01-01T00:00:00", "timezone": BERLIN}, ["2020-12-31 23:00:00"]),
        ({"at": "2020-06-01T00:00:00Z"}, []),
        ({"at": "2019-01-01T00:00:00Z"}, []),
        ({"in": "10m"}, ["2020-06-01 00:10:00"]),
        ({"every": "1h"}, ["2020-06-01 01:00:00", "2020-06-01 02:00:00", "2020-06-01 03:00:00"]),
        ({"cron": "@every 1h", "max_fires": 1}, ["2020-06-01 01:00:00"]),
        ({"cron": "@daily", "end_at": "2019-01-01T00:00:00Z"}, []),
        (
            {"rrule": "FREQ=YEARLY;BYMONTH=1;BYMONTHDAY=1;BYHOUR=9;UNTIL=20220601"},
            ["2021-01-01 09:00:00", "2022-01-01 09:00:00"],
        ),
        ({"rrule": "DTSTART:20200530T090000\nRRULE:FREQ=DAILY;COUNT=3"}, ["2020-06-01 09:00:00"]),
        ({"rrule": "DTSTART:20190530T090000\nRRULE:FREQ=DAILY;COUNT=3"}, []),
        ({"rrule": "RDATE:20210501T120000", "anchor_at": "2020-01-01T00:00:00Z"}, ["2021-05-01 12:00:00"]),
        (
            {"cron": "0 0 1 1 *", "end_at": "2021-06-01T00:00:00Z", "include": [{"every": "300d"}]},
            ["2021-01-01 00:00:00", "2021-03-28 00:00:00"],
        ),
        (
            {
                "cron": "@daily",
                "calendar": {"blackouts": [{"from_at": "2020-06-02T00:00:00Z", "to_at": "2020-06-09T00:00:00Z"}]},
                "end_at": "2020-06-10T00:00:00Z",
            },
            ["2020-06-09 00:00:00", "2020-06-10 00:00:00"],
        ),
    ],
    ids=str,
)
def test_a_preview_reads_a_schedule_as_if_after_were_now(fields: dict[str, Any], expected: list[str]) -> None:
    assert fires("2020-06-01T00:00:00Z", **fields) == expected
    # The result does not depend on `now`, before or after that instant.
    asked_at = datetime(2040, 1, 1, tzinfo=UTC)
    assert fires("2020-06-01T00:00:00Z", now=asked_at, **fields) == expected
    after = datetime(2020, 6, 1, tzinfo=UTC)
    beside = preview(*preview_request({"schedule": fields, "n": 3}, asked_at, after=after))
    assert [f"{fire.fire_at:%Y-%m-%d %H:%M:%S}" for fire in beside.fires] == expected


@proves("S9")
def test_a_preview_without_after_is_checked_like_a_job() -> None:
    for fields in ({"at": "2021-01-01T00:00:00Z"}, {"cron": "@daily", "end_at": "2021-01-01T00:00:00Z"}):
        with pytest.raises(InvalidBody):
            preview_request({"schedule": fields}, NOW)
    assert fires(None, n=1, every="1h") == ["2026-11-15 13:00:00"]


@proves("S9")
def test_faults_of_a_preview_depend_on_after_too() -> None:
    with pytest.raises(InvalidBody) as refusal:
        preview_request({"at": "2021-01-01T00:00:00Z", "after": "2020-06-01T00:00:00Z", "n": 0}, NOW)
    assert [fault.pointer for fault in refusal.value.faults] == ["/n"]


OVER: list[tuple[dict[str, Any], str]] = [
    ({"rrule": "DTSTART:20200101T090000\nRRULE:FREQ=DAILY;COUNT=3"}, "/schedule/rrule"),
    ({"rrule": "DTSTART:20200101T090000\nRRULE:FREQ=DAILY;UNTIL=20210101"}, "/schedule/rrule"),
    ({"rrule": "DTSTART:20200101T090000\nRDATE:20200501T120000"}, "/schedule/rrule"),
    ({"rrule": "FREQ=DAILY;UNTIL=20261101", "anchor_at": "2026-01-01T00:00:00Z"}, "/schedule/rrule"),
    (
        {"rrule": "DTSTART:20200101T090000\nRRULE:FREQ=DAILY;COUNT=3", "end_at": "2030-01-01T00:00:00Z"},
        "/schedule/rrule",
    ),
    ({"rrule": "DTSTART:20200101T090000\nRRULE:FREQ=DAILY", "end_at": "2021-01-01T00:00:00Z"}, "/schedule/end_at"),
    (
        {"rrule": "DTSTART:20200101T090000\nRRULE:FREQ=DAILY;COUNT=3", "include": [{"at": "2020-05-01T00:00:00Z"}]},
        "/schedule/rrule",
    ),
    ({"cron": "@daily", "end_at": "2021-01-01T00:00:00Z"}, "/schedule/end_at"),
    ({"every": "1h", "end_at": "2021-01-01T00:00:00Z", "start_at": "2020-01-01T00:00:00Z"}, "/schedule/end_at"),
]


@proves("S8", "S10")
@pytest.mark.parametrize(("fields", "pointer"), OVER, ids=str)
def test_a_recurring_schedule_that_is_over_is_rejected_at_creation(fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidBody, match="no fire from now on") as refusal:
        job(**fields)
    assert [fault.pointer for fault in refusal.value.faults] == [pointer]
    # Code that was written long ago may say so when its process starts.
    assert job_spec({"name": "n", "function": "f", "schedule": fields}, NOW, may_be_over=True).schedule


@proves("S8", "S10")
def test_a_recurrence_that_has_ended_meanwhile_may_be_sent_back_as_it_was_read() -> None:
    before = job(rrule="DTSTART:20261101T090000\nRRULE:FREQ=DAILY;UNTIL=20261201")
    much_later = NOW + timedelta(days=365)
    assert job_spec(render_spec(before), much_later, current=before).schedule == before.schedule
    assert patched_spec(before, {"payload": 1}, much_later).schedule == before.schedule
    with pytest.raises(InvalidBody, match="no fire from now on"):
        patched_spec(
            before, {"schedule": {"rrule": "DTSTART:20261101T090000\nRRULE:FREQ=DAILY;UNTIL=20261202"}}, much_later
        )
    still = job(rrule="DTSTART:20200101T090000\nRRULE:FREQ=DAILY;COUNT=3", include=[{"cron": "@daily"}])
    assert still.schedule is not None


@proves("S1", "S4", "S9")
@pytest.mark.parametrize(
    ("at", "dst", "local", "remark"),
    [
        ("2027-03-28T02:30:00", {}, "2027-03-28T03:00:00+02:00", "shifted"),
        ("2027-03-28T03:00:00", {}, "2027-03-28T03:00:00+02:00", None),
        ("2027-03-28T01:00:00Z", {}, "2027-03-28T03:00:00+02:00", None),
        ("2027-10-31T02:30:00", {}, "2027-10-31T02:30:00+02:00", None),
        ("2027-10-31T02:30:00", {"fold": "last"}, "2027-10-31T02:30:00+01:00", "repeated"),
        ("2027-07-01T09:00:00.5", {}, "2027-07-01T09:00:00.500000+02:00", None),
    ],
)
def test_a_local_instant_is_previewed_in_its_zone_with_changes_of_the_clocks(
    at: str, dst: dict[str, str], local: str, remark: str | None
) -> None:
    def preview_of(**fields: Any) -> list[tuple[str, str | None]]:
        shown = preview(*preview_request({"schedule": {"timezone": BERLIN, "dst": dst, **fields}}, NOW))
        return [(fire.local, fire.remark) for fire in shown.fires]

    assert preview_of(at=at) == [(local, remark)]
    assert (local, remark) in preview_of(cron="0 0 1 1 *", include=[{"at": at}])


@proves("S1", "S8")
def test_a_local_instant_is_written_with_its_zone_and_read_back_the_same() -> None:
    before = job(at="2027-03-28T02:30:00", timezone=BERLIN)
    assert before.schedule is not None
    rendered = render_schedule(before.schedule)
    assert (rendered["at"], rendered["timezone"]) == ("2027-03-28T01:00:00Z", BERLIN)
    assert "timezone" not in render_schedule(schedule(at="2027-03-28T01:00:00Z"))
    assert msgspec.json.decode(msgspec.json.encode(before.schedule), type=Schedule) == before.schedule
    assert job_spec(render_spec(before), LATER, current=before).schedule == before.schedule
    delayed = patched_spec(before, {"schedule": {"jitter": 5}}, LATER).schedule
    assert delayed == Schedule(when=before.schedule.when, jitter_s=5)
    moved = patched_spec(before, {"at": "2027-03-28T04:00:00"}, LATER).schedule
    assert moved == schedule(at="2027-03-28T04:00:00", timezone=BERLIN)
    included = job(cron="@daily", timezone=BERLIN, include=[{"at": "2027-03-28T02:30:00"}])
    assert included.schedule is not None
    again = patched_spec(included, {"schedule": {"jitter": 5}}, LATER).schedule
    assert again is not None
    assert again.include == included.schedule.include


@proves("S8")
def test_the_advice_for_a_change_to_a_past_instant_is_not_to_leave_it_out() -> None:
    before = job(at="2027-01-01T00:00:00Z")
    advice = "give a future instant, or run the job now with `/run`"
    with pytest.raises(InvalidBody, match=advice):
        patched_spec(before, {"at": "2020-01-01T00:00:00Z"}, NOW)
    with pytest.raises(InvalidBody, match=advice):
        job_spec({"name": "n", "function": "f", "at": "2020-01-01T00:00:00Z"}, NOW, current=before)


@proves("S3", "S10")
def test_a_zone_with_an_interval_is_accepted_unless_its_calendar_seems_to_use_it() -> None:
    assert schedule(every="15m", timezone=BERLIN).when == Interval(every_s=900, anchor_at=NOW)
    window = {"from_at": "2027-01-01T00:00:00Z", "to_at": "2027-01-02T00:00:00Z"}
    assert schedule(every="15m", timezone=BERLIN, calendar={"blackouts": [window]}).calendar is not None
    assert schedule(every="15m", timezone="UTC", calendar={"business_days": True}).calendar is not None
    for fields in ({"every": "15m"}, {"cron": "@every 15m"}):
        with pytest.raises(InvalidBody, match="are in UTC for an interval") as refusal:
            schedule(**fields, timezone=BERLIN, calendar={"business_days": True})
        assert [fault.pointer for fault in refusal.value.faults] == ["/schedule/timezone"]


@proves("S12")
def test_rules_have_the_zone_and_the_policy_of_their_schedule_unless_they_name_their_own() -> None:
    skip = Dst(gap="skip")
    found = schedule(
        cron="0 9 * * *",
        timezone=BERLIN,
        dst={"gap": "skip"},
        include=[
            {"cron": "0 18 * * 5"},
            {"cron": "0 18 * * 6", "timezone": "Asia/Tokyo", "dst": {"fold": "last"}},
            {"every": "7h"},
            {"cron": "@every 8h", "anchor_at": "2026-01-01T00:00:00Z"},
            {"at": "2027-01-01T00:00:00"},
            {"at": "2027-01-01T00:00:00Z"},
        ],
        exclude=[
            {"rrule": "FREQ=MONTHLY;BYMONTHDAY=1;BYHOUR=9;BYMINUTE=0;BYSECOND=0"},
            {"rrule": "DTSTART;TZID=Asia/Tokyo:20260101T090000\nRRULE:FREQ=DAILY"},
        ],
    )
    assert found.include == (
        Cron(expression="0 18 * * 5", timezone=BERLIN, dst=skip),
        Cron(expression="0 18 * * 6", timezone="Asia/Tokyo", dst=Dst(fold="last")),
        Interval(every_s=25_200, anchor_at=NOW),
        Interval(every_s=28_800, anchor_at=datetime(2026, 1, 1, tzinfo=UTC), is_anchored=True),
        Once(at=datetime(2026, 12, 31, 23, tzinfo=UTC), timezone=BERLIN, wall=wall(2027, 1, 1)),
        Once(at=datetime(2027, 1, 1, tzinfo=UTC), timezone=BERLIN),
    )
    monthly, tokyo = found.exclude
    assert isinstance(monthly, Rrule)
    assert (monthly.timezone, monthly.begins, monthly.dst) == (BERLIN, wall(2026, 11, 15, 14), skip)
    assert isinstance(tokyo, Rrule)
    assert tokyo.timezone == "Asia/Tokyo"


@proves("S12")
def test_a_past_instant_is_accepted_among_the_rules() -> None:
    found = schedule(cron="@daily", exclude=[{"at": "2020-01-01T00:00:00Z"}])
    assert found.exclude == (Once(at=datetime(2020, 1, 1, tzinfo=UTC)),)


@proves("S10")
@pytest.mark.parametrize("written", [True, "next", "previous"])
def test_business_days_may_move_a_fire(written: object) -> None:
    found = schedule(cron="@daily", calendar={"business_days": written})
    assert found.calendar == Calendar(business_days=written)  # type: ignore[arg-type]
    rendered = render_schedule(found)["calendar"]
    assert rendered is not None
    assert rendered["business_days"] == written


@proves("S12")
def test_a_job_may_pause_after_failures_if_it_recurs() -> None:
    recurs = {"name": "n", "function": "f", "every": "5m"}
    assert job_spec({**recurs, "pauseAfterFailures": 3}, NOW).pause_after_failures == 3
    assert job_spec({**recurs, "pause_after_failures": None}, NOW).pause_after_failures is None
    assert render_spec(job_spec({**recurs, "pause_after_failures": 3}, NOW))["pause_after_failures"] == 3


UNANCHORED: list[dict[str, Any]] = [
    {"every": "15m"},
    {"every": "15m", "start_at": "2027-01-01T00:00:00Z"},
    {"rrule": "FREQ=DAILY;INTERVAL=3", "timezone": BERLIN},
    {"cron": "@daily", "include": [{"every": "7h"}], "exclude": [{"rrule": "FREQ=WEEKLY"}]},
]


@proves("S3", "S8")
@pytest.mark.parametrize("fields", UNANCHORED, ids=str)
def test_an_anchor_that_no_user_chose_is_shown_and_stays_unchosen(fields: dict[str, Any]) -> None:
    before = job(**fields)
    assert "anchor_at" in str(render_spec(before))
    changed = {**render_spec(before), "schedule": {**(render_spec(before)["schedule"] or {}), "jitter": 5}}
    after = job_spec(changed, LATER, current=before)
    assert before.schedule is not None
    assert after.schedule is not None
    assert (after.schedule.when, after.schedule.include, after.schedule.exclude) == (
        before.schedule.when,
        before.schedule.include,
        before.schedule.exclude,
    )
    patched = patched_spec(before, {"schedule": {"jitter": 5}}, LATER).schedule
    assert patched == after.schedule


@proves("S3", "S8")
def test_a_whole_new_body_without_an_anchor_sets_a_new_one_and_a_patch_keeps_it() -> None:
    before = job(every="15m")
    renewed = job_spec({"name": "n", "function": "f", "every": "15m"}, LATER, current=before).schedule
    assert renewed == Schedule(when=Interval(every_s=900, anchor_at=LATER))
    assert patched_spec(before, {"every": "15m"}, LATER).schedule == before.schedule
    assert patched_spec(before, {"every": "20m"}, LATER).schedule == Schedule(
        when=Interval(every_s=1200, anchor_at=LATER)
    )
    start_at = datetime(2027, 1, 1, tzinfo=UTC)
    moved = patched_spec(before, {"schedule": {"start_at": "2027-01-01T00:00:00Z"}}, LATER).schedule
    assert moved == Schedule(when=Interval(every_s=900, anchor_at=start_at), start_at=start_at)


@proves("S3", "S8")
def test_a_chosen_anchor_survives_patches_until_it_is_reset() -> None:
    before = job(every="15m", anchor_at="2026-01-01T00:00:00Z")
    anchor_at = datetime(2026, 1, 1, tzinfo=UTC)
    assert patched_spec(before, {"every": "20m"}, LATER).schedule == Schedule(
        when=Interval(every_s=1200, anchor_at=anchor_at, is_anchored=True)
    )
    assert patched_spec(before, {"schedule": {"anchorAt": None}}, LATER).schedule == Schedule(
        when=Interval(every_s=900, anchor_at=LATER)
    )


@proves("S8")
def test_a_one_time_job_whose_instant_has_passed_can_be_sent_back_as_it_was_read() -> None:
    before = job_spec({"name": "n", "function": "f", "at": "2026-11-15T13:00:00Z"}, NOW)
    much_later = NOW + timedelta(days=2)
    assert job_spec(render_spec(before), much_later, current=before).schedule == before.schedule
    assert patched_spec(before, {"payload": 1}, much_later).schedule == before.schedule
    assert patched_spec(before, {"schedule": {"jitter": 5}}, much_later).schedule == Schedule(
        when=Once(at=datetime(2026, 11, 15, 13, tzinfo=UTC)), jitter_s=5
    )


@proves("S8")
def test_a_resume_leaves_it_to_the_job_what_to_do_about_missed_fires() -> None:
    assert [resume_missed(body) for body in (None, {}, {"missed": "once"}, {"missed": "all"})] == [
        None,
        None,
        "once",
        "all",
    ]
    for body, words in (({"missed": "some"}, '"skip"'), ({"misd": "all"}, "did you mean `missed`"), ([], "object")):
        with pytest.raises(InvalidBody, match=words):
            resume_missed(body)


def _id(n: int) -> Any:
    from uuid import UUID

    return UUID(int=n)
