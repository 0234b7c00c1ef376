"""From a schedule's body to the model's schedule: zones, anchors and relative times become data (S1 to S4, S10, S12).

A schedule is one rule, rules that add or remove fires, and bounds. Every fault has its path in the long form, so that
`reading` can point at what was written. A new version knows the schedule `Before` it. A schedule that is sent back as
it was read is the stored one, even if its `at` has passed meanwhile. An anchor that no user chose stays unchosen, so
that a later upsert without an anchor still changes nothing.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from msgspec import structs

from ondot.document.events import EventBody, read_event
from ondot.document.render import ScheduleOut
from ondot.document.rules import LONG_AGO_S
from ondot.document.schedule_body import CalendarBody, RuleBody, ScheduleBody
from ondot.document.shorthand import Path
from ondot.document.structs import to_struct
from ondot.model import misfire
from ondot.model.errors import InvalidSchedule
from ondot.model.misfire import Misfire
from ondot.model.schedule import Calendar, Cron, Dst, Interval, Once, Schedule, When, check, next_fire
from ondot.model.schedule.dst import next_instant, zone_info
from ondot.model.schedule.interval import every_of
from ondot.model.schedule.rrule import Rrule, begins_after, begins_of

RULE_KINDS: Final = ("cron", "every", "at", "rrule")
RULE_LISTS: Final = ("include", "exclude")

_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)

Faults = list[tuple[Path, str]]
Anchored = TypeVar("Anchored", Interval, Rrule)


@dataclass(frozen=True, slots=True)
class Before:
    """The schedule of the version before, and its long form, which means that schedule if it is sent again."""

    schedule: Schedule
    written: ScheduleOut
    keeps_anchors: bool  # true for a patch, which changes only what it names; a whole new body sets a new anchor

    def rules(self) -> tuple[When, ...]:
        return self.schedule.when, *self.schedule.include, *self.schedule.exclude


def schedule_of(
    body: ScheduleBody, now: datetime, before: Before | None = None, *, may_be_over: bool = False
) -> tuple[Faults, Schedule | None]:
    """The schedule, or its faults with paths relative to it. The body has exactly one kind.

    A schedule without a fire from `now` on is rejected, unless it `may_be_over`.
    """
    faults = _faults_of_zone(body.timezone)
    if not faults:
        faults = _faults_of_dates(body)
    else:
        body = body.model_copy(update={"timezone": "UTC"})  # and check the rest, to report all faults at once
    if body.event is not None:
        return _by_event(body, body.event)
    reading = _Reading(body, now, before, may_be_over)
    when, found = reading.rule(body)
    faults.extend(found)
    lists: dict[str, tuple[When, ...]] = {}
    for name in RULE_LISTS:
        lists[name], found = reading.rules(name)
        faults.extend(found)
    if any(lists.values()) and (body.at is not None or body.in_ is not None):
        name = next(name for name in RULE_LISTS if lists[name])
        faults.append(((name,), "It is for recurring schedules: use `cron`, `every` or `rrule`, or leave it out."))
    if when is None or any(len(lists[name]) < len(getattr(body, name)) for name in RULE_LISTS):
        return faults, None
    schedule = Schedule(
        when=when,
        include=lists["include"],
        exclude=lists["exclude"],
        jitter_s=body.jitter,
        spread_s=body.spread,
        offset_s=body.offset,
        is_offset_given=body.offset is not None,
        start_at=body.start_at,
        end_at=body.end_at,
        max_fires=body.max_fires,
        misfire=to_struct(Misfire, body.misfire),
        calendar=_calendar(body.calendar) if body.calendar is not None else None,
    )
    try:
        check(schedule, now)
        if not faults and not may_be_over:
            faults.extend(_faults_of_end(schedule, now))
    except InvalidSchedule as refusal:
        faults.extend((reading.place(fault.pointer), fault.message) for fault in refusal.faults)
    return faults, None if faults else schedule


def _by_event(body: ScheduleBody, event: EventBody) -> tuple[Faults, Schedule | None]:
    """The schedule of a job that events start: it has no instants, so nothing moves or bounds them."""
    faults: Faults = [
        ((name,), "It is for instants, and events start this job; leave it out.")
        for name in (
            "timezone",
            "anchor_at",
            "include",
            "exclude",
            "jitter",
            "spread",
            "offset",
            "start_at",
            "end_at",
            "max_fires",
            "calendar",
        )
        if getattr(body, name)
    ]
    if "dst" in body.model_fields_set:
        faults.append((("dst",), "It is for instants, and events start this job; leave it out."))
    rule, found = read_event(event)
    faults.extend((("event", *path), message) for path, message in found)
    misfire_of = to_struct(Misfire, body.misfire)
    faults.extend((tuple(fault.pointer.strip("/").split("/")), fault.message) for fault in misfire.faults(misfire_of))
    return faults, None if faults or rule is None else Schedule(when=rule, misfire=misfire_of)


def _faults_of_end(schedule: Schedule, now: datetime) -> Faults:
    """The fault of a recurring schedule that is over."""
    if isinstance(schedule.when, Once) or next_fire(schedule, now) is not None:
        return []
    is_cut = schedule.end_at is not None and next_fire(structs.replace(schedule, end_at=None), now) is not None
    if is_cut or not isinstance(schedule.when, Rrule):
        return [(("end_at",), "It has no fire from now on; give a later end_at.")]
    message = "It has no fire from now on. Give a later UNTIL, DTSTART or RDATE, or a larger COUNT."
    return [(("rrule",), message)]


@dataclass(frozen=True, slots=True)
class _Reading:
    """A schedule while it is read: what its rules share."""

    body: ScheduleBody
    now: datetime
    before: Before | None
    may_be_over: bool

    def rules(self, name: str) -> tuple[tuple[When, ...], Faults]:
        """The rules of a list that can be read, and the faults of the others."""
        rules: list[When] = []
        faults: Faults = []
        for index, body in enumerate(getattr(self.body, name)):
            given = [kind for kind in RULE_KINDS if getattr(body, kind) is not None]
            if len(given) == 1:
                rule, found = self.rule(body)
                rules.extend([] if rule is None else [rule])
            else:
                got = " and ".join(f"`{kind}`" for kind in given) or "none"
                found = [((), f"A rule takes exactly one of {', '.join(RULE_KINDS)}, got {got}.")]
            faults.extend(((name, str(index), *path), message) for path, message in found)
        return tuple(rules), faults

    def rule(self, body: RuleBody) -> tuple[When | None, Faults]:
        try:
            every_s = body.every if body.cron is None else every_of(body.cron)
            zone = self._zone(body)
        except InvalidSchedule as refusal:
            return None, [((*fault.pointer.strip("/").split("/"),), fault.message) for fault in refusal.faults]
        faults = _find_useless_fields(body, every_s)
        dst = self._dst(body)
        if body.cron is not None and every_s is None:
            return Cron(expression=body.cron, timezone="UTC" if zone is None else zone, dst=dst), faults
        if found := _faults_of_zone(zone, _place_of_zone(body)):
            return None, [*faults, *found]
        rule: When | None
        if body.rrule is not None:
            rule, found = self._rrule(body, body.rrule, dst)
        elif every_s is not None:
            anchor_at = body.anchor_at or self.body.start_at or self.now
            interval = Interval(every_s=every_s, anchor_at=anchor_at, is_anchored=body.anchor_at is not None)
            rule, found = self._as_before(interval), []
        else:
            rule, found = self._once(body, dst)
        return rule, [*faults, *found]

    def place(self, pointer: str) -> Path:
        """The path of the model's fault as it was written: `@every` in cron, a zone in the text of a rule."""
        path = tuple(pointer.strip("/").split("/"))
        body: RuleBody = self.body
        outer: Path = ()
        if path[0] in RULE_LISTS and len(path) > 2:
            outer = path[:2]
            body = getattr(self.body, path[0])[int(path[1])]
        match path[len(outer) :]:
            case ("every",) if body.every is None:
                return (*outer, "cron")
            case ("timezone",):
                return (*outer, *_place_of_zone(body))
            case _:
                return path

    def _zone(self, body: RuleBody) -> str | None:
        return next((zone for zone in (body.timezone, _zone_in(body)) if zone is not None), self.body.timezone)

    def _dst(self, body: RuleBody) -> Dst:
        given = body.dst if "dst" in body.model_fields_set else self.body.dst
        return to_struct(Dst, given)

    def _rrule(self, body: RuleBody, text: str, dst: Dst) -> tuple[When | None, Faults]:
        try:
            begins = begins_of(text)
        except InvalidSchedule as refusal:
            return None, [(("rrule",), fault.message) for fault in refusal.faults]
        zone = self._zone(body) or "UTC"
        faults: Faults = []
        if begins is not None and begins[1] is not None and body.timezone not in {None, begins[1]}:
            faults.append((("timezone",), f"The rule's DTSTART is in {begins[1]}; leave one of the two out."))
        if begins is not None and body.anchor_at is not None:
            faults.append((("anchor_at",), "The rule's DTSTART is its anchor; leave one of the two out."))
        if faults:
            return None, faults
        if begins is not None:
            return Rrule(text=text, begins=begins[0], timezone=zone, dst=dst, is_anchored=True), []
        start_at = self.body.start_at
        if start_at is not None:
            start_at += _SECOND - _MICROSECOND  # no fire before start_at: round up to a whole second
        began = (body.anchor_at or start_at or self.now).astimezone(zone_info(zone)).replace(tzinfo=None, fold=0)
        is_given = body.anchor_at is not None or start_at is not None
        wall = began.replace(microsecond=0) if is_given else begins_after(text, began)
        rrule = Rrule(text=text, begins=wall, timezone=zone, dst=dst, is_anchored=body.anchor_at is not None)
        return self._as_before(rrule), []

    def _as_before(self, rule: Anchored) -> Anchored:
        """The rule with the unchosen anchor of the version before, if it was sent back as read, or was not changed."""
        if self.before is None:
            return rule
        is_unchanged = (
            self.before.keeps_anchors and not rule.is_anchored and self.before.schedule.start_at == self.body.start_at
        )
        for old in self.before.rules():
            if type(old) is not type(rule) or old.is_anchored:
                continue
            if rule.is_anchored and _anchor(old) == _anchor(rule):
                return structs.replace(rule, is_anchored=False)
            if is_unchanged and _without_anchor(old) == _without_anchor(rule):
                return old
        return rule

    def _once(self, body: RuleBody, dst: Dst) -> tuple[When | None, Faults]:
        if isinstance(body, ScheduleBody) and body.in_ is not None:
            return Once(at=self.now + timedelta(seconds=body.in_), timezone=self._zone(body) or "UTC"), []
        at, zone = body.at, self._zone(body)
        wall: datetime | None = None
        assert at is not None, "the caller has checked that there is one"
        if at.tzinfo is None:
            if zone is None:
                message = (
                    f'It needs an offset from UTC ("{at.isoformat()}Z"), or a `timezone` in which it is local time.'
                )
                return None, [(("at",), message)]
            # From three days before, to see every change of the zone's clock nearby.
            wall = local = at
            instant = next_instant(lambda after: local if local > after else None, zone, dst, local - timedelta(days=3))
            if instant is None:
                return None, [(("at",), f"The clocks of {zone} skip this time; give another, or use dst.gap shift.")]
            at = instant.replace(tzinfo=UTC)
        once = self._as_written(Once(at=at, timezone=zone or "UTC", wall=wall))
        old = None if self.before is None else self.before.schedule.when
        is_old = isinstance(old, Once) and old.at == at
        is_past = at < self.now - timedelta(seconds=LONG_AGO_S)
        # In a list of rules an instant in the past is no mistake.
        if body is self.body and is_past and not is_old and not self.may_be_over:
            past = timedelta(seconds=round((self.now - at).total_seconds()))
            otherwise = "or leave it out to run now" if self.before is None else "or run the job now with `/run`"
            return None, [(("at",), f"It is {past} in the past; give a future instant, {otherwise}.")]
        return once, []

    def _as_written(self, once: Once) -> Once:
        """With the wall time of the version before, which the long form does not contain."""
        rules = () if self.before is None or once.wall is not None else self.before.rules()
        same = (old for old in rules if isinstance(old, Once) and structs.replace(old, wall=None) == once)
        return next(same, once)


