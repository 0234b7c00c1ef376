"""A database that has come to rest, written by hand without ondot, and errors to plant in it: they audit the audit.

It holds one of each kind that the audit judges: a retry, a dead letter, keys with a limit, an order and a rate, a job
with fires that must not overlap, a unique one, one with a start deadline, a transaction. Without a planted error
everything adds up.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from ondot.document.parse import job_spec
from ondot.model.job import encode_spec
from tests.faults.ledger import Call

BEGAN = datetime(2026, 11, 1, 12, tzinfo=UTC)
WORKER = UUID(int=99)
HTTP = {"name": "http", "url": "http://192.0.2.1/"}


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


@dataclass(slots=True)
class Rest:
    connection: asyncpg.Connection
    calls: list[Call] = field(default_factory=list)
    ids: dict[str, UUID] = field(default_factory=dict)
    jobs: dict[str, UUID] = field(default_factory=dict)

    async def job(self, name: str, body: dict[str, Any]) -> UUID:
        spec = job_spec(body, BEGAN)
        id_ = self.jobs[name] = UUID(int=1_000 + len(self.jobs))
        if spec.recurs:
            await self.connection.execute(
                "INSERT INTO ondot.job VALUES ($1, 1, NULL, $2, 'ACTIVE', 1, 1, '{}', $3, $3)", id_, name, BEGAN
            )
            await self.connection.execute(
                "INSERT INTO ondot.job_version VALUES ($1, 1, 1, $2, $3)", id_, encode_spec(spec), BEGAN
            )
        else:
            await self.connection.execute(
                "INSERT INTO ondot.job_once VALUES ($1, 1, $2, 1, $3, '{}', $4)", id_, name, BEGAN, encode_spec(spec)
            )
        return id_

    async def ran(
        self,
        name: str,
        job_id: UUID,
        *tries: tuple[float, float, str],
        due_s: float = 0.0,
        status: int | None = None,
    ) -> None:
        """An execution of these attempts: from, to, outcome. With `status` the last was a call with this answer."""
        id_ = self.ids[name] = UUID(int=2_000 + len(self.ids))
        outcomes = [outcome for _, _, outcome in tries]
        for number, (start_s, end_s, outcome) in enumerate(tries, 1):
            is_last = number == len(tries)
            if status is not None:
                answered = status if is_last else 500
                self.calls.append(Call(id_, number, number, at(start_s).timestamp() + 0.01, answered))
            if outcome != "SUCCEEDED":
                error = {"code": "http_status", "status": 500} if status is not None else {"code": "exception"}
                await self.connection.execute(
                    "INSERT INTO ondot.attempt VALUES ($1, $2, 1, $3, $4, $5, $6, $7)",
                    *(id_, number, WORKER, outcome, at(start_s), at(end_s), json.dumps(error)),
                )
        state = outcomes[-1]
        failures = outcomes.count("FAILED")
        await self.connection.execute(
            "INSERT INTO ondot.history (id, job_id, worker_id, fire_at, ready_at, started_at, ended_at, tenant_no,"
            " job_version, pool_no, attempt_no, failures, losses, class, state, origin, reason)"
            " VALUES ($1, $2, $3, $4, $5, $5, $6, 1, 1, 1, $7, $8, 0, 2, $9, 'fire', $10)",
            *(id_, job_id, WORKER, at(due_s), at(tries[-1][0]), at(tries[-1][1]), len(tries), failures, state),
            None if state == "SUCCEEDED" else "reason",
        )
        if state == "FAILED":
            await self.connection.execute(
                "INSERT INTO ondot.dead_letter (execution_id, tenant_no, job_id, job_version, failed_at)"
                " VALUES ($1, 1, $2, 1, $3)",
                *(id_, job_id, at(tries[-1][1])),
            )

    async def run(self, sql: str, *values: object) -> None:
        await self.connection.execute(sql, *values)


async def at_rest(connection: asyncpg.Connection) -> Rest:
    """Everything adds up in it. The guard of test databases is off, because no transition makes these rows."""
    await connection.execute("SET session_replication_role = replica")
    rest = Rest(connection)
    good = "SUCCEEDED"
    await rest.ran("retried", await rest.job("a", HTTP), (1, 2, "FAILED"), (3, 4, good), status=200)
    never = {"max_retries": 0, "max_worker_losses": 0}
    await rest.ran("once", await rest.job("b", HTTP | {"retry": never}), (1, 2, "FAILED"), status=500)
    for number in range(2):
        start_s = 1.0 + 2 * number
        life = (start_s, start_s + 1, good)
        limited = HTTP | {"concurrency_key": "k"}
        await rest.ran(f"limited {number}", await rest.job(f"l{number}", limited), life, status=200)
        ordered = HTTP | {"order_key": "o"}
        job = await rest.job(f"o{number}", ordered)
        await rest.ran(f"ordered {number}", job, life, status=200, due_s=0.1 * number)
        rated = HTTP | {"concurrency_key": "r", "key_rate": "1/1s"}
        await rest.ran(f"rated {number}", await rest.job(f"r{number}", rated), life, status=200)
        unique = HTTP | {"unique": "u"}
        await rest.ran(f"unique {number}", await rest.job(f"u{number}", unique), life, status=200, due_s=start_s)
    for number in range(2, 6):
        start_s = 1.0 + 2 * number
        rated = HTTP | {"concurrency_key": "r", "key_rate": "1/1s"}
        job = await rest.job(f"r{number}", rated)
        await rest.ran(f"rated {number}", job, (start_s, start_s + 1, good), status=200)
    every = {"name": "overlap", "function": "naps", "overlap": "queue", "schedule": {"every": "1s", "max_fires": 2}}
    job = await rest.job("overlap", every)
    await rest.ran("fire 0", job, (1, 2, "FAILED"), (3, 4, good), due_s=1)
    await rest.ran("fire 1", job, (4, 5, good), due_s=2)
    await rest.ran("in time", await rest.job("d", HTTP | {"start_deadline": "5s"}), (1, 2, good), status=200)
    await rest.ran("effect", await rest.job("t", {"name": "t", "function": "transacts"}), (1, 2, good))
    await rest.run("INSERT INTO public.effect VALUES ($1, 1)", rest.ids["effect"])
    return rest


# Errors to plant, each as a bug would leave it behind -----------------------------------------------------------------

Plant = Callable[[Rest], Awaitable[None]]


async def a_slot_left(rest: Rest) -> None:
    await rest.run("INSERT INTO ondot.slot VALUES ($1, $2, 1, false, $3)", UUID(int=1), rest.ids["limited 0"], at(2))


async def a_lease_left(rest: Rest) -> None:
    await rest.run("INSERT INTO ondot.lease VALUES ($1, 0, $2, $3, '{}', '{}')", UUID(int=1), WORKER, at(2))


async def a_place_left_in_the_queue(rest: Rest) -> None:
    await rest.run("INSERT INTO ondot.ready VALUES (1, 2, 1, $1, $2)", at(2), rest.ids["retried"])


async def a_call_made_twice(rest: Rest) -> None:
    rest.calls.append(rest.calls[0])


async def a_call_of_no_attempt(rest: Rest) -> None:
    rest.calls.append(Call(rest.ids["retried"], 3, 3, at(5).timestamp(), 200))


async def a_second_call_of_a_job_that_is_called_at_most_once(rest: Rest) -> None:
    rest.calls.append(Call(rest.ids["once"], 2, 2, at(5).timestamp(), 200))


async def a_call_with_an_old_token(rest: Rest) -> None:
    call = rest.calls[1]
    rest.calls[1] = Call(call.execution_id, call.attempt, 1, call.at_s, call.status)


async def a_success_without_a_call(rest: Rest) -> None:
    rest.calls[:] = [call for call in rest.calls if call.execution_id != rest.ids["in time"]]


async def a_success_that_the_receiver_refused(rest: Rest) -> None:
    call = rest.calls[1]
    rest.calls[1] = Call(call.execution_id, call.attempt, call.token, call.at_s, 500)


async def a_success_before_its_answer(rest: Rest) -> None:
    rest.calls[1] = replace(rest.calls[1], answered_s=at(3600).timestamp())


async def an_attempt_that_is_not_on_record(rest: Rest) -> None:
    await rest.run("DELETE FROM ondot.attempt WHERE execution_id = $1", rest.ids["fire 0"])


async def an_attempt_without_a_cause(rest: Rest) -> None:
    await rest.run("UPDATE ondot.attempt SET error = NULL WHERE execution_id = $1", rest.ids["fire 0"])


async def a_failure_that_was_not_counted(rest: Rest) -> None:
    await rest.run("UPDATE ondot.history SET failures = 0 WHERE id = $1", rest.ids["retried"])


async def two_at_once_of_a_key_for_one(rest: Rest) -> None:
    await rest.run("UPDATE ondot.history SET started_at = $2 WHERE id = $1", rest.ids["limited 1"], at(1.5))


async def a_fire_between_two_attempts_of_another(rest: Rest) -> None:
    await rest.run(
        "UPDATE ondot.history SET started_at = $2, ended_at = $3 WHERE id = $1", rest.ids["fire 1"], at(2.2), at(2.8)
    )


async def an_execution_that_overtook_an_earlier_one(rest: Rest) -> None:
    await rest.run("UPDATE ondot.history SET fire_at = $2 WHERE id = $1", rest.ids["ordered 0"], at(0.9))


async def tokens_too_close_together(rest: Rest) -> None:
    await rest.run("UPDATE ondot.history SET ready_at = $2 WHERE id = $1", rest.ids["rated 1"], at(1.9))


async def starts_too_close_together(rest: Rest) -> None:
    rated = [id_ for name, id_ in rest.ids.items() if name.startswith("rated")]
    await rest.run("UPDATE ondot.history SET started_at = $2 WHERE id = ANY ($1)", rated, at(1))


async def two_of_a_unique_key(rest: Rest) -> None:
    await rest.run("UPDATE ondot.history SET fire_at = $2 WHERE id = $1", rest.ids["unique 1"], at(1.5))


async def a_start_after_its_deadline(rest: Rest) -> None:
    await rest.run("UPDATE ondot.history SET fire_at = $2 WHERE id = $1", rest.ids["in time"], at(-5))


async def an_execution_that_is_lost(rest: Rest) -> None:
    rest.calls[:] = [call for call in rest.calls if call.execution_id != rest.ids["in time"]]
    await rest.run("DELETE FROM ondot.history WHERE id = $1", rest.ids["in time"])


async def an_execution_whose_job_is_gone(rest: Rest) -> None:
    of_it = "(SELECT job_id FROM ondot.history WHERE id = $1)"
    await rest.run(f"DELETE FROM ondot.job_once WHERE id = {of_it}", rest.ids["once"])
    await rest.run(f"DELETE FROM ondot.job_version WHERE job_id = {of_it}", rest.ids["once"])


async def a_fire_that_is_lost(rest: Rest) -> None:
    await rest.run("DELETE FROM ondot.history WHERE id = $1", rest.ids["fire 1"])


async def an_execution_without_an_owner(rest: Rest) -> None:
    await rest.run(
        "INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state,"
        " origin) VALUES ($1, $2, $3, $3, 1, 1, 1, 2, 'PENDING', 'run')",
        *(UUID(int=1), rest.jobs["a"], at(1)),
    )


async def a_failure_without_a_dead_letter(rest: Rest) -> None:
    await rest.run("DELETE FROM ondot.dead_letter")


async def an_effect_without_its_success(rest: Rest) -> None:
    await rest.run("INSERT INTO public.effect VALUES ($1, 1)", rest.ids["fire 0"])


async def a_repeated_effect(rest: Rest) -> None:
    await rest.run("INSERT INTO public.effect VALUES ($1, 2)", rest.ids["effect"])


PLANTS: dict[Plant, str] = {
    a_slot_left: "left_over",
    an_execution_whose_job_is_gone: "without_job",
    a_lease_left: "left_over",
    a_place_left_in_the_queue: "left_over",
    a_call_made_twice: "calls",
    a_call_of_no_attempt: "calls",
    a_second_call_of_a_job_that_is_called_at_most_once: "at_most_once",
    a_call_with_an_old_token: "calls",
    a_success_without_a_call: "calls",
    a_success_that_the_receiver_refused: "calls",
    a_success_before_its_answer: "calls",
    an_attempt_that_is_not_on_record: "attempts",
    an_attempt_without_a_cause: "attempts",
    a_failure_that_was_not_counted: "budgets",
    two_at_once_of_a_key_for_one: "concurrency",
    a_fire_between_two_attempts_of_another: "overlap",
    an_execution_that_overtook_an_earlier_one: "order",
    tokens_too_close_together: "rate_tokens",
    starts_too_close_together: "rate_starts",
    two_of_a_unique_key: "unique",
    a_start_after_its_deadline: "deadline",
    an_execution_that_is_lost: "lost",
    a_fire_that_is_lost: "lost",
    an_execution_without_an_owner: "not_ended",
    a_failure_without_a_dead_letter: "dead_letters",
    an_effect_without_its_success: "effects",
    a_repeated_effect: "effects",
}
"""Each error to plant, and the check that must find it."""
