"""The API against its own OpenAPI document: every request that fits it gets a documented answer."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from started import ondot_up

from tests.api.conftest import Caller

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.timeout(300)
def test_every_operation_answers_as_it_is_described() -> None:
    operations = 0
    with ondot_up() as up:
        schema = schemathesis.openapi.from_url(f"{up.url}/openapi.json")
        for found in schema.get_all_operations():
            assert isinstance(found, Ok), found

            @settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=found.ok().as_strategy())
            def answers_as_described(case: Any) -> None:
                case.call_and_validate(checks=CHECKS)

            answers_as_described()
            operations += 1
    assert operations >= 17


async def test_a_patch_is_described_as_a_part_of_a_job(api: Caller) -> None:
    document = (await api.http.get("/openapi.json")).json()
    content = document["paths"]["/v1/jobs/{id}"]["patch"]["requestBody"]["content"]
    assert content.keys() == {"application/json", "application/merge-patch+json"}
    schemas = document["components"]["schemas"]
    patches = {name: schema for name, schema in schemas.items() if name.endswith("Patch")}
    assert patches.keys() >= {"JobBodyPatch", "ScheduleBodyPatch", "HttpBodyPatch", "DstBodyPatch"}
    assert not any("required" in schema for schema in patches.values())
    assert schemas["HttpBody"]["required"] == ["url"], "what a whole body needs stays as it is"
    assert schemas["ScheduleBodyPatch"]["properties"]["include"]["anyOf"][0]["items"]["$ref"].endswith("/RuleBody")


async def test_no_schema_is_named_after_a_module(api: Caller) -> None:
    """Two classes of one name would be: a generated client would then change with each move of a file."""
    document = (await api.http.get("/openapi.json")).json()
    assert [name for name in document["components"]["schemas"] if "__" in name] == []


async def test_the_schema_has_the_short_texts(api: Caller) -> None:
    document = (await api.http.get("/openapi.json")).json()
    properties = document["components"]["schemas"]["JobBody"]["properties"]
    for name in ("rate", "key_rate", "unique"):
        assert "string" in [one.get("type") for one in properties[name]["anyOf"]], name
