"""Lists on terminals of any width and in pipes, and the formats for programs."""

import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from ondot.cli import event_views, fleet_views, letter_views, output, views
from ondot.cli.listing import Listing
from ondot.cli.output import Format, name_of, show_items
from ondot.cli.yaml import to_yaml
from tests.cli.samples import EXECUTION_ID, JOB_ID, WORKER_ID, execution, job
from tests.proves import proves

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
WIDTHS = [40, 60, 80, 120, 160]
LONG = "名前" * 60 + " and\nmore\ttext  with  gaps"
HOSTILE = "\x1b]0;owned\x07\x1b[2Jx\x9b31m\u202e"
KEY: dict[str, Any] = {
    "id": JOB_ID,
    "name": LONG,
    "state": "VALID",
    "role": "editor",
    "scopes": ["jobs:read"] * 9,
    "pools": ["p" * 63],
    "created_at": NOW,
    "expires_at": None,
    "last_used_at": NOW,
    "revoked_at": None,
}
LETTER = {
    "execution_id": EXECUTION_ID,
    "job_name": LONG,
    "failed_at": "2026-11-15T11:58:00Z",
    "error": {"message": LONG},
    "fingerprint": "a1b2c3d4e5f6",
    "run_id": None,
    "step": None,
    "state": "open",
    "resolution": None,
}
POOL = {
    "name": "default",
    "workers": 3,
    "running": 7,
    "slots": 300,
    "waiting": 12_345,
    "oldest_waiting_s": 91.0,
    "gated": 4,
    "concurrency": None,
    "rate": {"limit": 100, "per": 60, "burst": 5},
}
WORKER = {
    "id": WORKER_ID,
    "host": "a-long-name.of.a.machine.example.com",
    "pid": 4711,
    "state": "ALIVE",
    "slots": 100,
    "running": 7,
    "pools": ["default", "batch"],
    "silent_s": 1.0,
    "release": "0.1.0",
    "ended_at": None,
}
EVENT = {
    "id": JOB_ID,
    "received_at": "2026-11-15T11:58:00Z",
    "matched": 1,
    "event": {"type": "com.example.order.created", "source": "/orders", "subject": LONG},
}
LISTS: dict[str, Callable[[], Listing]] = {
    "jobs": lambda: views.job_table([job(), job(name=LONG, state="PAUSED", state_reason=LONG)], NOW),
    "executions": lambda: views.execution_table([execution(), execution(job_name=LONG, started_at=None)], NOW),
    "attempts": lambda: views.attempt_table(execution()["attempts"], NOW),
    "keys": lambda: views.key_table([KEY, KEY | {"name": "k"}], NOW),
    "pools": lambda: views.pool_table([POOL, POOL | {"name": "p" * 63}], NOW),
    "workers": lambda: fleet_views.worker_table([WORKER], 10),
    "events": lambda: event_views.event_table([EVENT], NOW),
}


def drawn(listing: Listing, width: int, *, is_terminal: bool = True, is_wide: bool = False) -> list[str]:
    stream = io.StringIO()
    screen = Console(file=stream, width=width, force_terminal=is_terminal, color_system=None, markup=False)
    screen.is_wide = is_wide  # type: ignore[attr-defined]
    screen.print(listing, crop=False)
    return stream.getvalue().splitlines()


@proves("D5")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", LISTS)
def test_a_row_is_one_line_and_fits_the_terminal(name: str, width: int) -> None:
    listing = LISTS[name]()
    lines = drawn(listing, width)
    assert len(lines) == listing.row_count + 1
    assert max(map(cell_len, lines)) <= width
    assert drawn(listing, width) == lines, "drawing changes nothing"


@proves("D5")
@pytest.mark.parametrize("name", LISTS)
def test_in_a_pipe_columns_are_whole_and_separated_by_two_spaces(name: str) -> None:
    listing = LISTS[name]()
    head, *rows = (re.split("  +", line) for line in drawn(listing, 40, is_terminal=False))
    assert head == [column for column in listing.columns if column not in listing.wide]
    assert {len(row) for row in rows} == {len(head)}
    assert not any(cell.endswith("…") for row in rows for cell in row)
    assert drawn(listing, 200, is_terminal=False) == drawn(listing, 40, is_terminal=False)


@proves("D5")
@pytest.mark.parametrize("width", WIDTHS)
def test_wide_shows_all_columns_in_full(width: int) -> None:
    listing = LISTS["jobs"]()
    lines = drawn(listing, width, is_wide=True)
    assert re.split("  +", lines[0]) == list(listing.columns)
    assert JOB_ID in lines[1]
    assert "…" not in "".join(lines)


