"""The types of a server's methods by its reflection (E3): version 1 of the protocol, else v1alpha, which is the same
under another name. What a server answers is bounded: a hostile one must not fill the worker's memory."""

import asyncio
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from ondot.descriptors import BadTypes, Types, is_own_file

MAX_FILES: Final = 1_000
MAX_BYTES: Final = 8 * 1024 * 1024

_VERSIONS: Final = ("v1", "v1alpha")

Metadata = Sequence[tuple[str, str | bytes]]


async def read_types(grpc: ModuleType, wire: Any, service: str, metadata: Metadata, timeout_s: float | None) -> Types:
    """Raises BadTypes, or grpc.aio.AioRpcError as the server answered."""
    for version in _VERSIONS:
        try:
            files = await _read_files(grpc, wire, version, service, metadata, timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
        else:
            # In a thread: megabytes of types take a second.
            return await asyncio.to_thread(Types, files)
    raise BadTypes(
        "The server has no reflection, which would describe the method: turn it on, or give the types as"
        " `descriptor_set` in the job."
    )


async def _read_files(
    grpc: ModuleType, wire: Any, version: str, service: str, metadata: Metadata, timeout_s: float | None
) -> list[bytes]:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError
    from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

    # A call for each file, though the method is one of streams: to write to a stream that the server has ended already,
    # because it has no such method, fails as INTERNAL and hides the server's own status.
    ask = wire.unary_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=ServerReflectionRequest.SerializeToString,
        response_deserializer=ServerReflectionResponse.FromString,
    )
    loop = asyncio.get_running_loop()
    ends_s = None if timeout_s is None else loop.time() + timeout_s
    files: dict[str, bytes] = {}
    wanted: set[str] = set()
    request = ServerReflectionRequest(file_containing_symbol=service)
    try:
        while True:
            asking = ask(request, metadata=metadata, timeout=None if ends_s is None else max(ends_s - loop.time(), 0.0))
            try:
                response = await asking.read()
            finally:
                asking.cancel()
            if response is grpc.aio.EOF:
                raise BadTypes("The server's reflection ended before it had described the method.")
            name = request.file_by_filename
            if response.HasField("error_response") and not is_own_file(name):
                what = f"the file {name}" if name else f"a service {service}"
                raise BadTypes(f"The server does not have {what}: {response.error_response.error_message[:200]}")
            for text in response.file_descriptor_response.file_descriptor_proto:
                file = FileDescriptorProto.FromString(text)
                files[file.name] = text
                wanted.update(file.dependency)
            wanted -= files.keys()
            wanted.discard(name)
            if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BYTES:
                raise BadTypes(f"The server's types have more than {MAX_FILES:,} files or {MAX_BYTES:,} bytes.")
            if not wanted:
                return list(files.values())
            request = ServerReflectionRequest(file_by_filename=min(wanted))
    except DecodeError:
        raise BadTypes("The server's reflection answered with types that cannot be read.") from None
