"""gRPC calls (E3, E4, E7, E8, T3): the payload becomes the request by protobuf's JSON mapping, the reply the result.

Only unary methods are called. Their types are in the job, or are read by the server's reflection and remembered for
some minutes; they are read again when a method is unknown or a payload does not fit, because the server may be newer.
One attempt is one call: nothing here repeats it. The server is sent the deadline of the attempt, and the cancel of a
call too, although its work may already be done. Addresses are checked as those of HTTP calls.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import structs

from ondot.descriptors import BadTypes, Method, Misfit, Types, read_set
from ondot.model.addresses import PUBLIC, Reach
from ondot.model.connection import NoConnection
from ondot.model.errors import Misconfigured, NoSecretKey, OndotError, Unavailable
from ondot.model.grpc import CA, CERTIFICATE, KEY, decode_binary, parse_address, why_not_metadata, why_not_value
from ondot.model.ids import TenantNo
from ondot.model.outcome import AttemptError, Cancelled, Failed, Succeeded, timed_out
from ondot.model.scrub import Scrubber
from ondot.model.target import GrpcTarget
from ondot.ports.target import Call, CallReport, Target
from ondot.targets.addresses import NO_RIGHT, PrivateAddress, ReachOf, UnknownHost
from ondot.targets.cancelling import not_called
from ondot.targets.checks import NO_RIGHT as NO_RIGHT_OF_CONNECTION
from ondot.targets.facts import facts_of
from ondot.targets.grpc.channels import Channel, Channels, Server
from ondot.targets.grpc.library import load_grpc
from ondot.targets.grpc.reflection import Metadata, read_types
from ondot.targets.grpc.status import connect_timed_out, report_error
from ondot.targets.publish.target import OpenConnection
from ondot.targets.text import one_line

TYPES_FOR_S: Final = 300.0
MAX_TYPES: Final = 64
"""Servers and descriptor sets whose types are remembered."""
LARGE: Final = 64 * 1024
"""Larger messages are read in a thread: a megabyte takes 0.2 s."""
MAX_RESULT: Final = 64 * 1024

T = TypeVar("T")


class _Progress:
    """How far a call came."""

    def __init__(self, deadline_s: float | None) -> None:
        self.deadline_s = deadline_s
        self.was_sent = False
        self.channel: Channel | None = None
        self.hidden: tuple[str, ...] = ()
        """The credentials of its connection."""

    @property
    def left_s(self) -> float | None:
        return None if self.deadline_s is None else max(self.deadline_s - _now_s(), 0.001)


class GrpcCaller(Target[GrpcTarget]):
    """Makes the calls of one process."""

    def __init__(
        self,
        *,
        reach: Reach = PUBLIC,
        reach_of: ReachOf | None = None,
        connection_of: OpenConnection | None = None,
        idle_s: float | None = None,
    ) -> None:
        """`reach`: that of all tenants, unless there is `reach_of`. Without `connection_of` jobs cannot name one."""
        self._reach = reach
        self._connection_of = connection_of
        self._reach_of = reach_of
        self._idle = {} if idle_s is None else {"idle_s": idle_s}
        self._grpc: ModuleType | None = None
        self.channels: Channels | None = None
        self._types: OrderedDict[object, tuple[float, Types]] = OrderedDict()

    async def call(self, spec: GrpcTarget, call: Call) -> CallReport:
        if call.cancel.requested:
            return not_called()
        progress = _Progress(None if call.timeout_s is None else _now_s() + call.timeout_s)
        report = await self._attempt(spec, call, progress)
        if progress.hidden:
            # The worker masks the secrets of the job; those of its connection are known here only.
            return cast("CallReport", Scrubber(progress.hidden).report(report))
        return report

    async def _attempt(self, spec: GrpcTarget, call: Call, progress: _Progress) -> Succeeded | Failed | Cancelled:
        deadline = asyncio.timeout(call.timeout_s)
        drop = partial(_drop, deadline)
        try:
            async with deadline:
                call.cancel.listen(drop)
                return await self._call(spec, call, progress)
        except TimeoutError:
            was_asked = bool(call.cancel.requested) or call.timeout_s is None
            return _report_cancel(progress) if was_asked else self._report_timeout(spec, call, progress)
        except (PrivateAddress, UnknownHost, Misfit, BadTypes, ValueError, NoConnection, OndotError) as error:
            return _not_sent(error)
        finally:
            call.cancel.unlisten(drop)

    async def close(self) -> None:
        if self.channels is not None:
            await self.channels.close()

    async def _call(self, spec: GrpcTarget, call: Call, progress: _Progress) -> Succeeded | Failed:
        if self._grpc is None:
            self._grpc = await asyncio.to_thread(load_grpc)
        grpc = self._grpc
        if self.channels is None:
            self.channels = Channels(grpc, **self._idle)
        reach = self._reach if self._reach_of is None else await self._reach_of(call.tenant_no)
        if spec.connection is not None:
            spec, reach = await self._open_connection(spec, spec.connection, call.tenant_no, reach, progress)
        elif spec.only_public:
            reach = reach.only_public(NO_RIGHT)
        host, port = parse_address(spec.address)
        server = await self.channels.find(call.tenant_no, reach, spec, host, port)
        metadata = metadata_of(spec, call)
        async with self.channels.use(server) as channel:
            progress.channel = channel
            try:
                method, request = await self._prepare(grpc, spec, call, server, metadata, progress)
                calling = channel.wire.unary_unary(f"/{spec.method}")
                progress.was_sent = True
                reply: bytes = await calling(request, metadata=metadata, timeout=progress.left_s)
            except grpc.aio.AioRpcError as error:
                return self._report(error, spec, call, progress)
        return await _result(method, reply, call)

    async def _open_connection(
        self, spec: GrpcTarget, name: str, tenant_no: TenantNo, reach: Reach, progress: _Progress
    ) -> tuple[GrpcTarget, Reach]:
        """The target with the address and the credentials of its connection, and where it may go."""
        if self._connection_of is None:
            raise Unavailable("This worker has no database, where connections are.")
        opened = await self._connection_of(tenant_no, name)
        found = opened.spec
        if found.kind != "grpc":
            raise ValueError(f"the connection {name!r} leads to {found.kind}, not to a gRPC server")
        progress.hidden = opened.hidden
        secured = {CA: found.ca, CERTIFICATE: found.certificate, KEY: found.private_key}
        headers = {**found.headers, **spec.headers, **{name: value for name, value in secured.items() if value}}
        filled = structs.replace(spec, connection=None, address=found.address, tls=found.tls, headers=headers)
        return filled, reach.only_public(NO_RIGHT_OF_CONNECTION) if found.only_public else reach

    async def _prepare(
        self,
        grpc: ModuleType,
        spec: GrpcTarget,
        call: Call,
        server: Server,
        metadata: Metadata,
        progress: _Progress,
    ) -> tuple[Method, bytes]:
        """The method and its request. Raises BadTypes or Misfit."""

        async def ask() -> Types:
            assert progress.channel is not None
            service = spec.method.partition("/")[0]
            return await read_types(grpc, progress.channel.wire, service, metadata, progress.left_s)

        if spec.descriptor_set is not None:
            types, _ = await self._recall(spec.descriptor_set, partial(_in_thread, read_set, spec.descriptor_set))
            return await _fit(types, spec, call)
        place = (server, spec.method.partition("/")[0])
        types, is_old = await self._recall(place, ask)
        try:
            return await _fit(types, spec, call)
        except (BadTypes, Misfit):
            if not is_old:
                raise
        self._types.pop(place, None)
        types, _ = await self._recall(place, ask)
        return await _fit(types, spec, call)

    async def _recall(self, place: object, read: Callable[[], Any]) -> tuple[Types, bool]:
        """The types, and whether they were remembered."""
        known = self._types.get(place)
        if known is not None and known[0] > _now_s():
            return known[1], True
        types: Types = await read()
        self._types[place] = _now_s() + TYPES_FOR_S, types
        self._types.move_to_end(place)
        if len(self._types) > MAX_TYPES:
            self._types.popitem(last=False)
        return types, False

    def _report(self, error: Any, spec: GrpcTarget, call: Call, progress: _Progress) -> Failed:
        status = error.code().name
        if status in {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"}:
            self._retire(progress)
        if status == "DEADLINE_EXCEEDED" and progress.deadline_s is not None and _now_s() >= progress.deadline_s - 0.1:
            return self._report_timeout(spec, call, progress)
        return report_error(error, spec.address)

    def _report_timeout(self, spec: GrpcTarget, call: Call, progress: _Progress) -> Failed:
        timeout_s = call.timeout_s or 0.0
        channel = progress.channel
        self._retire(progress)
        if channel is None or self._grpc is None:
            return timed_out(timeout_s)
        is_connected = channel.wire.get_state() is self._grpc.ChannelConnectivity.READY
        return timed_out(timeout_s) if is_connected else connect_timed_out(spec.address, timeout_s)

    def _retire(self, progress: _Progress) -> None:
        if progress.channel is not None and self.channels is not None:
            self.channels.retire(progress.channel)


async def _fit(types: Types, spec: GrpcTarget, call: Call) -> tuple[Method, bytes]:
    method = types.find(spec.method)
    if len(call.payload) <= LARGE:
        return method, method.encode(call.payload)
    return method, await _in_thread(method.encode, call.payload)


async def _result(method: Method, reply: bytes, call: Call) -> Succeeded:
    """The reply as JSON. A success all the same if it has no form in JSON: the server has done its work."""
    try:
        text = method.decode(reply) if len(reply) <= LARGE else await _in_thread(method.decode, reply)
    except BadTypes as error:
        why = one_line(str(error))
        call.say("log", why)
        return Succeeded(msgspec.json.encode({"unreadable": why, "base64": reply[:MAX_RESULT]}).decode())
    kept = call.result_bytes or MAX_RESULT
    encoded = text.encode()
    if len(encoded) <= kept:
        return Succeeded(text)
    cut = {
        "cut": f"only the first {kept:,} bytes of the reply are kept",
        "body": encoded[:kept].decode("utf-8", "ignore"),
    }
    return Succeeded(msgspec.json.encode(cut).decode())


def metadata_of(spec: GrpcTarget, call: Call) -> list[tuple[str, str | bytes]]:
    """The job's own and the facts, which a job cannot set. Raises ValueError."""
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in spec.headers.items():
        # Checked again although creating a job rejects them: a job may be older than that rule.
        if why_not_metadata(name) is not None:
            continue
        if not isinstance(value, str):
            # Never a call without its credentials: its receiver may do something else for a stranger.
            raise ValueError(f"the value of the metadata {name} is not known to this worker")  # noqa: TRY004
        if (why := why_not_value(name, value)) is not None:
            raise ValueError(f"the metadata {name} must be {why}")
        metadata.append((name, decode_binary(value) if name.endswith("-bin") else value))
    return [*metadata, *facts_of(call).items(), ("ondot-execution-id", str(call.execution_id))]


