"""What may not stand in a name, and how it is shown where it does."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.text import hidden_in, visible


@pytest.mark.parametrize(
    "text", ["daily-report", "Tägliche Übersicht", "日次　レポート", "ежедневный", "🚀 deploy ❤️", "a\u00a0b", ""]
)
def test_what_people_write_is_seen_and_left_as_it_is(text: str) -> None:
    assert hidden_in(text) is None
    assert visible(text) == text


@pytest.mark.parametrize(
    "char",
    [
        *"\0\t\n\r\x1b\x7f\x85\x9b\xad\u061c\u200b\u200d\u200e\u2028\u202a\u202e\u2060\u2066\u2069\u3164\ud800\ufeff\ufff9\U000e0001"
    ],
)
def test_what_cannot_be_seen_is_named_and_shown(char: str) -> None:
    found = hidden_in(f"ab{char}c")
    assert found is not None
    assert found.startswith(f"U+{ord(char):04X}")
    assert found.endswith("at character 3")
    if char not in "\n\t":
        assert visible(f"ab{char}c").startswith("ab\\u")
        assert hidden_in(visible(f"ab{char}c")) is None


@given(st.text())
def test_what_is_shown_steers_no_terminal_and_means_the_same_in_json(text: str) -> None:
    shown = visible(text)
    assert all(char in "\n\t" or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in shown)
    assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text