def _find_useless_fields(body: RuleBody, every_s: float | None) -> Faults:
    """Fields that have no effect with this kind: if they were ignored, their author would rely on them."""
    faults: Faults = []
    is_delay = isinstance(body, ScheduleBody) and body.in_ is not None
    if "dst" in body.model_fields_set and (every_s is not None or is_delay):
        message = "It is for `cron`, `at` and `rrule`: intervals and delays measure real time; leave it out."
        faults.append((("dst",), message))
    if body.anchor_at is not None and every_s is None and body.rrule is None:
        faults.append((("anchor_at",), "It is for `every` and `rrule`; leave it out."))
    return faults


def _faults_of_zone(zone: str | None, place: Path = ("timezone",)) -> Faults:
    try:
        zone_info("UTC" if zone is None else zone)
    except InvalidSchedule as refusal:
        return [(place, fault.message) for fault in refusal.faults]
    return []


def _faults_of_dates(body: ScheduleBody) -> Faults:
    """An interval has no zone, so the days that its calendar excludes are days in UTC."""
    is_interval = body.every is not None or (body.cron or "").strip().lower().startswith("@every")
    calendar = body.calendar
    if not is_interval or calendar is None or body.timezone in {None, "UTC"}:
        return []
    if not (calendar.exclude_holidays or calendar.exclude_dates or calendar.business_days):
        return []
    message = "The dates of a calendar are in UTC for an interval; leave the zone out, or use `cron` or `rrule`."
    return [(("timezone",), message)]


def _place_of_zone(body: RuleBody) -> Path:
    return ("rrule",) if body.timezone is None and _zone_in(body) is not None else ("timezone",)


def _zone_in(body: RuleBody) -> str | None:
    """The zone that the text of a rule names."""
    begins = None if body.rrule is None else begins_of(body.rrule)
    return None if begins is None else begins[1]


def _anchor(rule: Interval | Rrule) -> object:
    return rule.anchor_at if isinstance(rule, Interval) else (rule.begins, rule.timezone)


def _without_anchor(rule: Interval | Rrule) -> object:
    return rule.every_s if isinstance(rule, Interval) else (rule.text, rule.timezone, rule.dst)


def _calendar(body: CalendarBody) -> Calendar | None:
    """None for a calendar that excludes nothing, so that planning does not ask it at every fire."""
    calendar = to_struct(Calendar, body)
    return None if calendar == Calendar() else calendar
