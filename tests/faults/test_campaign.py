"""A minute of faults over a fleet of real processes, judged; and planted bugs that judge the judgement.

`make faults` runs the same for minutes or hours (docs/explanation/guarantees.md). Each of `tests.faults.bugs` is
planted into every role of a small fleet, and its campaign must find one of the violations that the bug is known by, or
one that only a bug can cause. A campaign without a bug finds nothing: the minute shows that.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.faults.bugs import BUGS
from tests.faults.campaign import Campaign
from tests.proves import proves

SEED = int(os.environ.get("ONDOT_TEST_SEED", "6"))
CAMPAIGNS = 6
LONGER = 0.4
"""Each further campaign for a bug is longer by this share: on a slow machine less happens in the same time."""
PATIENCE_S = 120.0
"""How long a campaign without a bug may take to end its work: a slow machine shall not fail for it."""
LOADED_S = 20.0
"""Other tests run at the same time: the report shows lateness, and `make faults` judges it on a quiet machine."""
MINUTE = Campaign(
    seconds=60,
    seed=SEED,
    jobs=600,
    schedulers=3,
    workers=3,
    apis=2,
    tenants=4,
    flows=60,
    sends=200,
    alerts=6,
    old_days=True,
    at_once=2,
    slack_s=LOADED_S,
    calm_within_s=PATIENCE_S,
)
SMALL = Campaign(
    seconds=7,
    seed=SEED,
    jobs=70,
    schedulers=1,
    workers=1,
    apis=1,
    lease_s=1.0,
    heartbeat_s=1.5,
    horizon_s=6.0,
    calm_s=(0.5, 1.0),
    calm_within_s=8.0,
    slack_s=LOADED_S,
    kinds=("postgres.snapshot",),
)


@pytest.mark.long
@pytest.mark.timeout(600)
@proves(
    *(f"P{number}" for number in range(1, 12)),
    *(f"L{number}" for number in range(1, 6)),
    "C1",
    "C2",
    "C3",
    "C11",
    "N5",
    "O1",
    "O4",
)
async def test_after_a_minute_of_faults_every_promise_was_kept(tmp_path: Path) -> None:
    verdict, report = await MINUTE.run(tmp_path)
    print(f"\n{report.text}")  # noqa: T201 - what the run was
    assert [str(violation) for violation in verdict.violations] == []
    assert verdict.counts["fires"] > MINUTE.jobs / 2
    assert verdict.counts["workflow_runs"] > MINUTE.flows / 2
    assert verdict.counts["alert_causes"] > MINUTE.alerts


NEVER_BY_SLOWNESS = frozenset(
    {
        "after_delete",
        "after_pause",
        "called_deleted",
        "calls",
        "completed_deleted",
        "concurrency",
        "double_release",
        "doubled_alert",
        "doubled_event",
        "doubled_fire",
        "early",
        "early_step",
        "ended_twice",
        "event_after_delete",
        "lost_end",
        "lost_object",
        "lost_row",
        "order",
        "overlap",
        "paused_fire",
        "phantom",
        "phantom_alert",
        "phantom_event",
        "phantom_step",
        "repeated_message",
        "superseded",
        "two_executions",
        "two_objects",
        "unique",
        "unsent_message",
        "wrong_run",
        "wrong_step",
    }
)
"""Something happened that must not, twice or at the wrong time. A fleet without a bug never does, however slow it is
(work that is late, lost or not ended may only be slow): so each of these is caused by the bug."""


@dataclass(frozen=True, slots=True)
class Known:
    """The violations that a bug is known by, and what a campaign needs to find it."""

    checks: frozenset[str]
    campaign: Campaign = SMALL


def by(*checks: str, **needs: object) -> Known:
    return Known(frozenset(checks), replace(SMALL, **needs))  # type: ignore[arg-type]


SLOW_CALLS = {"focus": ("slow",), "jobs": 40}
"""The one worker always runs some of them, so that a kill of it interrupts a call."""
PAUSES = {"focus": ("paused",), "jobs": 20, "seconds": 12}
CHANGES = {"focus": ("deleted", "updated", "paused"), "jobs": 20, "seconds": 10}
BEYOND = {"focus": ("bounded", "jittered"), "jobs": 14, "seconds": 14}
"""Longer than the horizon, so that a scheduler must plan."""
LONG = {"focus": ("bounded", "jittered"), "jobs": 24, "seconds": 26, "slack_s": 2.0}
"""Long enough for a hang longer than the horizon and than a restart."""
TENANTS = {"tenants": 3, "jobs": 10, "seconds": 14, "slack_s": 1.0, "calm_within_s": 20.0}
FIRES = {"focus": ("jittered", "deleted"), "jobs": 20, "schedulers": 2}
FLOWS = {"flows": 60, "jobs": 2}
ALERTS = {"alerts": 3, "jobs": 2, "seconds": 10}
OLD_DAYS = {"old_days": True, "jobs": 2}
KNOWN = {
    "no_compare_and_set": by("doubled_fire", "two_executions", schedulers=2, focus=("bounded",), jobs=14, seconds=18),
    "no_unique_key": by("doubled_fire", "two_executions", **FIRES),
    "cadence_from_now": by("phantom", "lost_fire", **BEYOND),
    "early": by("early"),
    "skips_silently": by("lost_fire", **PAUSES),
    "never_takes_over": by("lost_fire", "late", kinds=("scheduler.kill",), slack_s=2.0, **BEYOND),
    "never_gets_another_lease": by(
        "lost_fire",
        "late",
        kinds=("etcd.revoke",),
        coordination="etcd",
        lease_s=2.0,
        **BEYOND | {"horizon_s": 9.0, "seconds": 18, "slack_s": 2.0},
    ),
    "forgets_to_take_back": by("after_pause", "after_delete", "superseded", "phantom", **CHANGES),
    "ack_before_commit": by("lost_ack", kinds=("api.kill",)),
    "forgets_keys": by("two_objects"),
    "beats_though_hung": by("late", "lost_fire", kinds=("scheduler.hung", "worker.hung"), **LONG),
    "waits_for_its_log": by(
        "late", "lost_fire", kinds=("scheduler.unread", "worker.unread", "postgres.terminate"), at_once=2, **LONG
    ),
    "no_polling": by("not_ended", settings={"pgbouncer": "1"}),
    "worker_id_from_host": by("calls", "false_loss", "not_ended", kinds=("worker.kill",), **SLOW_CALLS),
    "any_answer_is_success": by("calls"),
    "repeats_the_call": by("calls"),
    "forgets_outcomes": by("not_ended", kinds=("postgres.restart",), **SLOW_CALLS),
    "no_token": by("calls", "attempts", kinds=("worker.freeze",), focus=("slower",), jobs=60, seconds=12, workers=2),
    "no_gates": by("concurrency", "overlap", "order", focus=("by_key", "ordered", "meeting")),
    "never_recovers": by("not_ended", kinds=("worker.kill",), **SLOW_CALLS),
    "recovers_by_age": by("false_loss", "not_ended", **SLOW_CALLS),
    "ignores_quotas": by("quota", kinds=("tenant.quota", "tenant.flood"), **TENANTS),
    "leases_for_suspended": by("leased_suspended", kinds=("tenant.suspended",), **TENANTS),
    "goes_on_for_deleted": by(
        "completed_deleted", "called_deleted", "not_removed", kinds=("tenant.deleted",), **TENANTS
    ),
    "keeps_rows_of_deleted": by("not_removed", kinds=("tenant.deleted",), **TENANTS),
    "trusts_keys_for_ever": by("revoked_key", kinds=("tenant.key",), **TENANTS),
    "first_come_first_served": by("starved", kinds=("tenant.flood",), **TENANTS),
    "loses_arrivals": by("stuck_run", **FLOWS),
    "releases_twice": by("double_release", **FLOWS),
    "counts_old_generations": by("wrong_step", "lost_step", "early_step", flows=90, jobs=2, seconds=12),
    "matches_old_subscriptions": by("event_after_delete", "missed_event", jobs=2, sends=60),
    "opens_again": by("doubled_alert", "phantom_alert", **ALERTS),
    "marks_sent_first": by("unsent_message", **ALERTS),
    "drops_late_rows": by("lost_end", seconds=10, **OLD_DAYS),
    "drops_due_jobs": by("lost_row", **OLD_DAYS),
    "recovers_by_id": by("false_loss", "calls", "attempts", kinds=("worker.kill",), **SLOW_CALLS),
}


RARE = {
    "early",
    "never_takes_over",
    "never_gets_another_lease",
    "forgets_keys",
    "any_answer_is_success",
    "repeats_the_call",
    "forgets_outcomes",
    "no_gates",
    "waits_for_its_log",
    "keeps_rows_of_deleted",
    "trusts_keys_for_ever",
    "releases_twice",
    "counts_old_generations",
    "matches_old_subscriptions",
    "leases_for_suspended",
    "recovers_by_id",
    "opens_again",
    "drops_due_jobs",
}
"""Planted only with ONDOT_TEST_ALL_BUGS, to keep the tests short: every run plants eighteen others."""
ALL_BUGS = bool(os.environ.get("ONDOT_TEST_ALL_BUGS"))


def test_every_bug_is_known_by_something() -> None:
    assert KNOWN.keys() == BUGS.keys()


@proves("W1", "W2", "W3", "S11", "O1", "O4")
@pytest.mark.timeout(450)
async def test_without_a_bug_a_small_campaign_is_clean(tmp_path: Path) -> None:
    """So the campaign itself does not cause the violations of the planted bugs."""
    kinds = ("scheduler.kill", "worker.kill", "worker.freeze", "worker.hung", "api.kill", "postgres.restart")
    campaign = replace(
        SMALL,
        seconds=14,
        schedulers=2,
        workers=2,
        flows=30,
        sends=60,
        alerts=3,
        old_days=True,
        kinds=kinds,
        calm_within_s=PATIENCE_S,
    )
    verdict, report = await campaign.run(tmp_path)
    print(f"\n{report.text}")  # noqa: T201 - what the run was
    assert [str(violation) for violation in verdict.violations] == []
    assert verdict.counts["workflow_runs"]
    assert verdict.counts["events_started"]
    assert verdict.counts["alert_messages"] >= 2 * verdict.counts["alert_causes"] > 0
    assert verdict.counts["old_rows_gone"]


@pytest.mark.long
@proves("C4", "C5", "L5")
@pytest.mark.timeout(450)
async def test_work_is_late_by_a_second_more_at_most_while_the_transport_fails(tmp_path: Path) -> None:
    campaign = replace(
        SMALL,
        seconds=25,
        jobs=150,
        transport="redis",
        kinds=("broker", "worker.restart"),
        calm_within_s=PATIENCE_S,
    )
    verdict, report = await campaign.run(tmp_path)
    print(f"\n{report.text}")  # noqa: T201 - what the run was
    assert [str(violation) for violation in verdict.violations] == []
    assert verdict.counts["fires"] > campaign.jobs / 2


@pytest.mark.long
@proves("C1", "C2", "C6", "L2", "L4")
@pytest.mark.timeout(450)
async def test_schedulers_that_coordinate_by_etcd_keep_every_promise_while_it_fails(tmp_path: Path) -> None:
    campaign = replace(
        SMALL,
        seconds=25,
        jobs=150,
        schedulers=3,
        lease_s=2.0,
        horizon_s=20.0,
        coordination="etcd",
        kinds=("etcd", "scheduler.kill", "scheduler.freeze_long", "scheduler.restart"),
        calm_within_s=PATIENCE_S,
    )
    verdict, report = await campaign.run(tmp_path)
    print(f"\n{report.text}")  # noqa: T201 - what the run was
    assert [str(violation) for violation in verdict.violations] == []
    assert verdict.counts["fires"] > campaign.jobs / 2


@proves("T1", "T2", "L6")
@pytest.mark.timeout(450)
async def test_tenants_that_are_flooded_suspended_deleted_and_limited_under_load_keep_what_they_were_promised(
    tmp_path: Path,
) -> None:
    campaign = replace(
        SMALL, seconds=20, jobs=40, tenants=4, kinds=("tenant", "worker.kill"), at_once=2, calm_within_s=PATIENCE_S
    )
    verdict, report = await campaign.run(tmp_path)
    print(f"\n{report.text}")  # noqa: T201 - what the run was
    assert [str(violation) for violation in verdict.violations] == []
    assert verdict.counts["tenants_deleted"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", [bug for bug in KNOWN if ALL_BUGS or bug not in RARE])
async def test_a_planted_bug_is_caught(bug: str, tmp_path: Path) -> None:
    """Usually by the first campaign. It is chance whether a fault meets the work that shows the bug."""
    known = KNOWN[bug]
    small = known.campaign
    found: set[str] = set()
    for number in range(CAMPAIGNS):
        directory = tmp_path / str(number)
        directory.mkdir()
        size = 1 + LONGER * number
        campaign = replace(
            small, bug=bug, seed=SEED + number, seconds=small.seconds * size, jobs=round(small.jobs * size)
        )
        verdict, report = await campaign.run(directory)
        print(f"\n{report.text}")  # noqa: T201 - what the run was
        found |= {violation.check for violation in verdict.violations}
        if (known.checks | NEVER_BY_SLOWNESS) & found:
            return
    pytest.fail(f"{CAMPAIGNS} campaigns did not find the bug, only {sorted(found)}")
