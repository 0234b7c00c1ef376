"""The judgement of tenants is judged: each violation is planted into a small tenancy written by hand, and found."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from ondot.document.parse import job_spec
from ondot.model.job import JobSpec
from tests.faults.audit import Attempt, Execution, Run
from tests.faults.ledger import Call
from tests.faults.tenant_checks import (
    Successes,
    Tenancy,
    check_calls_of_deleted,
    check_creates,
    check_fires,
    check_keys,
    check_quota,
    check_starved,
    check_suspended,
)
from tests.faults.tenant_users import EVERY_S, Asked
from tests.proves import proves

BEGAN_S = 1_800_000_000.0
WORKER = UUID(int=9)
SPEC = job_spec({"name": "call", "url": "http://192.0.2.1/"}, datetime.fromtimestamp(BEGAN_S, UTC))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(BEGAN_S + seconds, UTC)


def asked(op: str, seconds: float, *, took_s: float = 0.1, outcome: str = "acked", **more: Any) -> Asked:
    """A request that was sent at once and answered `took_s` later."""
    sent_s = BEGAN_S + seconds
    acked_s = sent_s + took_s if outcome == "acked" else None
    return Asked(op, 7, sent_s, outcome, sent_s, acked_s, **more)  # type: ignore[arg-type]


def ran(number: int, start_s: float, end_s: float, *, fire_s: float | None = None) -> Execution:
    row: Any = {
        "id": UUID(int=2_000 + number),
        "job_id": UUID(int=1_000 if fire_s is not None else 1_000 + number),
        "fire_at": at(start_s if fire_s is None else fire_s),
        "ended_at": at(end_s),
        "origin": "fire",
    }
    return Execution(row, SPEC, [Attempt(1, "SUCCEEDED", at(start_s), at(end_s), WORKER, None)])


def tenancy(
    requests: Sequence[Asked],
    executions: Sequence[Execution] = (),
    *,
    jobs: dict[str, list[UUID]] | None = None,
    specs: dict[UUID, JobSpec] | None = None,
    skipped: Sequence[Any] = (),
    calls: Sequence[Call] = (),
) -> Tenancy:
    run = Run(
        {execution.id: execution for execution in executions}, calls, specs or {}, [], {}, set(), Counter(), Counter()
    )
    through = {UUID(int=1_000): at(10 * EVERY_S)}
    return Tenancy(7, requests, run, calls, jobs or {}, skipped, through, 0.0)


def found(violations: Any) -> list[str]:
    return [violation.check for violation in violations]


@proves("T2", "P11")
@pytest.mark.parametrize(
    ("changes", "starts", "expected"),
    [
        ([], [(1, 3), (1.5, 3), (2, 3)], ["quota"]),
        ([], [(1, 2), (1.5, 2.5), (2, 3)], []),
        ([("tenant.quota", 0.5, 3)], [(1, 3), (1.5, 3), (2, 3)], []),
        ([("tenant.quota", 0.5, None)], [(1, 3), (1.5, 3), (2, 3)], []),
        ([("tenant.quota", 3.5, 1)], [(1, 6), (2, 6)], []),
        ([("tenant.quota", 3.5, 1)], [(1, 6), (4, 6)], []),
        ([("tenant.quota", 3.5, 1)], [(1, 6), (5, 6)], ["quota"]),
    ],
    ids=["over", "one_after_another", "raised", "removed", "lowered_while_they_run", "not_yet_held", "lowered"],
)
def test_a_quota_of_two_is_judged_by_what_was_in_force(
    changes: list[tuple[str, float, int | None]], starts: list[tuple[float, float]], expected: list[str]
) -> None:
    requests = [asked("tenant.create", 0, concurrent=2)]
    requests += [asked(op, seconds, concurrent=limit) for op, seconds, limit in changes]
    executions = [ran(number, *span) for number, span in enumerate(starts)]
    assert found(check_quota(tenancy(requests, executions))) == expected


@proves("T2")
@pytest.mark.parametrize(("start_s", "expected"), [(0.5, []), (1.9, []), (3, ["leased_suspended"]), (6.5, [])])
def test_nothing_starts_from_a_second_after_a_suspension_until_it_is_resumed(
    start_s: float, expected: list[str]
) -> None:
    requests = [asked("tenant.suspend", 1), asked("tenant.resume", 6)]
    assert found(check_suspended(tenancy(requests, [ran(1, start_s, 9)]))) == expected


@proves("T1")
@pytest.mark.parametrize("ends", ["key.revoke", "tenant.delete"])
def test_a_key_works_for_at_most_a_second_after_its_end(ends: str) -> None:
    end = asked(ends, 1, key_id="k" if ends == "key.revoke" else None)
    assert found(check_keys(tenancy([end, asked("probe", 1.9, key_id="k")]))) == []
    assert found(check_keys(tenancy([end, asked("probe", 3, key_id="k")]))) == ["revoked_key"]
    assert found(check_keys(tenancy([end, asked("probe", 3, key_id="k", outcome="refused")]))) == []
    assert found(check_keys(tenancy([asked("key.revoke", 1, key_id="k"), asked("create", 3, key_id="other")]))) == []


@proves("T2")
def test_nothing_of_a_deleted_tenant_is_called_or_succeeds() -> None:
    calls = [Call(UUID(int=1), 1, 1, BEGAN_S + seconds, 200) for seconds in (0.5, 2, 4)]
    deleted = tenancy([asked("tenant.delete", 1)], calls=calls)
    assert found(check_calls_of_deleted(deleted)) == ["called_deleted"]
    successes = Successes({UUID(int=1): (7, at(2)), UUID(int=2): (7, at(4)), UUID(int=3): (8, at(4))})
    assert found(successes.violations(deleted)) == ["completed_deleted"]


@proves("P1", "P2")
def test_an_acknowledged_job_exists_once_and_a_refused_one_does_not() -> None:
    one, other = UUID(int=1), UUID(int=2)
    created = asked("create", 1, job="a", job_id=str(one))
    assert found(check_creates(tenancy([created], jobs={"a": [one]}))) == []
    assert found(check_creates(tenancy([created]))) == ["lost_ack"]
    assert found(check_creates(tenancy([created], jobs={"a": [one, other]}))) == ["two_objects"]
    refused = replace(created, outcome="refused", job_id=None)
    assert found(check_creates(tenancy([refused]))) == []
    assert found(check_creates(tenancy([refused], jobs={"a": [one]}))) == ["not_refused"]


@proves("P3", "P4")
def test_every_fire_of_a_recurring_job_has_one_end_on_record() -> None:
    job_id = UUID(int=1_000)
    schedule = {"every": f"{EVERY_S:g}s", "anchor_at": at(0).isoformat()}
    spec = job_spec({"name": "recurs", "url": "http://192.0.2.1/", "schedule": schedule}, at(0))
    request = asked("recur", 0.1, job="recurs", job_id=str(job_id))
    executions = [ran(number, 1, 2, fire_s=number * EVERY_S) for number in range(1, 6)]
    skipped = {"job_id": job_id, "from_at": at(6 * EVERY_S), "to_at": at(10 * EVERY_S)}

    def judged(executions: Sequence[Execution], *skipped: dict[str, Any]) -> list[str]:
        return found(check_fires(tenancy([request], executions, specs={job_id: spec}, skipped=skipped)))

    assert judged(executions, skipped) == []
    assert judged(executions[1:], skipped) == ["lost_fire"]
    assert judged(executions, skipped | {"from_at": at(7 * EVERY_S)}) == ["lost_fire"]
    assert judged(executions, skipped | {"from_at": at(5 * EVERY_S)}) == ["doubled_fire"]


@proves("L6")
@pytest.mark.parametrize(("waited_s", "expected"), [(0.2, []), (3.0, ["starved"])])
def test_a_quiet_tenant_waits_much_less_than_the_one_that_floods(waited_s: float, expected: list[str]) -> None:
    floods = [asked("flood", 0, job=f"flood 1.{n}", job_id=str(UUID(int=1_000 + n))) for n in range(50)]
    flooding = tenancy(floods, [ran(n, 0.1 + n / 10, 9) for n in range(50)])
    creates = [asked("create", n / 5, job=f"once {n}", job_id=str(UUID(int=1_000 + n))) for n in range(9)]
    alone = tenancy(creates, [ran(n, 0.1 + n / 5 + waited_s, 9) for n in range(9)])
    assert found(check_starved(alone, flooding)) == expected


def test_the_clock_of_the_database_may_be_off_for_some_attempts() -> None:
    requests = [asked("tenant.create", 0, concurrent=1)]
    over = tenancy(requests, [ran(1, 1, 3), ran(2, 2, 4)])
    assert found(check_quota(over)) == ["quota"]
    over.is_off = lambda from_at, _to_at: from_at == at(2)
    assert found(check_quota(over)) == []
