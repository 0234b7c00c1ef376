"""The server itself, in the loop of a test, or as a process of its own: `python -m tests.grpc_shop.server` prints its
port."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from grpc_tools import protoc

SERVICE = "shop.v1.Orders"


@cache
def descriptor_set() -> bytes:
    with TemporaryDirectory() as folder:
        here, out = Path(__file__).parent, Path(folder) / "set.bin"
        include = Path(protoc.__file__).parent / "_proto"
        words = [f"-I{here}", f"-I{include}", "--include_imports", f"--descriptor_set_out={out}", "shop.proto"]
        assert protoc.main(["protoc", *words]) == 0
        return out.read_bytes()


def descriptor_text() -> str:
    return b64encode(descriptor_set()).decode()


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptor_set()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def kind(name: str) -> Any:
    return GetMessageClass(_pool().FindMessageTypeByName(f"shop.v1.{name}"))


class Shop:
    """What the server was asked, and how it answers."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.reflections: list[str] = []
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.url = ""
        """host:port"""
        self.hides: set[str] = set()
        """Names of fields and methods that its reflection does not describe, as an older release would."""
        self.is_endless = False
        """Whether each file of its types imports another one."""
        self.server: Any = None

    async def place(self, request: Any, context: Any) -> Any:
        metadata = {
            name: value if isinstance(value, str) else b64encode(value).decode()
            for name, value in context.invocation_metadata()
        }
        self.seen.append(metadata)
        text = json.dumps(MessageToDict(request), separators=(",", ":"))
        left_s = str(context.time_remaining())
        return kind("Placed")(metadata={**metadata, "deadline": left_s}, request=text, big_number=2**60, raw=b"\xff")

    async def fail(self, request: Any, context: Any) -> Any:
        metadata = dict(context.invocation_metadata())
        if details := metadata.get("x-details-bin"):
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        message = bytes.fromhex(metadata["x-message"]).decode() if "x-message" in metadata else "the disk is full"
        await context.abort(grpc.StatusCode[metadata.get("x-status", "UNAVAILABLE")], message)

    async def hang(self, request: Any, context: Any) -> Any:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def large(self, request: Any, context: Any) -> Any:
        return kind("Placed")(text="ü" * request.n)

    async def strange(self, request: Any, context: Any) -> Any:
        placed = kind("Placed")(total=7)
        placed.extra.type_url, placed.extra.value = "type.example.com/other.Unknown", b"x"
        return placed

    async def watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield kind("Placed")()

    async def gather(self, requests: AsyncIterator[Any], context: Any) -> Any:
        return kind("Placed")()

    def handlers(self) -> grpc.GenericRpcHandler:
        def to(handler: Any, made_by: Any = grpc.unary_unary_rpc_method_handler) -> Any:
            return made_by(handler, kind("Order").FromString, kind("Placed").SerializeToString)

        methods = {
            **{name.capitalize(): to(getattr(self, name)) for name in ("place", "fail", "hang", "large", "strange")},
            "Watch": to(self.watch, grpc.unary_stream_rpc_method_handler),
            "Gather": to(self.gather, grpc.stream_unary_rpc_method_handler),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def reflection(self, version: str) -> grpc.GenericRpcHandler:
        """Files one by one, as servers in Go send them."""

        async def describe(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for request in requests:
                self.reflections.append(version)
                response = ServerReflectionResponse()
                wanted = request.file_by_filename or ("shop.proto" if request.file_containing_symbol == SERVICE else "")
                found = next((file for file in self._files() if file.name == wanted), None)
                if self.is_endless:
                    found = FileDescriptorProto(name=wanted, dependency=[f"{wanted}x"])
                if found is None:
                    response.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
                    response.error_response.error_message = "Symbol not found."
                else:
                    response.file_descriptor_response.file_descriptor_proto.append(found.SerializeToString())
                yield response

        handler = grpc.stream_stream_rpc_method_handler(
            describe, ServerReflectionRequest.FromString, ServerReflectionResponse.SerializeToString
        )
        name = f"grpc.reflection.{version}.ServerReflection"
        return grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})

    def _files(self) -> list[Any]:
        files = list(FileDescriptorSet.FromString(descriptor_set()).file)
        for file in files:
            for message in file.message_type:
                kept = [field for field in message.field if field.name not in self.hides]
                del message.field[:]
                message.field.extend(kept)
            for service in file.service:
                methods = [method for method in service.method if method.name not in self.hides]
                del service.method[:]
                service.method.extend(methods)
        return files


def ignore_late_ends() -> None:
    """Let calls of this loop end after it is closed.

    gRPC has one poller for a process. It reports each end to the loop of the call, and if that one is closed, the error
    goes to the loop that polls now, which is that of another test.
    """
    loop: Any = asyncio.get_running_loop()
    call_soon = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda *args, **more: None if loop.is_closed() else call_soon(*args, **more)


@asynccontextmanager
async def open_shop(
    *, reflection: tuple[str, ...] = ("v1",), credentials: Any = None, port: int = 0
) -> AsyncIterator[Shop]:
    ignore_late_ends()
    shop = Shop()
    # Without SO_REUSEPORT: a second server on the port of one that has stopped must not share it.
    server = shop.server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((shop.handlers(), *map(shop.reflection, reflection)))
    place = f"127.0.0.1:{port}"
    bound = server.add_insecure_port(place) if credentials is None else server.add_secure_port(place, credentials)
    shop.url = f"127.0.0.1:{bound}"
    await server.start()
    try:
        yield shop
    finally:
        await server.stop(None)


async def main() -> None:
    async with open_shop() as shop:
        print(shop.url, flush=True)  # noqa: T201 - for the test that started it
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
