"""A small run written by hand without ondot, and errors to plant in it: they judge the checker.

It has one of each kind that the checker judges: a job that ran once, one that is called at most once, one that was
paused, resumed and deleted, one with a changed schedule, a run by hand, a create without an answer. Without a planted
error everything adds up.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from tests.faults.checker import Bounds, Verdict, judge
from tests.faults.evidence import Fault
from tests.faults.journal import Operation
from tests.faults.ledger import Call
from tests.faults.planting import HTTP, WORKER, Rest, at

GOOD = "SUCCEEDED"
BOUNDS = Bounds(heartbeat_s=2.0, lease_s=1.0, workers=2, slack_s=0.5)
EVERY_2 = {"every": "2s", "anchor_at": "2026-11-01T12:00:00Z"}
EVERY_3 = {"every": "3s", "anchor_at": "2026-11-01T12:00:00Z"}
ENDED_S = 30.0


@dataclass(slots=True)
class Scene:
    """A run of some seconds: the client's requests, the receiver's calls, the faults, the stored rows."""

    rest: Rest
    directory: Path
    journal: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def asked(self, op: str, job: str, asked_s: float, acked_s: float | None, **more: Any) -> None:
        id_ = str(self.rest.jobs[job])
        answer = {"id": id_} | more.pop("answer", {})
        acked = None if acked_s is None else at(acked_s).timestamp()
        outcome: Any = "unclear" if acked_s is None else "acked"
        operation = Operation(
            op, job, more.pop("body", None), at(asked_s).timestamp(), outcome, job_id=id_, acked_s=acked
        )
        self.journal.append(replace(operation, answer=answer, **more))

    def change(self, op: str, job: str, **changed: Any) -> None:
        """Rewrite an operation in the journal."""
        [number] = [n for n, one in enumerate(self.journal) if (one.op, one.job) == (op, job)]
        self.journal[number] = replace(self.journal[number], **changed)

    async def judged(self) -> Verdict:
        rows = await self.rest.connection.fetch("SELECT id, job_id, fire_at FROM ondot.history")
        of = {row["id"]: row for row in rows}
        books, acks, faults = (self.directory / name for name in ("books", "acks", "faults"))
        books.write_text("".join(_book(call, of) for call in self.rest.calls))
        acks.write_text("".join(json.dumps(asdict(one)) + "\n" for one in self.journal))
        faults.write_text("".join(json.dumps(asdict(one)) + "\n" for one in self.faults))
        return await judge(
            self.rest.connection,
            books,
            acks,
            faults,
            began_s=at(0).timestamp(),
            ended_s=at(ENDED_S).timestamp(),
            bounds=BOUNDS,
        )

    async def checks(self) -> set[str]:
        return {violation.check for violation in (await self.judged()).violations}


def _book(call: Call, of: dict[UUID, asyncpg.Record]) -> str:
    row = of.get(call.execution_id)
    job_id, fire_at = (row["job_id"], row["fire_at"]) if row else (UUID(int=0), at(0))
    entry = {"id": str(call.execution_id), "attempt": call.attempt, "token": call.token}
    received = entry | {"job_id": str(call.job_id or job_id), "fire_at": str(call.fire_at or fire_at)}
    lines = [{"received": received, "at_s": call.at_s}]
    if call.status is not None:
        lines.append({"answered": received, "status": call.status})
    return "".join(json.dumps(line) + "\n" for line in lines)


async def a_scene(rest: Rest, directory: Path) -> Scene:
    scene = Scene(rest, directory)
    await rest.job("plain", HTTP)
    await rest.ran("plain", rest.jobs["plain"], (0.05, 0.1, GOOD), status=200)
    scene.asked("create", "plain", -0.1, 0.02, body={"name": "plain"}, key="create plain")
    scene.asked("repeat", "plain", 1.0, 1.1, body={"name": "plain"}, key="create plain")

    never = {"retry": {"max_retries": 0, "max_worker_losses": 0}}
    await rest.job("at most once", HTTP | never)
    await rest.ran("at most once", rest.jobs["at most once"], (0.05, 0.1, GOOD), status=200)
    scene.asked("create", "at most once", -0.1, 0.02, body={"name": "at most once", **never}, key="batch 1")

    await _recurring(scene, "paused", EVERY_2)
    for due_s in (2, 4, 8):
        await _fire(scene, "paused", due_s)
    scene.asked("pause", "paused", 4.5, 4.6)
    scene.asked("resume", "paused", 7.0, 7.1, body={})
    scene.asked("delete", "paused", 9.0, 9.1)
    await rest.run(
        "INSERT INTO ondot.skipped VALUES ($1, $2, $2, 1, 'paused', 1, $3, 1)", rest.jobs["paused"], at(6), at(7)
    )
    await rest.run("UPDATE ondot.job SET state = 'DELETED' WHERE name = 'paused'")

    await _recurring(scene, "updated", EVERY_2)
    for due_s, version in ((2, 1), (6, 2), (9, 2)):
        await _fire(scene, "updated", due_s, version)
    body = {"name": "updated", "schedule": EVERY_3, "payload": {"mark": "updated v2"}}
    scene.asked("update", "updated", 3.0, 3.1, body=body, answer={"version": 2})
    scene.asked("pause", "updated", 10.0, 10.1)
    await rest.run(
        "INSERT INTO ondot.job_version SELECT job_id, 2, tenant_no, (jsonb_set(spec::jsonb, '{payload}', $1))::json,"
        " created_at FROM ondot.job_version WHERE job_id = $2",
        json.dumps({"mark": "updated v2"}),
        rest.jobs["updated"],
    )
    await rest.run("UPDATE ondot.job SET state = 'PAUSED', version = 2 WHERE name = 'updated'")

    await rest.ran("by hand", rest.jobs["updated"], (5.0, 5.1, GOOD), due_s=5, status=200)
    await rest.run(
        "UPDATE ondot.history SET origin = 'run', payload = $2 WHERE id = $1",
        *(rest.ids["by hand"], json.dumps({"mark": "by hand"})),
    )
    started = {"execution_id": str(rest.ids["by hand"])}
    body = {"payload": {"mark": "by hand"}}
    scene.asked("run", "updated", 4.9, 5.0, body=body, answer=started, key="run 1")

    await rest.job("unclear", HTTP)
    await rest.ran("unclear", rest.jobs["unclear"], (0.05, 0.1, GOOD), status=200)
    scene.asked("create", "unclear", -0.1, None, body={"name": "unclear"}, key="create unclear")
    return scene


async def _recurring(scene: Scene, name: str, schedule: dict[str, Any]) -> None:
    body = HTTP | {"schedule": schedule, "payload": {"mark": name}}
    await scene.rest.job(name, body)
    scene.asked("create", name, 0.2, 0.3, body={"name": name, "schedule": schedule}, key=f"create {name}")


async def _fire(scene: Scene, job: str, due_s: float, version: int = 1, *, began_s: float | None = None) -> None:
    rest, name = scene.rest, f"{job} {due_s}"
    began_s = due_s + 0.05 if began_s is None else began_s
    await rest.ran(name, rest.jobs[job], (began_s, began_s + 0.1, GOOD), due_s=due_s, status=200)
    await rest.run("UPDATE ondot.history SET job_version = $2 WHERE id = $1", rest.ids[name], version)


# Errors to plant -----------------------------------------------------------------------------------------------------

Plant = Callable[[Scene], Awaitable[None]]


async def _forget(scene: Scene, name: str) -> None:
    id_ = scene.rest.ids[name]
    scene.rest.calls[:] = [call for call in scene.rest.calls if call.execution_id != id_]
    await scene.rest.run("DELETE FROM ondot.history WHERE id = $1", id_)


async def a_fire_without_an_end(scene: Scene) -> None:
    await _forget(scene, "paused 4")


async def a_one_time_job_that_never_ran(scene: Scene) -> None:
    await _forget(scene, "plain")


async def a_fire_of_a_pause_without_a_record(scene: Scene) -> None:
    await scene.rest.run("DELETE FROM ondot.skipped")


async def two_executions_of_a_fire(scene: Scene) -> None:
    await scene.rest.run("DROP INDEX IF EXISTS ondot.execution_fire")
    await _fire(scene, "paused", 2.0)


async def a_fire_that_ran_and_is_skipped(scene: Scene) -> None:
    await scene.rest.run("UPDATE ondot.skipped SET from_at = $1, count = 2", at(4))


async def a_start_before_its_time(scene: Scene) -> None:
    await scene.rest.run("UPDATE ondot.history SET started_at = $2 WHERE id = $1", scene.rest.ids["paused 4"], at(3.9))


async def a_call_before_its_time(scene: Scene) -> None:
    _recall(scene, "paused 4", 3.9)


async def a_start_that_is_late(scene: Scene) -> None:
    await fire_late(scene, 1.6)


async def a_fire_that_was_due_long_before_its_job_was_deleted(scene: Scene) -> None:
    await scene.rest.run(
        "UPDATE ondot.history SET state = 'CANCELLED', reason = 'job deleted', started_at = NULL, attempt_no = 0,"
        " worker_id = NULL, ended_at = fire_at + interval '9 s' WHERE id = $1",
        scene.rest.ids["plain"],
    )


async def a_call_that_is_late(scene: Scene) -> None:
    _recall(scene, "paused 8", 9.6)


async def a_start_later_than_a_lost_worker_explains(scene: Scene) -> None:
    scene.faults.append(fault("worker.kill", "worker-2", 1.0, 2.0))
    await fire_late(scene, 4.7)


async def a_fire_outside_the_schedule(scene: Scene) -> None:
    await _fire(scene, "paused", 3.0)


async def a_fire_off_the_beat_after_a_late_one(scene: Scene) -> None:
    await scene.rest.run("UPDATE ondot.history SET fire_at = $2 WHERE id = $1", scene.rest.ids["paused 4"], at(4.3))


async def a_fire_of_a_pause_that_ran(scene: Scene) -> None:
    await scene.rest.run("DELETE FROM ondot.skipped")
    await _fire(scene, "paused", 6.0, began_s=7.2)


async def a_start_in_a_pause(scene: Scene) -> None:
    await scene.rest.run(
        "UPDATE ondot.history SET started_at = $2, ended_at = $3 WHERE id = $1",
        *(scene.rest.ids["paused 4"], at(4.7), at(4.8)),
    )
    _recall(scene, "paused 4", 4.75)


async def a_fire_after_a_delete(scene: Scene) -> None:
    await _fire(scene, "paused", 10.0)


async def a_start_by_a_superseded_version(scene: Scene) -> None:
    await scene.rest.run("UPDATE ondot.history SET job_version = 1 WHERE id = $1", scene.rest.ids["updated 6"])


async def a_lost_create(scene: Scene) -> None:
    await _forget(scene, "at most once")
    await scene.rest.run("DELETE FROM ondot.job_once WHERE name = 'at most once'")


async def a_lost_update(scene: Scene) -> None:
    await scene.rest.run("UPDATE ondot.job_version SET spec = jsonb_set(spec::jsonb, '{payload}', '{}')::json")


async def a_lost_delete(scene: Scene) -> None:
    await scene.rest.run("UPDATE ondot.job SET state = 'ACTIVE' WHERE name = 'paused'")


async def a_lost_run_by_hand(scene: Scene) -> None:
    await _forget(scene, "by hand")


async def two_jobs_of_one_key(scene: Scene) -> None:
    await scene.rest.run(
        "INSERT INTO ondot.job_once SELECT $1, tenant_no, name, pool_no, fire_at, labels, spec FROM ondot.job_once"
        " WHERE name = 'plain'",
        UUID(int=5_000),
    )


async def a_repeated_create_with_another_answer(scene: Scene) -> None:
    scene.change("repeat", "plain", answer={"id": str(UUID(int=6_000))})


async def two_runs_by_hand_of_one_key(scene: Scene) -> None:
    await scene.rest.ran("again", scene.rest.jobs["updated"], (5.0, 5.1, GOOD), due_s=5.5, status=200)
    await scene.rest.run(
        "UPDATE ondot.history SET origin = 'run', payload = $2 WHERE id = $1",
        *(scene.rest.ids["again"], json.dumps({"mark": "by hand"})),
    )


async def half_a_batch(scene: Scene) -> None:
    scene.journal.append(replace(scene.journal[2], job="another of the batch", outcome="unclear", acked_s=None))


async def a_refused_job_that_exists(scene: Scene) -> None:
    scene.change("create", "unclear", outcome="refused", status=422)


async def a_job_without_a_request(scene: Scene) -> None:
    await scene.rest.job("nobody's", HTTP)
    await scene.rest.ran("nobody's", scene.rest.jobs["nobody's"], (0.05, 0.1, GOOD), status=200)


async def a_cancel_that_did_not_last(scene: Scene) -> None:
    body = {"execution_id": str(scene.rest.ids["plain"])}
    scene.asked("cancel", "plain", 0.03, 0.04, body=body, answer={"state": "CANCELLED"})


async def a_misfire_before_its_grace_was_over(scene: Scene) -> None:
    await _forget(scene, "updated 9")
    skipped = "INSERT INTO ondot.skipped VALUES ($1, $2, $2, 1, 'misfire', 1, $3, 2)"
    await scene.rest.run(skipped, scene.rest.jobs["updated"], at(9), at(20))


async def a_skipped_range_that_counts_wrong(scene: Scene) -> None:
    await scene.rest.run("UPDATE ondot.skipped SET count = 7")


async def a_success_that_its_receiver_does_not_know(scene: Scene) -> None:
    scene.rest.calls[:] = [call for call in scene.rest.calls if call.execution_id != scene.rest.ids["paused 8"]]


async def a_second_call_of_a_job_that_is_called_at_most_once(scene: Scene) -> None:
    [call] = [call for call in scene.rest.calls if call.execution_id == scene.rest.ids["at most once"]]
    scene.rest.calls.append(replace(call, attempt=2, token=2))


async def a_call_with_the_name_of_another_fire(scene: Scene) -> None:
    _recall(scene, "paused 8", 8.06, fire_at=at(4))


async def work_taken_from_a_worker_that_lives(scene: Scene) -> None:
    await _lose(scene, "worker_lost")
    await scene.rest.run(
        "INSERT INTO ondot.worker (id, state, host, pid, release, pool_nos, slots, started_at, beat_at)"
        " VALUES ($1, 'ALIVE', 'here', 1, '0', '{1}', 1, $2, $2)",
        *(WORKER, at(0)),
    )


async def an_attempt_that_failed_inside(scene: Scene) -> None:
    await _lose(scene, "internal")


async def _lose(scene: Scene, code: str) -> None:
    """The first attempt of a fire is lost, the second succeeds."""
    id_ = scene.rest.ids["paused 8"]
    await scene.rest.run(
        "INSERT INTO ondot.attempt VALUES ($1, 1, 1, $2, 'WORKER_LOST', $3, $3, $4)",
        *(id_, WORKER, at(8.01), json.dumps({"code": code})),
    )
    await scene.rest.run("UPDATE ondot.history SET attempt_no = 2, losses = 1 WHERE id = $1", id_)
    _recall(scene, "paused 8", 8.06, attempt=2, token=2)


async def an_execution_that_ended_and_lives(scene: Scene) -> None:
    await scene.rest.run(
        "INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state,"
        " origin) SELECT id, job_id, fire_at, ready_at, 1, 1, 1, 2, 'PENDING', 'run' FROM ondot.history WHERE id = $1",
        scene.rest.ids["plain"],
    )


async def fire_late(scene: Scene, late_s: float) -> None:
    began_s = 2 + late_s
    await scene.rest.run(
        "UPDATE ondot.history SET started_at = $2, ended_at = $3 WHERE id = $1",
        *(scene.rest.ids["updated 2"], at(began_s), at(began_s + 0.1)),
    )
    _recall(scene, "updated 2", began_s + 0.01)


def _recall(scene: Scene, name: str, at_s: float, **changed: Any) -> None:
    calls, id_ = scene.rest.calls, scene.rest.ids[name]
    [number] = [n for n, call in enumerate(calls) if call.execution_id == id_]
    calls[number] = replace(calls[number], at_s=at(at_s).timestamp(), **changed)


def fault(kind: str, target: str, began_s: float, ended_s: float, **detail: Any) -> Fault:
    return Fault(kind, target, at(began_s).timestamp(), at(ended_s).timestamp(), detail)


PLANTS: dict[Plant, str] = {
    a_fire_without_an_end: "lost_fire",
    a_one_time_job_that_never_ran: "lost_fire",
    a_fire_of_a_pause_without_a_record: "lost_fire",
    two_executions_of_a_fire: "doubled_fire",
    a_fire_that_ran_and_is_skipped: "doubled_fire",
    a_start_before_its_time: "early",
    a_call_before_its_time: "early",
    a_start_that_is_late: "late",
    a_call_that_is_late: "late",
    a_fire_that_was_due_long_before_its_job_was_deleted: "late",
    a_start_later_than_a_lost_worker_explains: "late",
    a_fire_outside_the_schedule: "phantom",
    a_fire_off_the_beat_after_a_late_one: "phantom",
    a_fire_of_a_pause_that_ran: "paused_fire",
    a_start_in_a_pause: "after_pause",
    a_fire_after_a_delete: "after_delete",
    a_start_by_a_superseded_version: "superseded",
    a_lost_create: "lost_ack",
    a_lost_update: "lost_ack",
    a_lost_delete: "lost_ack",
    a_lost_run_by_hand: "lost_ack",
    a_cancel_that_did_not_last: "lost_ack",
    two_jobs_of_one_key: "two_objects",
    a_repeated_create_with_another_answer: "two_objects",
    two_runs_by_hand_of_one_key: "two_objects",
    half_a_batch: "half_a_batch",
    a_refused_job_that_exists: "not_refused",
    a_job_without_a_request: "phantom",
    a_misfire_before_its_grace_was_over: "skipped",
    a_skipped_range_that_counts_wrong: "skipped",
    a_success_that_its_receiver_does_not_know: "calls",
    a_second_call_of_a_job_that_is_called_at_most_once: "at_most_once",
    a_call_with_the_name_of_another_fire: "calls",
    an_execution_that_ended_and_lives: "ended_twice",
    work_taken_from_a_worker_that_lives: "false_loss",
    an_attempt_that_failed_inside: "internal",
}
"""Each error to plant, and the check that must find it."""
