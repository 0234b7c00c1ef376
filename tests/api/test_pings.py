"""`/v1/pings` and `/ping/{token}`: jobs elsewhere report their runs, and silence is noticed."""

from typing import Any

import pytest

from ondot.flow import pings
from ondot.flow.pings import late_pass
from ondot.model.hook import hide_tokens, mask_tokens
from ondot.model.ping import is_token, new_token
from tests.api.conftest import Caller
from tests.proves import proves


@pytest.fixture
async def ping(api: Caller) -> str:
    """The path that a job calls, of a ping that is due each hour."""
    return path_of(await create(api, period="1h", grace="5m"))


async def create(api: Caller, **fields: Any) -> dict[str, Any]:
    answer = await api.http.post("/v1/pings", json={"name": "backup", **fields})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def path_of(made: dict[str, Any]) -> str:
    assert is_token(made["token"])
    return f"/ping/{made['token']}"


async def state(api: Caller) -> str:
    return str((await api.get("/v1/pings/backup"))["state"])


async def conditions(api: Caller) -> list[str]:
    return [row["message"] for row in await api.world.fetch("SELECT message FROM ondot.condition")]


@proves("O4")
async def test_a_ping_is_late_after_its_grace_and_the_next_success_ends_it(api: Caller, ping: str) -> None:
    assert await state(api) == "NEW"
    await api.world.advance(86_400)
    assert await late_pass(api.world.database) == 0
    for method in ("GET", "HEAD", "POST"):
        assert (await api.http.request(method, ping)).status_code == 200
    assert await state(api) == "UP"
    await api.world.advance(3600 + 299)
    assert await late_pass(api.world.database) == 0
    await api.world.advance(2)
    assert await late_pass(api.world.database) == 1
    assert await late_pass(api.world.database) == 0
    assert await state(api) == "LATE"
    [why] = await conditions(api)
    assert "backup is late" in why
    pings_of = api.services.pings
    pings_of._written.clear()  # 5 s have passed
    assert (await api.http.get(ping)).text == "OK"
    assert (await state(api), await conditions(api)) == ("UP", [])


@proves("O4")
async def test_runs_are_measured_and_failures_reported_with_their_exit_code(api: Caller, ping: str) -> None:
    await api.http.get(f"{ping}/start")
    await api.world.advance(90)
    await api.http.post(f"{ping}/0", content=b"x" * 20_000)
    found = await api.get("/v1/pings/backup")
    assert (found["state"], found["took_s"], found["started_at"]) == ("UP", 90.0, None)
    assert len(found["calls"][0]["body"]) == 10_000
    await api.http.post(f"{ping}/17", content=b"disk \xff\x00full")
    assert "exit code 17" in (await conditions(api))[0]
    await api.http.post(f"{ping}/log", content=b"a note")
    found = await api.get("/v1/pings/backup")
    assert found["state"] == "FAILED"
    assert {each["kind"] for each in found["calls"]} == {"start", "success", "fail", "log"}
    # A run that does not end is late after the grace.
    await api.http.get(f"{ping}/start")
    await api.world.advance(301)
    assert await late_pass(api.world.database) == 1
    assert "did not report its end" in (await conditions(api))[0]


@proves("O4")
async def test_a_flood_is_answered_and_written_once_and_calls_are_bounded(
    api: Caller, ping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(30):
        assert (await api.http.get(ping)).status_code == 200
    assert await api.world.count("ping_call") == 1
    await api.http.get(f"{ping}/fail")
    assert await state(api) == "FAILED"
    monkeypatch.setattr(pings, "WRITTEN_EVERY_S", 0.0)
    for _ in range(105):
        await api.world.advance(1)
        await api.http.get(ping)
    assert await api.world.count("ping_call") == 100


@proves("O4", "T1", "T5")
async def test_unknown_tokens_are_refused_counted_and_never_shown(api: Caller, ping: str) -> None:
    token = ping.rpartition("/")[2]
    assert (await api.http.get(f"{ping}/nonsense")).status_code == 404
    assert (await api.http.get(f"{ping}/256")).status_code == 404
    for text in ((await api.http.get("/v1/pings/backup")).text, (await api.http.get("/v1/pings")).text):
        assert token not in text
    assert token not in str(await api.world.fetch("SELECT * FROM ondot.ping"))
    refused = await api.http.get(f"/ping/{token}/nonsense/more")
    assert (refused.status_code, token in refused.text) == (404, False)
    assert hide_tokens(f"/ping/{token}/start") == "/ping/•••/start"
    assert hide_tokens("/ping/ondp_typo") == "/ping/•••"
    assert token not in mask_tokens(f"GET https://h/ping/{token}/fail")
    rotated = await api.http.post("/v1/pings/backup/rotate")
    assert rotated.status_code == 201
    assert (await api.http.get(ping)).status_code == 404
    assert (await api.http.get(path_of(rotated.json()))).status_code == 200
    answers = [(await api.http.get(f"/ping/{new_token()}")).status_code for _ in range(22)]
    assert answers[0] == 404
    assert answers[-1] == 429
    assert (await api.http.get(path_of(rotated.json()))).status_code == 200
    assert (await api.http.delete("/v1/pings/backup")).status_code == 200
    assert await api.world.count("ping_call") == 0


@proves("O4")
async def test_bad_pings_are_rejected_and_schedules_follow_their_zone(api: Caller) -> None:
    for body in (
        {},
        {"period": "1h", "schedule": {"cron": "@daily"}},
        {"schedule": {"cron": "61 * * * *"}},
        {"schedule": {"event": {"type": "a.b"}}},
        {"period": 0},
    ):
        answer = await api.http.post("/v1/pings", json={"name": "backup", **body})
        assert answer.status_code == 422, answer.text
    made = await create(api, schedule={"cron": "0 3 * * *", "timezone": "Europe/Berlin"}, grace="10m")
    assert (await api.http.post(path_of(made))).status_code == 200
    due_at = (await api.get("/v1/pings/backup"))["due_at"]
    assert due_at.endswith(("T01:10:00Z", "T02:10:00Z"))
