"""Large output: put into object storage before an attempt is completed, and read back whole (E14).

A result above `ONDOT_INLINE_BYTES` is stored before its completion is written, so that it is there when the end shows;
the execution then has its size and its first characters. Storage never turns a success into a failure: a result that
cannot be stored is cut, and marked as cut. A long log is read from object storage, a short one from its lines.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from ondot.flow.spool import as_text
from ondot.model.completion import Completion
from ondot.model.errors import NotFound, Unavailable
from ondot.model.ids import ExecutionId, TenantNo
from ondot.ports.objects import Kind, Objects, Stored, key_of
from ondot.store.database import Database
from ondot.store.logs import list_log_lines
from ondot.store.objects import ObjectRow, add_objects, find_object, find_result, find_writer
from ondot.store.queue import Leased
from ondot.telemetry.log import get_logger

log = get_logger()

PREVIEW_CHARACTERS = 1024
AGAIN_S = 0.5
LINES_A_READ = 1_000

Say = Callable[[Leased, str, str], None]


class Outputs:
    """Stores the results of attempts. `say` adds a line to the log of an attempt (`AttemptLogs.say`)."""

    def __init__(self, objects: Objects, database: Database, say: Say | None = None) -> None:
        self._objects = objects
        self._database = database
        self._say = say

    def fits(self, completion: Completion) -> bool:
        """Whether the result is small enough for the database."""
        return completion.result is None or _fits(completion.result, self._database.settings.inline_bytes)

    async def keep(self, leased: Leased, completion: Completion) -> Completion:
        """The completion to be written; never raises. If cancelled, it cuts the result: an outcome must not wait."""
        text = completion.result
        if text is None or self.fits(completion):
            return completion
        content = text.encode(errors="replace")
        try:
            await self._put(leased, content)
        except asyncio.CancelledError:
            return self._cut(leased, completion, text, len(content), "the worker stopped while it was being stored")
        except Exception as error:  # noqa: BLE001 - a fault of the storage does not change how the attempt ended
            return self._cut(leased, completion, text, len(content), str(error) or type(error).__name__)
        return replace(
            completion, result=_json({"$object": {"bytes": len(content), "preview": _first(text, PREVIEW_CHARACTERS)}})
        )

    async def _put(self, leased: Leased, content: bytes) -> None:
        key = key_of(leased.tenant_no, leased.id, leased.attempt_no, "result")
        await self._objects.put(key, content)
        row = ObjectRow(leased.id, leased.attempt_no, "result", leased.tenant_no, key, len(content))
        while True:
            try:
                async with self._database.connection() as connection:
                    await add_objects(connection, [row])
            except Unavailable as error:
                # The outcome itself cannot be written before the database is back.
                log.warning("result.waits", execution_id=str(leased.id), error=error.message)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    def _cut(self, leased: Leased, completion: Completion, text: str, size: int, why: str) -> Completion:
        log.warning("result.cut", execution_id=str(leased.id), attempt=leased.attempt_no, bytes=size, error=why)
        if self._say is not None:
            self._say(leased, "log", f"ondot: the result ({size:,} bytes) was cut: {why}")
        # Escaping may double its length: a quarter stays within the bound.
        kept = _first(text, self._database.settings.inline_bytes // 4)
        return replace(completion, result=_json({"$cut": {"bytes": size, "why": why, "preview": kept}}))


async def open_result(database: Database, objects: Objects | None, tenant_no: TenantNo, id_: ExecutionId) -> Stored:
    """The whole result of an execution that has ended, as JSON; `null` if it has none."""
    async with database.connection() as connection:
        row = await find_result(connection, tenant_no, id_)
    if row is None:
        raise NotFound(f"The execution {id_} has no result yet: it has not ended.")
    if row.key is None:
        content = (row.result or "null").encode()
        return Stored(len(content), _at_once(content))
    stored = await objects.get(row.key) if objects else None
    return stored or await _missing(database, objects, tenant_no, id_, row.attempt_no, "result", row.key)


async def open_log(
    database: Database,
    objects: Objects | None,
    tenant_no: TenantNo,
    id_: ExecutionId,
    attempt_no: int,
    part: str | None = None,
) -> AsyncIterator[bytes]:
    """The whole log of an attempt, as lines of time, stream and text; with `part` only lines that contain it."""
    async with database.connection() as connection:
        row = await find_object(connection, tenant_no, id_, attempt_no, "log")
    if row is None:
        return _from_lines(database, tenant_no, id_, attempt_no, part)
    stored = await objects.get(row.key) if objects else None
    if stored is None:
        stored = await _missing(database, objects, tenant_no, id_, attempt_no, "log", row.key)
    return _with_part(stored.chunks, part) if part else stored.chunks


async def _from_lines(
    database: Database, tenant_no: TenantNo, id_: ExecutionId, attempt_no: int, part: str | None
) -> AsyncIterator[bytes]:
    after = (0, 0)
    while True:
        async with database.connection() as connection:
            rows = await list_log_lines(
                connection, tenant_no, id_, after=after, limit=LINES_A_READ, attempt_no=attempt_no, part=part
            )
        if rows:
            after = (rows[-1].attempt_no, rows[-1].line_no)
            yield "".join(as_text(row.at, row.stream, row.line) for row in rows).encode()
        if len(rows) < LINES_A_READ:
            return


async def _with_part(chunks: AsyncIterator[bytes], part: str) -> AsyncIterator[bytes]:
    """Only the lines that contain it, in any case. Lines are bounded, and so is memory."""
    wanted, rest = part.lower(), b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        found = [line for line in lines if wanted in _text_of(line).lower()]
        if found:
            yield b"\n".join(found) + b"\n"


def _text_of(line: bytes) -> str:
    """Without the time and the stream."""
    return line.split(b" ", 2)[-1].decode(errors="replace")


async def _missing(
    database: Database,
    objects: Objects | None,
    tenant_no: TenantNo,
    id_: ExecutionId,
    attempt_no: int,
    kind: Kind,
    key: str,
) -> NoReturn:
    """Name the worker that wrote it and where this process looked: usually the two have different settings."""
    async with database.connection() as connection:
        writer = await find_writer(connection, tenant_no, id_, attempt_no)
    who = f"worker {writer.worker_id}" if writer and writer.worker_id else "a worker"
    where = f" on {writer.host}" if writer and writer.host else ""
    place = objects.place if objects else "no object storage"
    log.warning("object.missing", execution_id=str(id_), key=key, place=place)
    raise NotFound(
        f"The {kind} of attempt {attempt_no} was put into object storage by {who}{where} as {key}, but is not in"
        f" {place}, where this API looks. Set the same ONDOT_OBJECTS_URL for both (a directory only if they share it),"
        " or restore the object if it was deleted.",
        key=key,
        place=place,
    )


async def _at_once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _fits(text: str, max_bytes: int) -> bool:
    # A character has at most four bytes: small results, nearly all, are measured without encoding them.
    return len(text) * 4 <= max_bytes or (len(text) <= max_bytes and len(text.encode(errors="replace")) <= max_bytes)


def _first(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
