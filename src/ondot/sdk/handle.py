"""What `enqueue` returns (D2): a job of a function, and the result that it will have.

    handle = await send_invoice.enqueue(order, day=today)
    receipt = await handle.result(timeout=30)      what the function returned, decoded by its annotation

A handle is the id of its job and little more: another process gets the same one by `send_invoice.handle(id)`. If the
job ran several times, because a person ran it again, the latest run counts.

    NotSucceeded      it ended FAILED, CANCELLED or SKIPPED: `state`, `error_type`, `error_message`, `attempts`
    ResultGone        its history is no longer kept, or it was deleted before it ran
    NotCommitted      it was enqueued in a transaction that has not committed
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast
from uuid import UUID

from ondot.model.errors import NotFound
from ondot.sdk.awaited import Ended, awaited_jobs
from ondot.sdk.client import Client
from ondot.sdk.options import Duration, seconds_of
from ondot.sdk.sync import Blocking

if TYPE_CHECKING:
    from ondot.sdk.sync_types import SyncHandle

R = TypeVar("R")

LONGEST_MESSAGE: Final = 500


class NotSucceeded(Exception):
    """A job ended, and not SUCCEEDED. `attempts`: how many started; `reason`: why it was skipped or cancelled."""

    def __init__(
        self,
        message: str,
        *,
        job_id: str,
        execution_id: str,
        state: str,
        error_type: str | None = None,
        error_message: str | None = None,
        reason: str | None = None,
        attempts: int = 0,
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.execution_id = execution_id
        self.state = state
        self.error_type = error_type
        self.error_message = error_message
        self.reason = reason
        self.attempts = attempts

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_error, (type(self), self.args, self.__dict__)


class ResultGone(LookupError):
    """The history of the job is no longer kept, or it was deleted before it ran."""


class NotCommitted(RuntimeError):
    """The job was enqueued in a transaction that has not committed, or was rolled back."""


class JobHandle:
    """What handles of functions and of workflows have in common."""

    def __init__(self, client: Client, job: Mapping[str, Any], committed: bool = True) -> None:
        """`job`: the answer to its creation. `committed`: False if it was enqueued in the caller's transaction."""
        self._client = client
        self.job: Final = job
        self.id: Final = str(job["id"])
        self._committed = committed

    def __repr__(self) -> str:
        name = self.job.get("name")
        return f"<{type(self).__name__} {self.id}{f' of {name}' if name else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A handle has a client with its API key, so it is not pickled. Pass its id, {self.id!r}, and get the same "
            "handle there: `send_invoice.handle(id)`, or `app.handle(id)`."
        )

    async def state(self) -> str:
        """The state of its latest run; PENDING before there is one."""
        latest = await self._latest()
        return "PENDING" if latest is None else str(latest["state"])

    async def execution(self) -> dict[str, Any] | None:
        """Its latest run with its attempts, as the API shows it; None before there is one."""
        latest = await self._latest()
        return None if latest is None else await self._client.get_execution(latest["id"])

    async def cancel(self, reason: str | None = None) -> None:
        """Stop it: at once if it waits. A running one is asked to stop, and stopped by force after its grace."""
        latest = await self._latest()
        if latest is None:
            await self._client.delete_job(self.id, reason)
        else:
            await self._client.cancel_execution(latest["id"], reason)

    async def explain(self) -> dict[str, Any]:
        """Why it is not running, and when it may start; or how it ended."""
        latest = await self._latest()
        return await (
            self._client.explain_job(self.id) if latest is None else self._client.explain_execution(latest["id"])
        )

    async def _latest(self) -> Mapping[str, Any] | None:
        try:
            job = await self._client.get_job(self.id)
        except NotFound as error:
            raise self._not_found(error) from None
        self._committed = True
        if job["latest_executions"]:
            latest: Mapping[str, Any] = job["latest_executions"][0]
            return latest
        if job["state"] == "DELETED":
            raise self._deleted()
        return None

    async def _end(self, timeout: Duration | None) -> Ended:  # noqa: ASYNC109 - as asyncio.wait_for
        """The latest run, once the job has ended."""
        timeout_s = None if timeout is None else seconds_of("timeout", timeout)
        try:
            async with asyncio.timeout(timeout_s or None):
                jobs = awaited_jobs(self._client)
                ended = await (jobs.end_now(self.id) if timeout_s == 0 else jobs.end_of(self.id))
        except NotFound as error:
            raise self._not_found(error) from None
        except TimeoutError:
            raise TimeoutError(
                f"The job {self.id} has not ended within {timeout_s:g} s. It goes on: await its result again, or see "
                f"`ondot job explain {self.id}`."
            ) from None
        self._committed = True
        if ended["execution_id"] is None:
            raise self._deleted()
        return ended

    def _not_found(self, error: NotFound) -> ResultGone | NotCommitted:
        if self._committed:
            return ResultGone(error.message)
        return NotCommitted(
            f"The job {self.id} was enqueued in a transaction that has not committed, or was rolled back. Commit it "
            "first: leave the block of the transaction, then ask for the result."
        )

    def _deleted(self) -> ResultGone:
        return ResultGone(f"The job {self.id} was deleted before it ran: it has no result.")


