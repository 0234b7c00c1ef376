"""Words that must not come back: plain English needs none of them (docs/explanation/glossary.md, "Verbs").

Each place of `PLACES` is searched whole: text, comments, strings and names, also within names such as `is_told`.
"""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
WORDS: Final = ("anew", "lest", "mend", "mended", "mends", "seldom", "tell", "tells", "told", "whoever", "whom")
FOUND: Final = re.compile(rf"(?<![a-z])({'|'.join(WORDS)})(?![a-z])", re.IGNORECASE)
PLACES: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "docs", "src/ondot", "tests", "bench")
SUFFIXES: Final = {".md", ".py", ".sql", ".html", ".js", ".css", ".sh"}
ALLOWED: Final = {
    ("docs/explanation/glossary.md", "tell"),
    ("docs/explanation/glossary.md", "anew"),
    ("docs/explanation/glossary.md", "mend"),
    ("src/ondot/flow/zones.py", "anew"),
}
"""The list of words to avoid names them, and the name of a log event stays."""


def files(place: str) -> list[Path]:
    path = ROOT / place
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file != Path(__file__))


@pytest.mark.parametrize("place", PLACES)
def test_no_word_of_the_list_is_used(place: str) -> None:
    found = [
        f"{name}:{number}: {match[1]}"
        for file in files(place)
        if (name := str(file.relative_to(ROOT)))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        for match in FOUND.finditer(line)
        if (name, match[1].lower()) not in ALLOWED
    ]
    assert found == [], "say it with a verb of docs/explanation/glossary.md"


def test_the_allowed_words_are_still_used() -> None:
    unused = [(name, word) for name, word in ALLOWED if not re.search(rf"(?i){word}", (ROOT / name).read_text())]
    assert unused == []