def test_columns_go_in_the_declared_order_and_the_name_stays() -> None:
    shown = [drawn(LISTS["jobs"](), width)[0].split("  ")[0::1] for width in (160, 80, 60, 40)]
    heads = [[word.strip() for word in head if word.strip()] for head in shown]
    assert heads[0] == ["NAME", "STATE", "NEXT FIRE", "SCHEDULE", "ID"]
    assert heads[-1] == ["NAME", "STATE"] or heads[-1] == ["NAME", "STATE", "NEXT FIRE"]
    assert all(head[0] == "NAME" for head in heads)


@proves("D5")
def test_a_name_of_usual_length_is_whole_at_80_columns_and_columns_beside_it_go_first() -> None:
    names = ["nightly_export_of_orders", "nightly_export_of_orders_eu"]
    head, first, second = drawn(views.job_table([job(name=name) for name in names], NOW), 80)
    assert "ID" not in head.split()
    assert first.split()[0] == names[0]
    assert second.split()[0] == names[1]


def test_the_id_of_an_execution_is_whole_at_80_columns() -> None:
    for line in drawn(LISTS["executions"](), 80)[1:]:
        assert line.startswith(EXECUTION_ID)


@proves("D5")
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_name_cannot_steer_the_terminal_nor_forge_a_row(is_terminal: bool) -> None:
    listing = views.job_table([job(name=HOSTILE), job(name=f"a\n{JOB_ID}  ACTIVE"), job(name="[bold]b[/bold]")], NOW)
    lines = drawn(listing, 160, is_terminal=is_terminal)
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)
    assert "[bold]b[/bold]" in lines[3]
    with_style = io.StringIO()
    Console(file=with_style, force_terminal=True, color_system="truecolor", width=160).print(listing)
    codes = re.sub(r"\x1b\[[\d;]*m", "", with_style.getvalue())
    assert "\x1b" not in codes, "only colours of our own"


@given(
    st.lists(st.tuples(*[st.text(max_size=60)] * 4), max_size=5),
    st.integers(1, 200),
    st.permutations(["A", "B", "C", "D"]),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_any_list_fits_any_width(
    rows: list[tuple[str, ...]], width: int, order: list[str], dropped: int, whole: int
) -> None:
    listing = Listing("A", "B", "C", "D", drop=order[:dropped], whole=order[:whole])
    for row in rows:
        listing.add_row(*row)
    lines = drawn(listing, width)
    assert len(lines) == len(rows) + 1
    assert all(cell_len(line) <= width for line in lines)


# For programs.

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@proves("D5")
@given(values)
def test_yaml_is_read_back_as_the_same_document(document: Any) -> None:
    assert yaml.safe_load(to_yaml(document)) == document


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            " ",
            "no",
            "Yes",
            "~",
            "null",
            "1",
            "1e3",
            "0x1f",
            "2026-11-15",
            "12:30:00",
            "a: b",
            "- a",
            "# a",
            "a\nb\n",
        ],
        *["\u2028", "\x85", "\ufeff", "\U0001f600", "\x00", "'", '"', "\\", "=", "<<", "é", "k" * 2000, "\x7f"],
    ],
)
def test_yaml_keeps_text_that_looks_like_something_else(text: str) -> None:
    documents: list[Any] = [text, [text], {text: text}, {text: [{text: [text]}]}, [[text], []], {text: {}}]
    for document in documents:
        assert yaml.safe_load(to_yaml(document)) == document


@proves("D5")
@pytest.mark.parametrize(
    ("item", "name"),
    [
        (job(), JOB_ID),
        (job(key="report"), "report"),
        (execution(), EXECUTION_ID),
        (LETTER, EXECUTION_ID),
        (POOL, "default"),
        ({"id": JOB_ID, "name": "k", "key": "ondot_secret"}, JOB_ID),
        ({"name": "Ada", "email": "ada@example.com", "id": JOB_ID}, "ada@example.com"),
        ({"check": "settings", "level": "ok"}, "settings"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_a_name_is_what_other_commands_accept(item: dict[str, Any], name: str) -> None:
    assert name_of(item) == name


def test_each_format_prints_the_same_items(capsys: pytest.CaptureFixture[str]) -> None:
    items = [job(), job(key="k")]
    page = {"items": items, "next_cursor": None}
    show_items(page, items, Format.NAME)
    assert capsys.readouterr().out.splitlines() == [JOB_ID, "k"]
    show_items(page, items, Format.YAML)
    assert yaml.safe_load(capsys.readouterr().out) == page
    show_items(page, items, Format.JSON)
    assert json.loads(capsys.readouterr().out) == page
    show_items(page, items, Format.JSONL)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == items


def test_instants_of_a_document_are_written_as_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_document({"at": NOW}, Format.YAML)
    assert yaml.safe_load(capsys.readouterr().out) == {"at": "2026-11-15T12:00:00Z"}


def test_dead_letters_show_their_error_when_there_is_room() -> None:
    listing = letter_views.letter_table([LETTER], NOW)
    assert "ERROR" in drawn(listing, 120)[0]
    assert drawn(listing, 60)[1].startswith(EXECUTION_ID)
