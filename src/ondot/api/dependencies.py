"""What the routes work with, passed in by the app: the services of the process, the caller's tenant and its name."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Query, Request

from ondot.api.auth import Auth
from ondot.api.backpressure import Backpressure
from ondot.api.intake import Intake
from ondot.api.quotas import QuotaGuard
from ondot.api.request_id import request_id_of
from ondot.api.traces import caller_trace
from ondot.api.wrong_keys import WrongKeys
from ondot.flow.awaited import AwaitedJobs
from ondot.flow.dispatch import Dispatcher
from ondot.flow.events.hooks import Hooks
from ondot.flow.events.receive import EventReceiver
from ondot.flow.forecast.crowds import Crowds
from ondot.flow.group_commit import GroupCommit
from ondot.flow.idempotency import Idempotency
from ondot.flow.known_functions import Functions
from ondot.flow.outgoing import Outgoing
from ondot.flow.pings import Pings
from ondot.flow.signing import Signing
from ondot.flow.vault import Vault
from ondot.flow.workflows.advance import Advancer
from ondot.model.access import Caller, Right
from ondot.model.errors import TenantSuspended
from ondot.model.ids import TenantNo
from ondot.model.tenant import Tenant as TenantOf
from ondot.ports.kms import Kms
from ondot.ports.objects import Objects
from ondot.store.audit import By
from ondot.store.database import Database
from ondot.targets.checks import ConnectionChecker
from ondot.telemetry.metrics import REGISTRY
from ondot.telemetry.sum import ProcessMetrics

Chunk = TypeVar("Chunk", str, bytes)


@dataclass(slots=True)
class Services:
    database: Database
    dispatcher: Dispatcher
    auth: Auth
    objects: Objects | None = None
    """None: only results and logs in the database can be read."""
    kms: Kms | None = None
    """None: secrets cannot be stored."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process is about to end: requests that wait for something return then."""
    process_metrics: ProcessMetrics = field(default_factory=lambda: ProcessMetrics(REGISTRY))
    vault: Vault = field(init=False)
    signing: Signing = field(init=False)
    hooks: Hooks = field(init=False)
    pings: Pings = field(init=False)
    wrong_pings: WrongKeys = field(default_factory=lambda: WrongKeys("tokens of pings"))
    wrong_tokens: WrongKeys = field(default_factory=lambda: WrongKeys("tokens of hooks"))
    group_commit: GroupCommit = field(init=False)
    advancer: Advancer = field(init=False)
    """Advances runs of which an event has ended a step. The app runs it."""
    events: EventReceiver = field(init=False)
    intake: Intake = field(init=False)
    backpressure: Backpressure | None = field(init=False)
    """None: no ceiling is set, and every job is accepted."""
    quotas: QuotaGuard = field(init=False)
    crowds: Crowds = field(init=False)
    awaited: AwaitedJobs = field(init=False)
    functions: Functions = field(init=False)
    connection_checker: ConnectionChecker = field(init=False)

    def __post_init__(self) -> None:
        self.vault = Vault(self.database, self.kms)
        self.signing = Signing(self.vault)
        self.hooks = Hooks(self.database, self.vault)
        self.pings = Pings(self.database)
        self.group_commit = GroupCommit(self.database, self.dispatcher)
        self.advancer = Advancer(self.database, self.dispatcher, self.objects)
        self.events = EventReceiver(self.database, self.dispatcher, self.advancer.request)
        self.intake = Intake(self.database.settings)
        self.quotas = QuotaGuard(self.database)
        self.crowds = Crowds(self.database)
        self.awaited = AwaitedJobs(self.database, self.stopping)
        self.functions = Functions(self.database)
        self.connection_checker = ConnectionChecker(Outgoing(self.database).reach_of)
        ceiling = self.database.settings.queue_ceiling
        self.backpressure = None if ceiling is None else Backpressure(self.database, ceiling)

    @asynccontextmanager
    async def room_now(
        self,
        tenant_no: TenantNo,
        pools: Callable[[], Awaitable[Mapping[str, int]]],
        idempotency: Idempotency | None,
    ) -> AsyncIterator[None]:
        """Reserve room for executions that start now. `pools` counts them by pool; it is called only if there is a
        ceiling."""
        if self.backpressure is None:
            yield
            return
        async with self.backpressure.room_now(tenant_no, await pools(), idempotency):
            yield


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _services(request: Request) -> Services:
    """FastAPI runs a dependency that is not async in a thread, which takes longer than the rest of a small request."""
    return services_of(request)


RequestServices = Annotated[Services, Depends(_services)]


