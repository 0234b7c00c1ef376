"""gRPC calls: a lean server in a process of its own, and calls per second of bare grpcio and of ondot's target.

python grpc_calls.py serve                            prints its address; the method Counts returns the counts
python grpc_calls.py plain|target ADDRESS SECONDS N   prints `ready`, starts when it reads a line, prints the calls
"""

import asyncio
import json
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import psutil
import uvloop
from crew import crew_of
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from ondot.model.addresses import EVERYWHERE
from ondot.model.ids import ExecutionId, JobId
from ondot.model.outcome import Succeeded
from ondot.model.target import GrpcTarget
from ondot.ports.target import Call
from ondot.targets.grpc.target import GrpcCaller

METHOD = "bench.Notes/Echo"
PAYLOAD = b'{"text":"hello","n":7}'
REQUEST = b"\x0a\x05hello\x10\x07"


def descriptor_set() -> str:
    file = FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3")
    note = file.message_type.add(name="Note")
    label = FieldDescriptorProto.LABEL_OPTIONAL
    note.field.add(name="text", number=1, type=FieldDescriptorProto.TYPE_STRING, label=label)
    note.field.add(name="n", number=2, type=FieldDescriptorProto.TYPE_INT32, label=label)
    file.service.add(name="Notes").method.add(name="Echo", input_type=".bench.Note", output_type=".bench.Note")
    return b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()


def target_of(address: str) -> GrpcTarget:
    return GrpcTarget(address=address, method=METHOD, tls=False, descriptor_set=descriptor_set())


@dataclass(frozen=True, slots=True)
class Server:
    address: str
    process: psutil.Popen

    def counts(self) -> tuple[int, int]:
        """How many calls were received, and of how many executions."""
        with grpc.insecure_channel(self.address) as channel:
            counts = json.loads(channel.unary_unary("/bench.Notes/Counts")(b"", timeout=30))
        return counts["calls"], counts["executions"]


@contextmanager
def serving() -> Iterator[Server]:
    command = [sys.executable, str(Path(__file__).resolve()), "serve"]
    process = psutil.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield Server(process.stdout.readline().strip(), process)
    finally:
        process.terminate()
        process.wait(30)


async def calls_per_s(kind: str, address: str, seconds: float, processes: int, at_once: int) -> float:
    """Run this many processes at once, from the same instant on. `kind`: plain or target."""
    command = (sys.executable, str(Path(__file__).resolve()), kind, address, str(seconds), str(at_once))
    return sum(int(out) for out in await crew_of(processes, *command)) / seconds


async def _serve() -> None:
    calls = 0
    executions: set[str] = set()

    async def echo(request: bytes, context: Any) -> bytes:
        nonlocal calls
        calls += 1
        executions.update(value for name, value in context.invocation_metadata() if name == "webhook-id")
        return request

    async def counts(_request: bytes, _context: Any) -> bytes:
        return json.dumps({"calls": calls, "executions": len(executions)}).encode()

    handlers = {name: grpc.unary_unary_rpc_method_handler(each) for name, each in (("Echo", echo), ("Counts", counts))}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Notes", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


async def _plain(address: str, seconds: float, at_once: int) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        calling = channel.unary_unary(f"/{METHOD}")

        async def call() -> None:
            await calling(REQUEST, timeout=30, metadata=(("webhook-id", str(uuid4())),))

        await _repeat(call, seconds, at_once)


async def _target(address: str, seconds: float, at_once: int) -> None:
    caller, spec = GrpcCaller(reach=EVERYWHERE), target_of(address)

    async def call() -> None:
        report = await caller.call(
            spec,
            Call(
                execution_id=ExecutionId(uuid4()),
                job_id=JobId(uuid4()),
                job_name="call",
                attempt_no=1,
                fire_s=0.0,
                payload=PAYLOAD,
                timeout_s=30,
                say=lambda *_: None,
                progress=lambda *_: None,
            ),
        )
        assert isinstance(report, Succeeded), report

    await _repeat(call, seconds, at_once)
    await caller.close()


async def _repeat(call: Callable[[], Awaitable[None]], seconds: float, at_once: int) -> None:
    await call()
    print("ready", flush=True)
    sys.stdin.readline()
    began_s = time.perf_counter()

    async def go() -> int:
        count = 0
        while True:
            await call()
            if time.perf_counter() - began_s > seconds:
                return count
            count += 1

    print(sum(await asyncio.gather(*(go() for _ in range(at_once)))), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            uvloop.run(_serve())
        case ["plain", address, seconds, at_once]:
            uvloop.run(_plain(address, float(seconds), int(at_once)))
        case ["target", address, seconds, at_once]:
            uvloop.run(_target(address, float(seconds), int(at_once)))