class Handle(JobHandle, Generic[R]):
    def __init__(
        self,
        client: Client,
        job: Mapping[str, Any],
        decode: Callable[[Any], R],
        committed: bool = True,
    ) -> None:
        """`decode` makes the typed result from its JSON."""
        super().__init__(client, job, committed)
        self._decode = decode

    @property
    def sync(self) -> "SyncHandle[R]":
        """The same without asyncio: its methods block."""
        return cast("SyncHandle[R]", Blocking(self))

    async def result(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109 - as asyncio.wait_for
        """What the function returned, once it has succeeded.

        Raises NotSucceeded if it ended otherwise, TimeoutError if it has not ended in time (0: it asks once),
        ResultGone if its history is no longer kept, and NotCommitted before the commit of the transaction that it was
        enqueued in.
        """
        ended = await self._end(timeout)
        if ended["state"] != "SUCCEEDED":
            raise not_succeeded(self.job.get("name"), ended)
        return self._decode(await self._whole_result(ended))

    async def _whole_result(self, ended: Ended) -> Any:
        result = ended["result"]
        if ended["result_omitted"] or (isinstance(result, dict) and result.keys() == {"$object"}):
            result = await self._client.execution_result(ended["execution_id"])
        if isinstance(result, dict) and result.keys() == {"$cut"}:
            raise ResultGone(
                f"The result of the job {self.id} was cut, because it could not be stored: {result['$cut'].get('why')}."
                f" Its beginning: `ondot execution get {ended['execution_id']}`."
            )
        return result


def handle_by_id(client: Client, id_: UUID | str, decode: Callable[[Any], R]) -> Handle[R]:
    """The handle of a job that was enqueued elsewhere."""
    try:
        id_ = UUID(str(id_))
    except ValueError:
        raise ValueError(f"A handle is of the id of a job, a UUID, got {id_!r:.60}.") from None
    return Handle(client, {"id": str(id_)}, decode)


def not_succeeded(name: str | None, ended: Ended) -> NotSucceeded:
    error = ended["error"] or {}
    kind, message = error.get("type") or error.get("code"), error.get("message")
    attempts = int(ended["attempt"])
    because = str(message or kind or ended["reason"] or "")
    after = f" after {attempts} attempts" if attempts > 1 else ""
    text = f"{name or 'The job ' + ended['job_id']} is {ended['state']}{after}"
    text += f": {because[:LONGEST_MESSAGE]}" if because else ""
    return NotSucceeded(
        f"{text.rstrip('.')}. See `ondot execution get {ended['execution_id']}`.",
        job_id=ended["job_id"],
        execution_id=ended["execution_id"],
        state=ended["state"],
        error_type=kind,
        error_message=message,
        reason=ended["reason"],
        attempts=attempts,
    )


def _restore_error(kind: type[NotSucceeded], args: tuple[Any, ...], fields: dict[str, Any]) -> NotSucceeded:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error
