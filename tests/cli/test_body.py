"""Flags and files become the body that the API takes."""

import io
import json
from enum import EnumType
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from ondot.cli.body import body_of_file, body_of_flags, in_flags, reject_surrogates
from ondot.cli.errors import message_of
from ondot.cli.flags import FLAGS, Flag, Overlap, parse_json
from ondot.document.body import JobBody
from ondot.document.errors import field_of, model_in
from ondot.model.errors import Fault, InvalidBody
from tests.cli.running import ondot
from tests.proves import proves


def body(*, changes: bool = False, **flags: Any) -> dict[str, Any]:
    return body_of_flags(flags, changes=changes)


def schedule(**flags: Any) -> Any:
    return body(**flags, changes=True)["schedule"]


def test_flags_that_were_not_given_are_not_sent() -> None:
    assert body(function="hello") == {"target": {"function": "hello"}}


@proves("E3")
def test_a_grpc_method_is_one_flag() -> None:
    given = body(grpc="api.example.com:443/shop.v1.Orders/Place", metadata=["x-team:bi"], tls=False)
    target = {"address": "api.example.com:443", "method": "shop.v1.Orders/Place"}
    assert given == {"target": {"grpc": {**target, "metadata": {"x-team": "bi"}, "tls": False}}}
    by_connection = {"connection": "shop", "method": "shop.v1.Orders/Place"}
    assert body(grpc="shop/shop.v1.Orders/Place") == {"target": {"grpc": by_connection}}
    assert body(tls=True, changes=True) == {"target": {"grpc": {"tls": True}}}
    for flags, words in (
        ({"grpc": "api.example.com:443"}, "has no method"),
        ({"grpc": "a:1/b.C/D", "url": "http://x"}, "Give one of"),
        ({"url": "http://x", "tls": False}, "needs --grpc"),
    ):
        with pytest.raises(typer.BadParameter, match=words):
            body(**flags)


def test_flags_become_the_long_form() -> None:
    assert body(
        name="report",
        cron="0 9 * * 1-5",
        every=None,
        timezone="Europe/Berlin",
        jitter="30",
        url="https://example.com",
        method="PUT",
        header=["x-team: bi"],
        payload='{"region": "eu"}',
        pool="heavy",
        priority="high",
        retries=0,
        timeout="5m",
        key="k",
        label=["team:bi", "at:9:00"],
    ) == {
        "name": "report",
        "schedule": {"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin", "jitter": 30},
        "target": {"http": {"url": "https://example.com", "method": "PUT", "headers": {"x-team": "bi"}}},
        "payload": {"region": "eu"},
        "pool": "heavy",
        "priority": "high",
        "retry": {"max_retries": 0},
        "timeout": "5m",
        "key": "k",
        "labels": {"team": "bi", "at": "9:00"},
    }


@proves("E12", "E13", "E16")
def test_flags_that_hold_a_job_back_become_its_fields() -> None:
    assert body(function="f", overlap=Overlap.SKIP, concurrency=2, rate="10/1m", start_deadline="90", unique=None) == {
        "target": {"function": "f"},
        "overlap": "skip",
        "concurrency": 2,
        "rate": "10/1m",
        "start_deadline": 90,
    }
    assert body(changes=True, order_key="o") == {"order_key": "o"}


@pytest.mark.parametrize(("written", "sent"), [("90", 90), ("1.5", 1.5), ("90s", "90s"), ("PT1M", "PT1M")])
def test_a_bare_number_is_seconds(written: str, sent: object) -> None:
    assert schedule(in_=written) == {"in": sent}


def test_an_instant_stays_as_it_was_written() -> None:
    assert schedule(at="2030") == {"at": "2030"}


