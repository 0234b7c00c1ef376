"""`/schedules`: what a schedule means, before a job has it (S9). The form is the address: a preview can be sent on.

What was typed becomes the body of `POST /v1/schedules/preview` and is read by the very function that reads that
(`ReadPreview`, handed in where the application is built), so that page and API accept the same and refuse in the same
words. Nothing of a tenant is shown here.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, tzinfo
from functools import cache
from typing import Any, Final

from ondot.model.errors import InvalidBody, InvalidSchedule
from ondot.model.schedule import Preview, Schedule, preview
from ondot.model.schedule.dst import zone_info, zone_names
from ondot.model.schedule.looks import A_REQUEST, allowed
from ondot.model.schedule.when import zone_of
from ondot.ui.year import Year, year_of

ReadPreview = Callable[[object, datetime], tuple[Schedule, datetime, int]]
"""The schedule of a body of `POST /v1/schedules/preview`, the instant to look from, and how many fires to tell."""

FIELD_OF: Final = {
    "cron": "expression",
    "every": "expression",
    "rrule": "expression",
    "timezone": "timezone",
    "dst.gap": "gap",
    "dst.fold": "fold",
    "jitter": "jitter",
    "calendar.exclude_holidays": "country",
    "calendar.business_days": "business_days",
    "after": "after",
    "n": "n",
}
REMARKS: Final = {
    "shifted": "Moved: the clock leaves its own time out that day, or its own day is not a business day.",
    "repeated": "The clock shows this time twice that day: this is the second time.",
    "jittered": "The job starts up to its jitter later than this, always the same for one job.",
}
REASONS: Final = {
    "gap": "the clock never shows this time that day",
    "holiday": "a public holiday",
    "date": "one of the dates left out",
    "weekend": "not a business day",
    "blackout": "in a black-out",
    "excluded": "a rule excludes it",
}
EXAMPLES: Final = {"cron": "0 9 * * 1-5", "every": "15m", "rrule": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9"}
"""What the form shows for a kind of which nothing was typed yet: the text of one kind is never one of another."""
LONGEST: Final = 1000
A_TARGET: Final = "https://example.com/hook"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields as they were typed; these are the names in the address, too."""

    kind: str = "cron"
    expression: str = EXAMPLES["cron"]
    timezone: str = "Europe/Berlin"
    gap: str = "shift"
    fold: str = "first"
    jitter: str = ""
    country: str = ""
    business_days: str = "no"
    after: str = ""
    n: str = "10"

    def body(self) -> dict[str, Any]:
        """The body of `POST /v1/schedules/preview`."""
        body: dict[str, Any] = {"schedule": self.schedule(), "n": int(self.n) if self.n.isdecimal() else self.n or 10}
        if self.after:
            body["after"] = _with_offset(self.after, self.timezone)
        return body

    def schedule(self) -> dict[str, Any]:
        """The schedule in the API's long form, without what goes without saying."""
        kind = self.kind if self.kind in {"cron", "every", "rrule"} else "cron"
        schedule: dict[str, Any] = {kind: _number(self.expression) if kind == "every" else self.expression}
        if kind != "every":
            schedule |= {"timezone": self.timezone} if self.timezone else {}
            dst = {"gap": self.gap} if self.gap != "shift" else {}
            dst |= {"fold": self.fold} if self.fold != "first" else {}
            schedule |= {"dst": dst} if dst else {}
        schedule |= {"jitter": _number(self.jitter)} if self.jitter else {}
        calendar: dict[str, Any] = {"exclude_holidays": self.country} if self.country else {}
        if self.business_days not in {"", "no"}:
            calendar["business_days"] = True if self.business_days == "yes" else self.business_days
        return schedule | ({"calendar": calendar} if calendar else {})

    def command(self) -> str:
        """The `ondot job create` that makes a job of it."""
        schedule = self.schedule()
        flags: dict[str, Any] = {f"--{kind}": schedule[kind] for kind in ("cron", "every", "rrule") if kind in schedule}
        flags |= {"--timezone": schedule.get("timezone"), "--jitter": schedule.get("jitter")}
        flags |= {f"--{name}": value for name, value in schedule.get("dst", {}).items()}
        calendar = schedule.get("calendar", {})
        business_days = calendar.get("business_days")
        flags |= {
            "--calendar": calendar.get("exclude_holidays"),
            "--business-days": "true" if business_days is True else business_days,
        }
        said = " ".join(f"{flag} {shlex.quote(str(value))}" for flag, value in flags.items() if value is not None)
        return f"ondot job create --name my-job --url {A_TARGET} \\\n  {said}"

    def curl(self, base_url: str) -> str:
        job = {"name": "my-job", "schedule": self.schedule(), "target": {"http": {"url": A_TARGET}}}
        return f"curl {base_url}/v1/jobs -d {shlex.quote(json.dumps(job, ensure_ascii=False))}"


@dataclass(frozen=True, slots=True)
class FireLine:
    at: datetime
    local: str
    remark: str | None


