"""Functions are known (D1): jobs made over HTTP have the options of their function, and arguments that fit it."""

from datetime import date
from typing import Any

import asyncpg
import msgspec
import pytest

from ondot.doctor.examine import check_functions
from ondot.model.ids import TenantNo
from ondot.sdk.app import Ondot
from tests.api.conftest import Caller
from tests.api.deploying import app_of, deploy, stop
from tests.proves import proves


def charge(customer: int, amount: float = 1.0) -> None:
    """Charge a customer.

    Not shown.
    """


def report(day: date, regions: list[str]) -> None: ...


@proves("D1")
async def test_a_job_made_over_http_has_the_options_of_its_function(api: Caller) -> None:
    options = {"retries": 0, "timeout": "90s", "pool": "money", "labels": {"team": "bi"}, "rate": "10/1s"}
    await deploy(api, app_of(charge, concurrency=2, **options))

    job = await api.create({"function": "charge", "payload": {"customer": 7}})

    assert job["retry"]["max_retries"] == 0
    assert (job["timeout"], job["pool"], job["labels"]) == (90, "money", {"team": "bi"})
    assert (job["concurrency_key"], job["key_concurrency"]) == ("function:charge", 2)
    assert job["key_rate"] == {"limit": 10, "per": 1, "burst": 1}
    assert "warnings" not in job
    stored = await api.get(f"/v1/jobs/{job['id']}")
    assert stored["retry"]["max_retries"] == 0, "what runs is what is shown"


