"""Every error of the tree has its status, and its problem+json is what RFC 9457 asks for."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import pytest

from ondot.api.problems import CODES, problem, status_of
from ondot.model import errors
from ondot.model.errors import Fault, InvalidBody, InvalidSchedule, NotFound, OndotError, TooLarge


def tree(root: type[OndotError]) -> Iterator[type[OndotError]]:
    yield root
    for below in root.__subclasses__():
        yield from tree(below)


ALL = sorted({error for error in tree(OndotError) if error.__module__ == errors.__name__}, key=lambda e: e.code)


def test_the_list_of_codes_is_the_tree_of_errors() -> None:
    assert {error.code for error in ALL} == set(CODES)
    assert len({error.code for error in ALL}) == len(ALL)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.code)
def test_the_status_is_the_one_that_the_tree_of_errors_states(error: type[OndotError]) -> None:
    drawn = (
        next(line for line in (errors.__doc__ or "").splitlines() if f"─ {error.__name__} " in f"{line} ")
        if (error is not OndotError)
        else ""
    )
    promised = [int(word) for word in drawn.split() if word.isdigit()]
    assert not promised or status_of(error("…")) == promised[0]


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.code)
def test_a_problem_has_type_title_status_and_detail(error: type[OndotError]) -> None:
    body = problem(error("Do this."), "/v1/jobs")
    assert body["type"] == f"urn:ondot:problem:{error.code}"
    assert body["title"] == error.title
    assert body["status"] == CODES[error.code]
    assert body["detail"] == "Do this."
    assert body["instance"] == "/v1/jobs"


def test_an_invalid_schedule_is_an_invalid_body_by_status() -> None:
    assert status_of(InvalidSchedule("…")) == status_of(InvalidBody("…")) == 422


def test_faults_become_errors_with_pointers() -> None:
    body = problem(InvalidBody("Two.", faults=(Fault("/name", "One."), Fault("/labels/a~1b", "Two."))))
    assert body["errors"] == [
        {"pointer": "/name", "detail": "One."},
        {"pointer": "/labels/a~1b", "detail": "Two."},
    ]
    assert "instance" not in body


def test_facts_are_members_of_their_own_and_fit_into_json() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    body = problem(TooLarge("…", bytes=10, job_id=UUID(int=1), at=at, names={"a"}, more={"x": (at, None)}))
    assert json.loads(json.dumps(body))["bytes"] == 10
    assert body["job_id"] == "00000000-0000-0000-0000-000000000001"
    assert body["more"] == {"x": [str(at), None]}


def test_a_fact_never_replaces_a_member_of_the_standard() -> None:
    body = problem(NotFound("There is no job.", status="RUNNING", type="job", detail="x", errors=1))
    assert (body["status"], body["type"], body["detail"]) == (404, "urn:ondot:problem:not-found", "There is no job.")
    assert "errors" not in body
