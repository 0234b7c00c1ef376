"""S9: docs/reference/schedules.md promises instants. Each example is parsed as the API does, and computed again."""

import re
from pathlib import Path

import msgspec
import pytest

from ondot.document.requests import preview_request
from ondot.model.schedule import preview
from tests.model.schedule.making import utc
from tests.proves import proves

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "schedules.md"
EXAMPLES = re.findall(r"^```fires\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def computed(example: str) -> str:
    """The example as it should stand: its first two lines are the question, the rest is the answer."""
    written, question = example.splitlines()[:2]
    asked = re.fullmatch(r"the next (\d+) after (\S+ \S+) UTC:", question)
    assert asked is not None, question
    body = {"schedule": msgspec.json.decode(written), "n": int(asked[1])}
    after = utc(asked[2])
    shown = preview(*preview_request(body, after, after=after))
    fires = [f"  {fire.local}  {fire.remark or ''}".rstrip() for fire in shown.fires]
    skipped = [f"  not {entry.local}  {entry.reason}" for entry in shown.skipped]
    return "\n".join([written, question, *fires, *skipped, ""])


@proves("S9", "S4", "S10", "S12")
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_document_is_what_the_code_computes(example: str) -> None:
    assert example == computed(example)


def test_the_document_has_examples() -> None:
    assert len(EXAMPLES) >= 20
