"""S9: docs/schedules.md promises instants; each example there is computed anew."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ondot.model.schedule import Calendar, Cron, Dst, Interval, Once, Rrule, Schedule, When, check, preview
from ondot.model.schedule.rrule import begins_of
from tests.model.schedule.making import utc
from tests.proves import proves

DOCUMENT = Path(__file__).parents[3] / "docs" / "schedules.md"
EXAMPLES = re.findall(r"^```fires\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def rule_of(written: dict[str, Any], outer: dict[str, Any]) -> When:
    """One rule as written; what an included or excluded one leaves out it has from the schedule around it."""
    timezone = written.get("timezone", outer.get("timezone", "UTC"))
    dst = msgspec.convert(written.get("dst", outer.get("dst", {})), Dst)
    if "every" in written:
        anchor_at = written.get("anchor_at") or written.get("start_at") or outer["start_at"]
        return Interval(every_s=written["every"], anchor_at=datetime.fromisoformat(anchor_at))
    if "at" in written:
        return Once(at=datetime.fromisoformat(written["at"]))
    if "rrule" in written:
        begins = begins_of(written["rrule"])
        assert begins is not None, "an example needs a DTSTART"
        return Rrule(text=written["rrule"], begins=begins[0], timezone=begins[1] or timezone, dst=dst)
    return Cron(expression=written["cron"], timezone=timezone, dst=dst)


def schedule_of(written: dict[str, Any]) -> Schedule:
    return Schedule(
        when=rule_of(written, {}),
        include=tuple(rule_of(rule, written) for rule in written.get("include", [])),
        exclude=tuple(rule_of(rule, written) for rule in written.get("exclude", [])),
        calendar=msgspec.convert(written["calendar"], Calendar) if "calendar" in written else None,
    )


def computed(example: str) -> str:
    """The example as it should stand: its first two lines are the question, the rest is the answer."""
    written, question = example.splitlines()[:2]
    asked = re.fullmatch(r"the next (\d+) after (\S+ \S+) UTC:", question)
    assert asked is not None, question
    schedule = schedule_of(msgspec.json.decode(written))
    check(schedule)
    shown = preview(schedule, utc(asked[2]), int(asked[1]))
    fires = [f"  {fire.local}  {fire.remark or ''}".rstrip() for fire in shown.fires]
    skipped = [f"  not {entry.local}  {entry.reason}" for entry in shown.skipped]
    return "\n".join([written, question, *fires, *skipped, ""])


@proves("S9", "S4", "S10", "S12")
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_document_is_what_the_code_computes(example: str) -> None:
    assert example == computed(example)


def test_the_document_has_examples() -> None:
    assert len(EXAMPLES) >= 20