async def caller_of(request: Request) -> Caller:
    return await services_of(request).auth.caller(request)


async def tenant_of(request: Request) -> TenantNo:
    return (await caller_of(request)).tenant_no


CHECK_EVERY_S: Final = 0.4
"""Keys are cached for half a second, so a revoked one is refused within a second."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
CHANGING: Final = frozenset(Right) - {
    *(Right.JOBS_READ, Right.AUDIT_READ, Right.WORK),
    *(Right.TENANTS_MANAGE, Right.POOLS_MANAGE, Right.FLEET_MANAGE),
}
"""Rights to change what belongs to a tenant. Workers complete what runs, and owners serve the installation."""


class Needs:
    """The right that a route needs. Every route declares one; a test looks for those that do not."""

    def __init__(self, right: Right, *, by_pool: bool) -> None:
        self.right = right
        self.by_pool = by_pool

    async def __call__(self, request: Request) -> None:
        caller = await caller_of(request)
        caller.require(self.right)
        if not self.by_pool:
            caller.require_all_pools()
        if request.method not in READING and self.right in CHANGING:
            await check_active(request, caller)


async def check_again(request: Request) -> None:
    """Check the rights of a request that has taken long: they may have changed since it began."""
    for found in request.scope["route"].dependencies:
        if isinstance(found.dependency, Needs):
            await found.dependency(request)


async def while_allowed(request: Request, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    """A long answer, for as long as the caller may read it. Then the connection ends before the answer does."""
    checked_s = monotonic()
    async for chunk in chunks:
        if monotonic() - checked_s > CHECK_EVERY_S:
            await check_again(request)
            checked_s = monotonic()
        yield chunk


async def check_active(request: Request, caller: Caller) -> None:
    """Raises `TenantSuspended` if the caller's tenant can only be read."""
    await check_tenant(services_of(request), caller.tenant_no)


async def check_tenant(services: Services, tenant_no: TenantNo) -> None:
    tenant = await services.database.tenants.get(tenant_no)
    if tenant is None or not tenant.is_active:
        raise TenantSuspended(
            "This tenant is suspended: it can be read, and nothing of it changes or starts. Ask an owner of the"
            " installation to resume it, with `ondot tenant resume`."
        )


@dataclass(frozen=True, slots=True)
class View:
    """What a caller sees of what the installation shares: the pools that it may name, and the load of all tenants only
    if it is an owner or there is one tenant."""

    caller: Caller
    tenant: TenantOf | None
    is_whole: bool

    def shows(self, pool: str) -> bool:
        is_granted = self.caller.is_owner or (self.tenant is not None and self.tenant.may_name(pool))
        return is_granted and self.caller.sees(pool)


async def _view(request: Request) -> View:
    caller, tenants = await caller_of(request), services_of(request).database.tenants
    is_whole = caller.is_owner or not await tenants.are_several()
    return View(caller, await tenants.get(caller.tenant_no), is_whole)


SharedView = Annotated[View, Depends(_view)]


def needs(right: Right, *, by_pool: bool = False) -> Any:
    """For `dependencies=[…]` of a route: the caller must have this right, else 403. `by_pool`: the route also answers a
    key that is limited to pools, and shows and changes nothing of other pools."""
    return Depends(Needs(right, by_pool=by_pool))


async def actor_of(request: Request) -> str:
    """The name of the caller, for the audit log."""
    return (await caller_of(request)).name


async def by_of(request: Request, reason: str | None = None) -> By:
    """The caller as the audit log names it, and where the request came from."""
    caller = await caller_of(request)
    return By(
        caller.name,
        reason,
        key_id=caller.key_id,
        user_id=caller.user_id,
        address=request.client.host if request.client else None,
        request_id=request_id_of(request.scope),
        home_tenant_no=caller.home_tenant_no,
        trace=caller_trace(request.scope),
    )


async def _by_caller(
    request: Request,
    reason: Annotated[str | None, Query(max_length=500, description="Why; kept in the audit log.")] = None,
) -> By:
    return await by_of(request, reason)


async def _by_sender(request: Request) -> By:
    return await by_of(request)


CallerDep = Annotated[Caller, Depends(caller_of)]
Tenant = Annotated[TenantNo, Depends(tenant_of)]
Actor = Annotated[str, Depends(actor_of)]
ByCaller = Annotated[By, Depends(_by_caller)]
"""The caller and the reason that it states in the query, for the audit log."""
BySender = Annotated[By, Depends(_by_sender)]
"""The caller, for routes whose body states the reason: `by.because(…)`."""
