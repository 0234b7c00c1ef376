"""Large results: in object storage before the end is written; storage never makes a success fail."""

import asyncio
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec
import pytest

from ondot.flow.complete import Done
from ondot.flow.lease import Assignment
from ondot.flow.output import PREVIEW_CHARACTERS, Outputs, open_result
from ondot.model.completion import Completion, decide
from ondot.model.errors import NotFound
from ondot.model.execution import State
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.outcome import Succeeded
from ondot.objects import open_objects
from ondot.ports.objects import Objects
from tests.proves import proves
from tests.world import Worker, World, job

if TYPE_CHECKING:
    from ondot.store.queue import Leased

INLINE = 2048


@pytest.fixture
def objects(world: World, tmp_path: Path) -> Objects:
    world.database.settings = world.database.settings.model_copy(update={"home": tmp_path, "inline_bytes": INLINE})
    return open_objects(world.database.settings)


async def a_success(world: World, result: str) -> tuple[Worker, Assignment, Completion]:
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    assert assignment.spec is not None
    return worker, assignment, decide(assignment.leased, assignment.spec, Succeeded(result), lambda: 0.0)


async def read(world: World, objects: Objects | None, assignment: Assignment) -> str:
    stored = await open_result(world.database, objects, DEFAULT_TENANT, assignment.leased.id)
    content = b"".join([chunk async for chunk in stored.chunks])
    assert stored.size == len(content)
    return content.decode()


@proves("E14")
async def test_a_large_result_is_an_object_and_the_execution_shows_its_size_and_first_characters(
    world: World, objects: Objects
) -> None:
    large = msgspec.json.encode({"numbers": list(range(10_000)), "exact": 1.10}).decode()
    worker, assignment, completion = await a_success(world, large)
    kept = await Outputs(objects, world.database).keep(assignment.leased, completion)
    await worker.completer.write([Done(kept, assignment.lease_id)])
    execution = await world.execution(assignment.leased.id)
    assert execution.state is State.SUCCEEDED
    assert execution.result == {"$object": {"bytes": len(large), "preview": large[:PREVIEW_CHARACTERS] + "…"}}
    assert await read(world, objects, assignment) == large
    [row] = await world.fetch("SELECT kind, bytes, cut, attempt_no FROM ondot.object")
    assert tuple(row) == ("result", len(large), False, 1)


@proves("E14")
@pytest.mark.parametrize("result", ['"' + "x" * (INLINE - 2) + '"', '{"$object": {"bytes": 1}}', "1.10", "null"])
async def test_a_result_that_fits_stays_in_the_database_unchanged(world: World, objects: Objects, result: str) -> None:
    worker, assignment, completion = await a_success(world, result)
    kept = await Outputs(objects, world.database).keep(assignment.leased, completion)
    assert kept is completion
    await worker.completer.write([Done(kept, assignment.lease_id)])
    assert await read(world, None, assignment) == result
    assert await world.count("object") == 0


@proves("E14")
async def test_bytes_are_counted_and_not_characters(world: World, objects: Objects) -> None:
    text = '"' + "ü" * (INLINE - 10) + '"'
    _, assignment, completion = await a_success(world, text)
    kept = await Outputs(objects, world.database).keep(assignment.leased, completion)
    assert kept.result is not None
    assert msgspec.json.decode(kept.result)["$object"]["bytes"] == len(text.encode())


@proves("E14", "P8")
async def test_storage_that_fails_cuts_the_result_and_not_the_success(
    world: World, objects: Objects, tmp_path: Path
) -> None:
    (tmp_path / "objects").write_text("in the way")
    large = '"' + "x" * 10_000 + '"'
    worker, assignment, completion = await a_success(world, large)
    said: list[tuple[Leased, str, str]] = []
    outputs = Outputs(objects, world.database, lambda *line: said.append(line))
    kept = await outputs.keep(assignment.leased, completion)
    await worker.completer.write([Done(kept, assignment.lease_id)])
    execution = await world.execution(assignment.leased.id)
    assert execution.state is State.SUCCEEDED
    cut = execution.result["$cut"]
    assert cut["bytes"] == len(large)
    assert "Object storage at file://" in cut["why"]
    assert large.startswith(cut["preview"][:-1])
    assert kept.result is not None
    assert len(kept.result) <= INLINE
    [(_, _, line)] = said
    assert line.startswith("ondot: the result (10,002 bytes) was cut: Object storage at file://")


class Slow:
    """Storage that does not answer."""

    place = "s3://slow"

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def put(self, key: str, content: bytes | IO[bytes]) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    async def get(self, key: str) -> None:
        return None

    async def delete(self, keys: object) -> None:
        return None


@proves("E14", "P8")
async def test_a_worker_that_stops_while_it_stores_a_result_still_has_the_outcome(
    world: World, objects: Objects
) -> None:
    _, assignment, completion = await a_success(world, '"' + "x" * 10_000 + '"')
    slow = Slow()
    keeping = asyncio.create_task(Outputs(slow, world.database).keep(assignment.leased, completion))
    await slow.asked.wait()
    keeping.cancel()
    kept = await keeping
    assert kept.state is State.SUCCEEDED
    assert kept.result is not None
    assert "the worker stopped" in msgspec.json.decode(kept.result)["$cut"]["why"]


@proves("E14")
async def test_a_missing_object_is_reported_with_its_writer_and_where_it_was_looked_for(
    world: World, objects: Objects, tmp_path: Path
) -> None:
    worker, assignment, completion = await a_success(world, '"' + "x" * 10_000 + '"')
    kept = await Outputs(objects, world.database).keep(assignment.leased, completion)
    await worker.completer.write([Done(kept, assignment.lease_id)])
    elsewhere = open_objects(world.database.settings.model_copy(update={"home": tmp_path / "elsewhere"}))
    with pytest.raises(NotFound) as raised:
        await read(world, elsewhere, assignment)
    words = raised.value.message
    assert f"worker {worker.id} on here" in words
    assert "elsewhere/objects" in words
    assert "ONDOT_OBJECTS_URL" in words
    with pytest.raises(NotFound, match="no object storage"):
        await read(world, None, assignment)


@proves("P12")
async def test_a_tenant_cannot_read_the_result_of_another(world: World, objects: Objects) -> None:
    worker, assignment, completion = await a_success(world, '"' + "x" * 10_000 + '"')
    kept = await Outputs(objects, world.database).keep(assignment.leased, completion)
    await worker.completer.write([Done(kept, assignment.lease_id)])
    with pytest.raises(NotFound):
        await open_result(world.database, objects, TenantNo(2), assignment.leased.id)
