"""S9: docs/schedules.md promises instants; each example there is computed anew."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ondot.model.schedule import Calendar, Cron, Dst, Interval, Schedule, check, preview
from tests.model.schedule.making import utc
from tests.proves import proves

DOCUMENT = Path(__file__).parents[3] / "docs" / "schedules.md"
EXAMPLES = re.findall(r"^```fires\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def schedule_of(written: dict[str, Any]) -> Schedule:
    calendar = msgspec.convert(written["calendar"], Calendar) if "calendar" in written else None
    if "every" in written:
        anchor_at = datetime.fromisoformat(written["start_at"])
        return Schedule(when=Interval(every_s=written["every"], anchor_at=anchor_at), calendar=calendar)
    dst = msgspec.convert(written.get("dst", {}), Dst)
    cron = Cron(expression=written["cron"], timezone=written.get("timezone", "UTC"), dst=dst)
    return Schedule(when=cron, calendar=calendar)


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


@proves("S9", "S4", "S10")
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_document_is_what_the_code_computes(example: str) -> None:
    assert example == computed(example)


def test_the_document_has_examples() -> None:
    assert len(EXAMPLES) >= 10
