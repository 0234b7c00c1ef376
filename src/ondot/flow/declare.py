"""①d Declare the jobs of an app's code, beside what operators changed (D4).

A worker compares what its code declares with what the code declared last, which is stored for each key. The fields that
the code changed win; all others stay as they are in force (`document.declared`). A key belongs to one app. An older
release declares only when newer ones have had no live worker for a minute, so a restarted old pod reverts nothing. What
the code no longer declares is flagged and kept. A job that a person deleted stays deleted until the code drops and
declares it again, or a worker starts with `--declare=force`.

Each worker repeats the pass: it records that its release is alive, and declares when it becomes its turn, also after a
rollback. Declarations of an app wait for each other at the row of the app, which is locked before all jobs. In each
transaction the order of releases is checked again, so a release that appears meanwhile is not undone.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from ondot.document.declared import (
    Document,
    Merged,
    Path,
    credentials_from,
    declared_document,
    field_name,
    merge,
    read_document,
    refreshed,
    take_all,
)
from ondot.document.parse import job_spec
from ondot.flow.change.change import update_locked
from ondot.flow.events.subscriptions import lock_if_events
from ondot.flow.new_jobs import new_job, store_jobs
from ondot.flow.secrets_in_jobs import record_uses
from ondot.flow.work import Work, begin
from ondot.model.app_release import AppRelease
from ondot.model.audit_values import show_spec
from ondot.model.errors import InvalidBody, OndotError, Unavailable
from ondot.model.ids import JobId, TenantNo
from ondot.model.job import JobSpec, fill_in_schedule, is_same_spec, keep_anchors, keep_hidden, refuse_unchanged
from ondot.store.audit import By, record_change
from ondot.store.clock import Moment
from ondot.store.connection import TAKEN
from ondot.store.database import Database
from ondot.store.declared import (
    DeclaredRow,
    drop_declared,
    find_newer_release,
    lock_app,
    put_declared,
    put_refused,
    read_declared,
    see_release,
    set_release,
)
from ondot.store.jobs import LockedJob, find_keys
from ondot.telemetry.log import get_logger

AFTER_NEWER_S: Final = 60.0
"""An older release declares when newer ones have had no live worker for this long."""
JOBS_AT_ONCE: Final = 50
TRIES: Final = 5
NAMED: Final = 8
"""Fields that a reason lists."""

log = get_logger()


class Mode(StrEnum):
    MERGE = "merge"
    FORCE = "force"
    OFF = "off"


class Declaration(Struct, frozen=True):
    key: str
    spec: JobSpec
    document: Document


@dataclass(slots=True)
class Declared:
    """What a pass did, by key."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """With the reason."""
    of_others: set[str] = field(default_factory=set)
    """Refused because the key belongs to another app."""
    waits_for: str | None = None
    """A newer release with a live worker."""

    @property
    def count(self) -> int:
        return len(self.created) + len(self.updated) + len(self.dropped)


class Superseded(Exception):
    """A newer release has a live worker."""


class Declarer:
    """The declarations of one worker process."""

    def __init__(
        self,
        database: Database,
        bodies: Sequence[Mapping[str, Any]],
        app: AppRelease,
        mode: Mode = Mode.MERGE,
    ) -> None:
        self._database = database
        self._app = app
        self._bodies = bodies
        self._mode = mode
        self._done: dict[TenantNo, Declared] = {}
        """For the tenants for which this process has declared, what it last did."""
        self._waits_for: dict[TenantNo, str] = {}

    async def one_pass(self, tenant_nos: Iterable[TenantNo]) -> int:
        """Declare for each tenant where it is this release's turn; returns 0: nothing is left to do at once."""
        if self._mode is not Mode.OFF:
            for tenant_no in tenant_nos:
                await self.declare_for(tenant_no)
        return 0

    async def declare_for(self, tenant_no: TenantNo) -> Declared:
        async with self._database.connection() as connection:
            in_force = await see_release(connection, tenant_no, self._app)
            newer = await find_newer_release(connection, tenant_no, self._app, AFTER_NEWER_S)
        if newer is not None:
            return self._wait(tenant_no, newer)
        only: set[str] | None = None
        if in_force == self._app.release and tenant_no in self._done:
            # Others of this release may have declared something else since. Only the keys of other apps are tried
            # again, which may have given them up.
            only = self._done[tenant_no].of_others
            if not only:
                return Declared()
        try:
            done = await self._database.by_clock(lambda moment: self._declare(tenant_no, moment, only))
        except Superseded as error:
            return self._wait(tenant_no, str(error))
        self._waits_for.pop(tenant_no, None)
        self._report(tenant_no, done)
        if self._mode is Mode.FORCE:
            self._mode = Mode.MERGE
        return done

    def _wait(self, tenant_no: TenantNo, newer: str) -> Declared:
        if self._waits_for.get(tenant_no) != newer:
            self._waits_for[tenant_no] = newer
            log.info("declaration.waits", app=self._app.app, release=self._app.release, newer=newer)
        return Declared(waits_for=newer)

    def _report(self, tenant_no: TenantNo, done: Declared) -> None:
        before = self._done.get(tenant_no)
        self._done[tenant_no] = done
        if before is None or done.count:
            log.info(
                "jobs.declared",
                app=self._app.app,
                release=self._app.release,
                tenant_no=tenant_no,
                created=done.created,
                updated=done.updated,
                no_longer=done.dropped,
            )
        known = {} if before is None else before.refused
        for key, why in done.refused.items():
            if known.get(key) != why:
                log.warning("declaration.refused", app=self._app.app, key=key, why=why)

    async def _declare(self, tenant_no: TenantNo, moment: Moment, only: set[str] | None) -> Declared:
        done = Declared()
        bodies = [body for body in self._bodies if only is None or body["key"] in only]
        found = await asyncio.to_thread(_read_bodies, bodies, moment.at, done.refused)
        async with self._database.connection() as connection:
            rows = await read_declared(connection, tenant_no, found)
        changed = [
            declaration
            for key, declaration in sorted(found.items())
            if not self._is_as_declared(rows.get(key), declaration)
        ]
        for start in range(0, len(changed), JOBS_AT_ONCE):
            await self._store(tenant_no, changed[start : start + JOBS_AT_ONCE], moment, done)
        if only is not None:
            earlier = self._done[tenant_no]
            done.refused = {key: why for key, why in earlier.refused.items() if key not in only} | done.refused
            if done.refused == earlier.refused:
                return done
        async with begin(self._database, tenant_no) as work:
            await self._check_turn(work)
            if only is None:
                done.dropped = await self._drop(work, [body["key"] for body in self._bodies])
                await set_release(work.connection, tenant_no, self._app)
            await put_refused(work.connection, tenant_no, self._app, done.refused)
        return done

    def _is_as_declared(self, row: DeclaredRow | None, declaration: Declaration) -> bool:
        """Whether there is nothing to do, so that the start of a fleet locks nothing."""
        return (
            row is not None
            and row.app == self._app.app
            and row.dropped_at is None
            and not row.is_gone
            and row.document == declaration.document
            and self._mode is not Mode.FORCE
        )

    async def _check_turn(self, work: Work) -> None:
        await lock_app(work.connection, work.tenant_no, self._app)
        newer = await find_newer_release(work.connection, work.tenant_no, self._app, AFTER_NEWER_S)
        if newer is not None:
            raise Superseded(newer)

    async def _store(self, tenant_no: TenantNo, batch: Sequence[Declaration], moment: Moment, done: Declared) -> None:
        for tries in range(TRIES):
            tried = Declared()
            try:
                async with begin(self._database, tenant_no) as work:
                    await self._store_batch(work, batch, moment, tried)
            except TAKEN:
                # Somebody creates a job with the same key at this instant: the next try finds it.
                if tries == TRIES - 1:
                    raise Unavailable("Others are creating jobs with the same keys: try again.") from None
            else:
                done.created += tried.created
                done.updated += tried.updated
                done.refused |= tried.refused
                done.of_others |= tried.of_others
                return

    async def _store_batch(self, work: Work, batch: Sequence[Declaration], moment: Moment, done: Declared) -> None:
        await self._check_turn(work)
        keys = [declaration.key for declaration in batch]
        jobs = await find_keys(work.connection, work.tenant_no, keys)
        for job in jobs.values():
            work.database.clock.check(moment, job.now)
        # After the jobs: an operator who hands one over has locked the job.
        rows = await read_declared(work.connection, work.tenant_no, keys)
        await lock_if_events(work, *(declaration.spec for declaration in batch), *(job.spec for job in jobs.values()))
        for declaration in batch:
            row = rows.get(declaration.key)
            if self._is_as_declared(row, declaration):
                continue
            try:
                async with work.connection.transaction():
                    await self._store_one(work, declaration, row, jobs.get(declaration.key), moment, done)
            except OndotError as error:
                if isinstance(error, Unavailable):
                    raise
                done.refused[declaration.key] = error.message

    async def _store_one(
        self,
        work: Work,
        declaration: Declaration,
        row: DeclaredRow | None,
        job: LockedJob | None,
        moment: Moment,
        done: Declared,
    ) -> None:
        key = declaration.key
        if row is not None and row.app != self._app.app and row.dropped_at is None:
            if job is not None:
                done.refused[key] = (
                    f"The job belongs to the app {row.app}. Hand it over: ondot job adopt {key} {self._app.app}"
                )
                done.of_others.add(key)
                return
            row = None
        if job is None and row is not None and row.dropped_at is None and self._mode is not Mode.FORCE:
            done.refused[key] = "The job was deleted: `ondot worker --declare=force` creates it again."
            return
        version: int | None = 1
        if job is None:
            job_id = await self._create(work, declaration, moment, done)
        else:
            job_id, version = job.id, await self._update(work, declaration, row, job, done)
        await put_declared(work.connection, work.tenant_no, key, self._app, job_id, declaration.document, version)

    async def _create(self, work: Work, declaration: Declaration, moment: Moment, done: Declared) -> JobId:
        spec = declaration.spec
        numbers = {spec.pool: await work.pool_no(spec.pool)}
        # In a thread: the first fire of a calendar may take long to find.
        job = await asyncio.to_thread(new_job, JobId(work.database.clock.new_id()), spec, numbers, moment.at)
        await store_jobs(work, [job], moment)
        by = self._by("The code declares it.")
        detail = {"name": spec.name, "key": spec.key}
        await record_change(
            work.connection, work.tenant_no, by, "job.create", job.id, detail, after=show_spec(job.spec)
        )
        await record_uses(work.connection, work.tenant_no, [(job.id, job.spec)], are_new=True)
        done.created.append(declaration.key)
        return job.id

    async def _update(
        self, work: Work, declaration: Declaration, row: DeclaredRow | None, job: LockedJob, done: Declared
    ) -> int | None:
        """Merge into the job that exists; returns its version if it is as declared now."""
        in_force, is_forced = declared_document(job.spec), self._mode is Mode.FORCE
        if is_forced:
            merged = take_all(declaration.document, in_force)
        else:
            declared = None if row is None else refreshed(row.document, job.now)
            merged = merge(declared, declaration.document, in_force)
        reason = _reason(merged, is_forced=is_forced)
        try:
            wanted = _wanted(merged, declaration.spec, job)
        except InvalidBody as error:
            # Two changes that do not fit together. The code was tested as it is.
            merged = take_all(declaration.document, in_force)
            wanted = _wanted(merged, declaration.spec, job)
            reason = f"{reason} They do not fit together ({error.message}), so the code wins."
        version = job.version
        if not is_same_spec(wanted, job.spec):
            await update_locked(work, job, wanted, by=self._by(reason))
            done.updated.append(declaration.key)
            version += 1
        elif row is None or row.app != self._app.app or row.dropped_at is not None:
            await self._record(work, job.id, declaration.key, "The code declares it.", name=job.spec.name)
        return None if merged.kept else version

    async def _drop(self, work: Work, keys: Collection[str]) -> list[str]:
        dropped = await drop_declared(work.connection, work.tenant_no, self._app, keys)
        for key, job_id in dropped:
            await self._record(work, job_id, key, "The code no longer declares it.")
        return [key for key, _ in dropped]

    async def _record(self, work: Work, job_id: JobId, key: str, why: str, **detail: str) -> None:
        entry = {"key": key, "app": self._app.app, "release": self._app.release, **detail}
        await record_change(work.connection, work.tenant_no, self._by(why), "job.declare", job_id, entry)

    def _by(self, reason: str) -> By:
        return By(str(self._app), reason, address=socket.gethostname())


