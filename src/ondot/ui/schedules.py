"""`/schedules`: preview a schedule before a job has it (S9). The address contains the form, so it can be shared.

The form becomes the body of `POST /v1/schedules/preview` and is parsed by the same function (`ReadPreview`, passed in
where the application is built), so that page and API accept the same input and reject it in the same words. Nothing of
a tenant is shown here.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, tzinfo
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

from ondot.model.errors import InvalidBody, InvalidSchedule
from ondot.model.schedule import Preview, Schedule, preview
from ondot.model.schedule.dst import zone_info, zone_names
from ondot.model.schedule.looks import A_REQUEST, allowed
from ondot.model.schedule.when import zone_of
from ondot.ui.year import Year, build_year

ReadPreview = Callable[[object, datetime], tuple[Schedule, datetime, int]]
"""From a body of `POST /v1/schedules/preview`: the schedule, the instant to start from, and how many fires to show."""

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
    "shifted": "Moved: the clocks skip its time that day, or its day is not a business day.",
    "repeated": "The clocks go back that day, and this is the second time they show this time.",
    "jittered": "The job starts later than this by its jitter, always by the same time for one job.",
}
REASONS: Final = {
    "gap": "the clocks skip this time that day",
    "holiday": "a public holiday",
    "date": "one of the excluded dates",
    "weekend": "not a business day",
    "blackout": "in a blackout",
    "excluded": "a rule excludes it",
}
EXAMPLES: Final = {"cron": "0 9 * * 1-5", "every": "15m", "rrule": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9"}
"""The form's text for a kind before anything is typed: the text of one kind is not valid for another."""
LONGEST: Final = 1000
A_TARGET: Final = "https://example.com/hook"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields as typed; the address has the same names."""

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
        """The schedule in the API's long form, without defaults."""
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
        """The `ondot job create` for a job with this schedule."""
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
        written = " ".join(f"{flag} {shlex.quote(str(value))}" for flag, value in flags.items() if value is not None)
        return f"ondot job create --name my-job --url {A_TARGET} \\\n  {written}"

    def create_address(self) -> str:
        """The form of a job with this schedule."""
        names = ("kind", "expression", "timezone", "gap", "fold", "jitter", "country", "business_days")
        default = {"gap": "shift", "fold": "first", "business_days": "no"}
        chosen = {name: getattr(self, name) for name in names}
        return "/jobs/new?" + urlencode({name: text for name, text in chosen.items() if text != default.get(name, "")})

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
class PreviewView:
    """All that the page shows of a valid schedule."""

    in_words: str
    zone: str
    fires: tuple[FireLine, ...]
    skipped: tuple[SkippedLine, ...]
    remarks: dict[str, str]
    year: Year


@dataclass(frozen=True, slots=True)
class FormErrors:
    """What is wrong, by field of the form; "form": errors of no single field."""

    faults: dict[str, tuple[str, ...]]


def form_of(query: Mapping[str, str]) -> Form:
    """The form in the address; without one, an example. Unknown names are ignored."""
    known = {field.name for field in fields(Form)}
    given = {name: value.strip()[:LONGEST] for name, value in query.items() if name in known}
    if "expression" in given or "kind" in given:
        kind = given.get("kind", "cron")
        given = {"expression": EXAMPLES.get(kind, ""), "timezone": ""} | given
        # Only a recurrence rule has several lines; browsers end them with two characters.
        lines = given["expression"].splitlines()
        given["expression"] = "\n".join(lines) if kind == "rrule" else " ".join(lines)
    return Form(**given)


def preview_form(form: Form, read: ReadPreview, now: datetime) -> PreviewView | FormErrors:
    try:
        schedule, after, n = read(form.body(), now)
        with allowed(A_REQUEST):
            return _preview(schedule, after, n)
    except InvalidBody as error:
        return FormErrors(_by_field(error))


def _preview(schedule: Schedule, after: datetime, n: int) -> PreviewView:
    found = preview(schedule, after, n)
    zone = zone_of(schedule.when)
    fires, skipped = fire_lines(found), skipped_lines(found)
    reasons = {date.fromisoformat(entry.local[:10]): REASONS.get(entry.reason, entry.reason) for entry in found.skipped}
    shown = {fire.remark for fire in fires}
    return PreviewView(
        in_words=found.in_words,
        zone=zone,
        fires=fires,
        skipped=skipped,
        remarks={remark: words for remark, words in REMARKS.items() if remark in shown},
        year=build_year(schedule, after, zone_info(zone), reasons),
    )


def fire_lines(found: Preview) -> tuple[FireLine, ...]:
    seconds = _has_seconds(found)
    return tuple(FireLine(fire.fire_at, local_words(fire.local, seconds), fire.remark) for fire in found.fires)


def skipped_lines(found: Preview) -> tuple[SkippedLine, ...]:
    seconds = _has_seconds(found)
    return tuple(
        SkippedLine(local_words(entry.local, seconds), entry.reason, REASONS.get(entry.reason, entry.reason))
        for entry in found.skipped
    )


def _has_seconds(found: Preview) -> bool:
    """Whether to show seconds: for all or for none, since 12:47 among 12:46:30 and 12:47:30 looks like another time."""
    written = [fire.local for fire in found.fires] + [entry.local for entry in found.skipped]
    return any(datetime.fromisoformat(local).second for local in written)


def local_words(written: str, seconds: bool = False) -> str:
    """ "Sun 29 Mar 2026, 03:00 +02:00": the local time in that zone."""
    at = datetime.fromisoformat(written)
    time = f"{at:%H:%M:%S}" if seconds else f"{at:%H:%M}"
    offset = at.isoformat(timespec="seconds")[19:]
    return f"{at:%a} {at.day} {at:%b %Y}, {time} {offset}".rstrip()


@cache
def zones() -> tuple[str, ...]:
    """The IANA names that people use, for the form to suggest."""
    return tuple(name for name in zone_names() if "/" in name or name == "UTC")


def _by_field(error: InvalidBody) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for fault in error.faults:
        path = fault.pointer.removeprefix("/schedule").strip("/").replace("/", ".")
        field = FIELD_OF.get(path, "form")
        # Next to its field, a message need not name the field.
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
    """An instant of the form is local to the schedule's zone. Text that is no instant is left for the API to reject."""
    try:
        at = datetime.fromisoformat(written)
        local = at if at.tzinfo else at.replace(tzinfo=_zone_or_utc(timezone))
        return local.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return written


def _zone_or_utc(timezone: str) -> tzinfo:
    """An unknown zone is one error; it must not cause a second one for the instant."""
    try:
        return zone_info(timezone or "UTC")
    except InvalidSchedule:
        return UTC