def test_the_details_of_a_schedule_become_the_long_form() -> None:
    assert schedule(cron="@daily", gap="skip", fold="both", calendar="DE-BY", business_days="next", jitter="30s") == {
        "cron": "@daily",
        "dst": {"gap": "skip", "fold": "both"},
        "jitter": "30s",
        "calendar": {"exclude_holidays": "DE-BY", "business_days": "next"},
    }
    assert schedule(rrule="FREQ=DAILY", business_days="true") == {
        "rrule": "FREQ=DAILY",
        "calendar": {"business_days": True},
    }


def test_two_kinds_of_schedule_are_refused_here() -> None:
    with pytest.raises(typer.BadParameter, match="--cron or --every"):
        schedule(cron="@daily", every="5m")


def test_changes_need_no_target_and_contain_only_what_changes() -> None:
    assert body(cron="@daily", retries=5, changes=True) == {
        "schedule": {"cron": "@daily"},
        "retry": {"max_retries": 5},
    }
    assert body(changes=True) == {}
    with pytest.raises(typer.BadParameter):
        body(method="GET", changes=True)


def test_a_command_is_split_into_words_and_no_shell_sees_it() -> None:
    assert body(command="echo 'a b' $HOME | x")["target"] == {"shell": {"command": ["echo", "a b", "$HOME", "|", "x"]}}


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"url": "https://x", "function": "f"},
        {"function": "f", "method": "GET"},
        {"function": "f", "payload": "{"},
        {"function": "f", "payload": "NaN"},
        {"function": "f", "label": ["team"]},
        {"command": "echo 'a"},
    ],
)
def test_mistakes_that_only_flags_can_make_are_rejected_here(flags: dict[str, Any]) -> None:
    with pytest.raises(typer.BadParameter):
        body(**flags)


def test_a_file_is_sent_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"name": "grüße", "cron": "@daily", "nonsense": [1]}', encoding="utf-8")
    assert body_of_file(str(path)) == {"name": "grüße", "cron": "@daily", "nonsense": [1]}


def test_standard_input_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"function": "f"}'))
    assert body_of_file("-") == {"function": "f"}


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff\xfe", b"", b"[" * 100_000])
def test_a_file_that_is_no_job_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(content)
    with pytest.raises(typer.BadParameter):
        body_of_file(str(path))


def test_text_that_cannot_be_sent_is_rejected() -> None:
    with pytest.raises(typer.BadParameter):
        reject_surrogates({"payload": parse_json(json.dumps("\ud800"), "--payload")})


@pytest.mark.parametrize("flag", FLAGS.values(), ids=FLAGS)
def test_a_flag_sets_a_field_that_a_job_has_and_offers_the_words_that_it_takes(flag: Flag) -> None:
    model: Any = JobBody
    field: Any = None
    for name in flag.pointer.strip("/").split("/"):
        field = field_of(model, name)
        assert field is not None
        model = model_in(field)
    if isinstance(flag.kind, EnumType):
        kinds = (field.annotation, *get_args(field.annotation))
        words = {word for kind in kinds for word in get_args(kind) if isinstance(word, str)}
        assert set(map(str, flag.kind)) - {"true"} == words


def test_a_fault_is_reported_at_its_flag() -> None:
    faults = (
        Fault("/schedule/cron", "`schedule.cron`: It never fires."),
        Fault("/labels/team", "`labels.team` must be text."),
        Fault("/retry/max_retries", "`retry.max_retries` must be at most 100."),
        Fault("/rate/burst", "`rate.burst` must be at most the `limit`."),
        Fault("/concurrency_key", "`concurrency_key` must be text."),
        Fault("/somewhere", "Else."),
    )
    assert message_of(in_flags(InvalidBody("…", faults=faults))).splitlines()[1:] == [
        "  --cron: It never fires.",
        "  --label: must be text.",
        "  --retries: must be at most 100.",
        "  --rate: must be at most the `limit`.",
        "  --concurrency-key: must be text.",
        "  /somewhere: Else.",
    ]


def test_a_file_and_flags_together_are_refused() -> None:
    ran = ondot("job", "create", "-f", "-", "--name", "x", stdin="{}")
    assert ran.code == 2
    assert "not both" in ran.err