def _read_bodies(bodies: Sequence[Mapping[str, Any]], now: datetime, refused: dict[str, str]) -> dict[str, Declaration]:
    """What the code declares, by key. A body that this server rejects must not keep the worker from its work."""
    found: dict[str, Declaration] = {}
    counts = Counter(body["key"] for body in bodies)
    for body in bodies:
        key = body["key"]
        if counts[key] > 1:
            refused[key] = "The code declares two jobs with this key: give one another `key`."
            continue
        try:
            # A schedule that has ended must not keep the worker from starting either.
            spec = job_spec(body, now, may_be_over=True)
            refuse_unchanged(spec)
        except InvalidBody as error:
            refused[key] = f"The server rejects it: {error.message}"
        else:
            found[key] = Declaration(key, spec, declared_document(spec))
    return found


def _wanted(merged: Merged, code: JobSpec, job: LockedJob) -> JobSpec:
    """The spec to put in force. Raises InvalidBody."""
    spec = credentials_from(read_document(merged.document, job.now), code, merged.by_code)
    return keep_anchors(keep_hidden(fill_in_schedule(spec, job.id, job.now), job.spec), job.spec)


def _reason(merged: Merged, *, is_forced: bool) -> str:
    if is_forced:
        return "Set to what the code declares, by --declare=force."
    kept = f" Kept as changed by hand: {_list(merged.kept)}." if merged.kept else ""
    return f"The code declares {_list(merged.by_code)}.{kept}"


def _list(paths: Sequence[Path]) -> str:
    names = ", ".join(field_name(path) for path in paths[:NAMED])
    return f"{names} and {len(paths) - NAMED} more" if len(paths) > NAMED else names