@dataclass(frozen=True, slots=True)
class SkippedLine:
    local: str
    reason: str
    words: str


@dataclass(frozen=True, slots=True)
class Told:
    """All that the page says of a schedule that can be kept."""

    in_words: str
    zone: str
    fires: tuple[FireLine, ...]
    skipped: tuple[SkippedLine, ...]
    remarks: dict[str, str]
    year: Year


@dataclass(frozen=True, slots=True)
class Refused:
    """What is wrong, by the form's fields; under "form" what belongs to none of them."""

    faults: dict[str, tuple[str, ...]]


def form_of(query: Mapping[str, str]) -> Form:
    """What the address says; a form that says nothing is an example. Unknown names are passed over."""
    known = {field.name for field in fields(Form)}
    given = {name: value.strip()[:LONGEST] for name, value in query.items() if name in known}
    if "expression" in given or "kind" in given:
        kind = given.get("kind", "cron")
        given = {"expression": EXAMPLES.get(kind, ""), "timezone": ""} | given
        # Only a rule has lines; browsers end them with two characters.
        lines = given["expression"].splitlines()
        given["expression"] = "\n".join(lines) if kind == "rrule" else " ".join(lines)
    return Form(**given)


def tell(form: Form, read: ReadPreview, now: datetime) -> Told | Refused:
    try:
        schedule, after, n = read(form.body(), now)
    except InvalidBody as refusal:
        return Refused(_by_field(refusal))
    try:
        with allowed(A_REQUEST):
            return _told(schedule, after, n)
    except InvalidBody as refusal:
        return Refused(_by_field(refusal))


def _told(schedule: Schedule, after: datetime, n: int) -> Told:
    told = preview(schedule, after, n)
    zone = zone_of(schedule.when)
    fires, skipped = fire_lines(told), skipped_lines(told)
    reasons = {date.fromisoformat(entry.local[:10]): REASONS.get(entry.reason, entry.reason) for entry in told.skipped}
    shown = {fire.remark for fire in fires}
    return Told(
        in_words=told.in_words,
        zone=zone,
        fires=fires,
        skipped=skipped,
        remarks={remark: words for remark, words in REMARKS.items() if remark in shown},
        year=year_of(schedule, after, zone_info(zone), reasons),
    )


def fire_lines(told: Preview) -> tuple[FireLine, ...]:
    seconds = _has_seconds(told)
    return tuple(FireLine(fire.fire_at, local_words(fire.local, seconds), fire.remark) for fire in told.fires)


def skipped_lines(told: Preview) -> tuple[SkippedLine, ...]:
    seconds = _has_seconds(told)
    return tuple(
        SkippedLine(local_words(entry.local, seconds), entry.reason, REASONS.get(entry.reason, entry.reason))
        for entry in told.skipped
    )


def _has_seconds(told: Preview) -> bool:
    """Whether seconds are told: of all or of none, since 12:47 among 12:46:30 and 12:47:30 looks like another time."""
    written = [fire.local for fire in told.fires] + [entry.local for entry in told.skipped]
    return any(datetime.fromisoformat(local).second for local in written)


def local_words(written: str, seconds: bool = False) -> str:
    """ "Sun 29 Mar 2026, 03:00 +02:00": as a person of that zone would say it."""
    at = datetime.fromisoformat(written)
    time = f"{at:%H:%M:%S}" if seconds else f"{at:%H:%M}"
    offset = at.isoformat(timespec="seconds")[19:]
    return f"{at:%a} {at.day} {at:%b %Y}, {time} {offset}".rstrip()


@cache
def zones() -> tuple[str, ...]:
    """The IANA names that people use, for the form to suggest."""
    return tuple(name for name in zone_names() if "/" in name or name == "UTC")


def _by_field(refusal: InvalidBody) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for fault in refusal.faults:
        path = fault.pointer.removeprefix("/schedule").strip("/").replace("/", ".")
        field = FIELD_OF.get(path, "form")
        # At its field the message need not name it; elsewhere it must.
        message = fault.message.removeprefix(f"`schedule.{path}`: ") if field != "form" else fault.message
        found.setdefault(field, []).append(message)
    return {field: tuple(messages) for field, messages in found.items()}


def _number(written: str) -> str | float:
    """A bare number is seconds, as in JSON."""
    try:
        number = float(written)
    except ValueError:
        return written
    return int(number) if number.is_integer() else number


def _with_offset(written: str, timezone: str) -> str:
    """An instant of the form is local in the schedule's zone; what cannot be read is left for the API to refuse."""
    try:
        at = datetime.fromisoformat(written)
        local = at if at.tzinfo else at.replace(tzinfo=_zone_or_utc(timezone))
        return local.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return written


def _zone_or_utc(timezone: str) -> tzinfo:
    """A zone that there is none of is one fault, not also that of the instant in it."""
    try:
        return zone_info(timezone or "UTC")
    except InvalidSchedule:
        return UTC