async def _in_thread(function: Callable[..., T], *arguments: object) -> T:
    return await asyncio.to_thread(function, *arguments)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _drop(deadline: asyncio.Timeout) -> None:
    # Too late if the timeout is over in this very moment.
    with suppress(RuntimeError):
        deadline.reschedule(_now_s())


def _not_sent(error: Exception) -> Failed:
    """Nothing was sent. A fault of the job will not pass; any other may."""
    match error:
        case PrivateAddress():
            return Failed(AttemptError("private_address", str(error)), retryable=False)
        case UnknownHost():
            return Failed(AttemptError("dns", one_line(str(error))))
        case BadTypes():
            return Failed(AttemptError("grpc_types", one_line(str(error))), retryable=False)
        case NoConnection():
            return Failed(AttemptError("no_connection", one_line(error.message)), retryable=False)
        case OndotError():
            # Its tenant's row could not be read, or grpcio is not installed here. Another worker may be able to.
            code = "not_started" if isinstance(error, Misconfigured) else "connect"
            code = "secret_unreadable" if isinstance(error, NoSecretKey) else code
            return Failed(AttemptError(code, one_line(error.message)))
        case _:
            return Failed(AttemptError("bad_request", one_line(f"It cannot be sent: {error}")), retryable=False)


def _report_cancel(progress: _Progress) -> Cancelled:
    if not progress.was_sent:
        return Cancelled("It was cancelled before the call began: nothing was sent.")
    return Cancelled("The call was cancelled; its server may still have done its work.", forced=True)