@proves("D1")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_retries": 5}, {"max_retries": 5, "initial": 2}),
        ({"retry": {"initial": "7s"}}, {"max_retries": 1, "initial": 7}),
        ({"retry": {"backoff": "fixed"}}, {"max_retries": 1, "initial": 1, "backoff": "fixed"}),
        ({"retry": {"backoff": "listed", "delays": [3]}}, {"max_retries": 1, "delays": [3]}),
    ],
)
async def test_what_the_body_says_about_retries_wins_field_by_field(
    api: Caller, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    await deploy(api, app_of(charge, retry={"max_retries": 1, "initial": "2s", "backoff": "linear"}))

    job = await api.create({"function": "charge", "payload": {"customer": 7}, **body})

    assert {name: job["retry"][name] for name in expected} == expected


@proves("D1")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"timeout": None}, {"timeout": None}),
        ({"timeout_s": 5}, {"timeout": 5}),
        ({"pool": "other", "labels": {}}, {"pool": "other", "labels": {}}),
        ({"concurrency_key": "mine"}, {"concurrency_key": "mine", "key_concurrency": 1}),
        ({"concurrency_key": None}, {"concurrency_key": None, "key_concurrency": None}),
        ({"key_concurrency": 9}, {"concurrency_key": "function:charge", "key_concurrency": 9}),
    ],
)
async def test_what_the_body_names_wins_also_with_null(
    api: Caller, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    await deploy(api, app_of(charge, timeout="90s", pool="money", labels={"team": "bi"}, concurrency=2))

    job = await api.create({"function": "charge", "payload": {"customer": 7}, **body})

    assert {name: job[name] for name in expected} == expected


@proves("D1")
async def test_keys_are_filled_from_the_payload_and_the_defaults_of_arguments(api: Caller) -> None:
    app = app_of(charge, concurrency_key="customer:{customer}", unique="charge:{customer}:{amount}")
    await deploy(api, app)

    job = await api.create({"function": "charge", "payload": {"customer": 7}})

    assert job["concurrency_key"] == "customer:7"
    assert job["unique"]["key"] == "charge:7:1.0"


@proves("D1")
@pytest.mark.parametrize(
    "body",
    [
        {"cron": "0 3 * * *"},
        {"in": "1h"},
        {"key": "nightly"},
    ],
)
async def test_options_that_do_not_go_with_the_body_are_left_out(api: Caller, body: dict[str, Any]) -> None:
    await deploy(api, app_of(charge, debounce={"key": "c", "wait": "5s"}, retries=0))

    job = await api.create({"function": "charge", "payload": {"customer": 7}, **body})

    assert job["debounce"] is None
    assert job["retry"]["max_retries"] == 0


@proves("D1")
async def test_batches_new_versions_and_steps_have_the_options_too(api: Caller) -> None:
    await deploy(api, app_of(charge, retries=0, timeout="90s"))
    payload = {"customer": 7}

    batch = await api.http.post("/v1/jobs/batch", json={"jobs": [{"function": "charge", "payload": payload}] * 2})
    assert [job["timeout"] for job in batch.json()["items"]] == [90, 90]

    job = await api.create({"url": "https://example.com", "cron": "0 3 * * *"})
    body = {"name": "c", "cron": "0 3 * * *", "function": "charge", "payload": payload}
    replaced = await api.http.put(f"/v1/jobs/{job['id']}", json=body)
    assert replaced.json()["retry"]["max_retries"] == 0
    again = await api.http.put(f"/v1/jobs/{job['id']}", json=replaced.json() | {"timeout": None})
    assert again.json()["timeout"] is None, "a job that was read can be sent again and means the same"

    steps = {"pay": {"function": "charge", "payload": payload}, "own": {"function": "charge", "timeout": "5s"}}
    workflow = (await api.http.post("/v1/workflows", json={"name": "w", "steps": steps})).json()
    made = workflow["target"]["workflow"]["steps"]
    assert made["pay"]["timeout"] == 90
    assert made["pay"]["retry"]["max_retries"] == 0
    assert made["own"]["timeout"] == 5


@proves("D1")
async def test_a_payload_that_does_not_fit_is_rejected_with_pointers(api: Caller) -> None:
    await deploy(api, app_of(report))

    answer = await api.http.post(
        "/v1/jobs", json={"function": "report", "payload": {"day": "tomorrow", "regions": ["eu", 7], "dya": 1}}
    )

    assert answer.status_code == 422, answer.text
    errors = {error["pointer"]: error["detail"] for error in answer.json()["errors"]}
    assert errors.keys() == {"/payload/day", "/payload/regions/1", "/payload/dya"}
    assert errors["/payload/regions/1"] == "report: `regions.1` must be text, got 7."
    assert errors["/payload/dya"] == "report: There is no argument `dya`. Did you mean `day`?"
    missing = await api.http.post("/v1/jobs/batch", json={"jobs": [{"function": "report"}]})
    assert [error["pointer"] for error in missing.json()["errors"]] == [
        "/jobs/0/payload/day",
        "/jobs/0/payload/regions",
    ]


@proves("D1")
async def test_while_a_deploy_rolls_the_arguments_of_either_release_are_right(api: Caller) -> None:
    def greet(name: str) -> None: ...

    old = await deploy(api, app_of(greet, timeout="1s"), "1")

    def greet(name: str, tone: str) -> None: ...  # type: ignore[no-redef]

    await api.world.advance(1)
    await deploy(api, app_of(greet, timeout="2s"), "2")

    for payload in ({"name": "Ada"}, {"name": "Ada", "tone": "warm"}):
        job = await api.create({"function": "greet", "payload": payload})
        assert job["timeout"] == 2, "the newest live release has the defaults"
    await stop(api, old)
    answer = await api.http.post("/v1/jobs", json={"function": "greet", "payload": {"name": "Ada"}})
    assert answer.status_code == 422


@proves("D1")
async def test_without_a_live_worker_options_hold_and_nothing_is_checked(api: Caller) -> None:
    await stop(api, await deploy(api, app_of(charge, retries=0)))

    job = await api.create({"function": "charge", "payload": {"for the next release": 1}})

    assert job["retry"]["max_retries"] == 0
    assert "warnings" not in job


@proves("D1")
async def test_an_unknown_function_is_accepted_with_a_warning_that_names_a_near_one(api: Caller) -> None:
    await deploy(api, app_of(charge))

    near = await api.create({"function": "chrage"})
    far = await api.create({"function": "sweep"})

    assert near["warnings"] == [
        {
            "code": "unknown-function",
            "detail": "No worker has registered 'chrage'. Did you mean 'charge'?",
            "function": "chrage",
            "nearest": "charge",
        }
    ]
    assert far["warnings"][0]["detail"] == "No worker has registered 'sweep'."


@proves("D1")
async def test_a_function_is_known_to_the_tenants_of_its_worker_alone(api: Caller, keyed: Caller) -> None:
    await deploy(api, app_of(charge, retries=0), tenants=frozenset({TenantNo(77)}))
    assert "warnings" in await api.create({"function": "charge"})

    await deploy(api, app_of(charge, retries=0), "2", tenants=None)
    job = await api.create({"function": "charge", "payload": {"customer": 1}})
    assert job["retry"]["max_retries"] == 0, "a worker of all tenants is one of this"


@proves("D1")
async def test_options_that_this_release_does_not_know_stop_no_job(api: Caller) -> None:
    await deploy(api, app_of(charge, retries=0))
    await api.world.fetch("""UPDATE ondot.known_function SET options = '{"retry": {"max_retries": 0}, "later": 1}'""")

    job = await api.create({"function": "charge", "payload": {"customer": 1}})

    assert job["retry"]["max_retries"] == 0


@proves("D1", "E11")
@pytest.mark.parametrize(
    ("payload", "options"),
    [
        ({"customer": 7}, {"retries": 0, "timeout": "90s", "pool": "money", "priority": "low", "concurrency": 2}),
        ({"customer": 7}, {"retry": {"max_retries": 9, "initial": "2s"}, "labels": {"team": "bi"}, "rate": "10/1m"}),
        ({"customer": 7}, {"concurrency_key": "{{c}}:{customer}:{amount}", "order_key": "o:{customer}"}),
        ({"customer": True, "amount": 2.5}, {"concurrency_key": "{customer}", "key_rate": "1/1s"}),
        ({"amount": 2}, {"concurrency_key": "c:{customer}", "concurrency": 3, "order_key": "o:{amount}"}),
        ({}, {}),
    ],
)
async def test_a_job_enqueued_by_sql_has_the_same_options_as_one_made_over_http(
    api: Caller, payload: dict[str, Any], options: dict[str, Any]
) -> None:
    def charge(customer: Any = None, amount: Any = 1) -> None: ...

    def bill(customer: Any, amount: Any = 1) -> None: ...

    function = charge if "customer" in payload or not options else bill
    await stop(api, await deploy(api, app_of(function, **options)))  # nothing is checked, options hold
    job = await api.create({"function": function.__name__, "payload": payload, "schedule": {"in": "1h"}})

    sql = "SELECT ondot.enqueue($1, $2::jsonb, at => ondot.clock() + interval '1 hour', max_retries => $3)"
    id_ = await api.world.value(sql, function.__name__, msgspec.json.encode(payload).decode(), None)
    enqueued = await api.get(f"/v1/jobs/{id_}")

    of_each = {"id", "created_at", "updated_at", "latest_executions", "skipped_fires", "next_fire_at", "schedule"}
    assert {name: enqueued[name] for name in job if name not in of_each | {"schedule_in_words"}} == {
        name: job[name] for name in job if name not in of_each | {"schedule_in_words"}
    }


@proves("D1", "E11")
async def test_what_the_call_in_sql_gives_wins_and_a_list_cannot_be_part_of_a_key(api: Caller) -> None:
    await deploy(api, app_of(report, retry={"max_retries": 9, "initial": "2s"}, timeout="90s", order_key="{regions}"))

    sql = "SELECT ondot.enqueue('report', $1::jsonb, max_retries => 1, timeout_s => 5)"
    id_ = await api.world.value(sql, '{"regions": "eu"}')
    job = await api.get(f"/v1/jobs/{id_}")
    assert (job["retry"]["max_retries"], job["retry"]["initial"], job["timeout"]) == (1, 2, 5)
    assert job["order_key"] == "eu"

    with pytest.raises(asyncpg.InvalidParameterValueError, match="regions"):
        await api.world.value(sql, '{"regions": ["eu"]}')


@proves("D1")
async def test_the_doctor_finds_two_apps_with_different_functions_of_one_name_in_one_pool(api: Caller) -> None:
    shop, bank = app_of(charge), Ondot(name="bank")
    bank.job(name="charge")(report)
    await deploy(api, shop)
    await deploy(api, shop, "2")
    await deploy(api, bank, pools=("money",))
    async with api.world.database.connection() as connection:
        assert (await check_functions(connection, api.world.database.settings)).level == "ok"

    await deploy(api, bank, pools=("money", "default"))

    async with api.world.database.connection() as connection:
        found = await check_functions(connection, api.world.database.settings)
    assert found.level == "warning"
    assert "'charge' of bank and shop, in the pool default" in found.message
