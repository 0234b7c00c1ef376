"""`/audit`: who changed what, with the values before and after, page by page (T6, O5).

As in `/executions`, values of the query that cannot be parsed are ignored, and pages have the cursor of the API's list.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

import msgspec

from ondot.model.ids import INSTALLATION, TenantNo
from ondot.model.tenant import Tenant
from ondot.store.audit import AuditFilter, AuditRow, list_audit
from ondot.store.database import Database

PAGE_SIZE: Final = 50
LONGEST: Final = 200
LONGEST_VALUE: Final = 500
WITHIN: Final = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
OWN: Final = "/audit"
OF_INSTALLATION: Final = "/audit/installation"
LINKS: Final = {"job": "/jobs/", "execution": "/executions/", "dead_letter": "/executions/", "bulk": "/bulk/"}
"""The pages of subjects, by the first word of the action."""


@dataclass(frozen=True, slots=True)
class Query:
    """`cursor`: the last entry of the page before."""

    path: str = OWN
    action: str = ""
    actor: str = ""
    subject: UUID | None = None
    request_id: str = ""
    within: str = ""
    cursor: UUID | None = None

    def address(self, cursor: UUID | None = None) -> str:
        return _add_query(self.path, self._fields() | {"within": self.within, "cursor": cursor})

    def as_file(self, now: datetime, kind: str) -> str:
        return _add_query("/v1/audit/export", self._for_api(now) | {"format": kind})

    def as_json(self, now: datetime) -> str:
        return _add_query("/v1/audit", self._for_api(now) | {"cursor": self.cursor})

    def filter(self, now: datetime) -> AuditFilter:
        return {
            "action": self.action or None,
            "actor": self.actor or None,
            "subject": self.subject,
            "request_id": self.request_id or None,
            "from_at": now - WITHIN[self.within] if self.within else None,
        }

    @property
    def is_filtered(self) -> bool:
        return self != Query(path=self.path)

    @property
    def is_of_installation(self) -> bool:
        return self.path == OF_INSTALLATION

    def _fields(self) -> dict[str, object]:
        return {"action": self.action, "actor": self.actor, "subject": self.subject, "request_id": self.request_id}

    def _for_api(self, now: datetime) -> dict[str, object]:
        from_at = now - WITHIN[self.within] if self.within else None
        instant = from_at and f"{from_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return self._fields() | {"from_at": instant, "installation": "true" if self.is_of_installation else None}


@dataclass(frozen=True, slots=True)
class Change:
    """A value that changed, as text; None: there was or is none."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class AuditLine:
    id: UUID
    at: datetime
    actor: str
    action: str
    subject: UUID | None
    link: str | None
    reason: str | None
    origin: str
    """Where it came from: the address, the key or user, the request."""
    changes: tuple[Change, ...]
    detail: str


@dataclass(frozen=True, slots=True)
class AuditView:
    now: datetime
    query: Query
    rows: tuple[AuditLine, ...]
    older: str | None
    """The address of the next page."""
    has_tenants: bool
    """There are several, so that the installation has a log of its own."""


def parse_query(parameters: Mapping[str, str], path: str = OWN) -> Query:
    within = parameters.get("within", "")
    return Query(
        path=path,
        action=_text(parameters.get("action", "")),
        actor=_text(parameters.get("actor", "")),
        subject=_uuid(parameters.get("subject", "")),
        request_id=_text(parameters.get("request_id", "")),
        within=within if within in WITHIN else "",
        cursor=_uuid(parameters.get("cursor", "")),
    )


async def read_audit(database: Database, tenant_no: TenantNo, query: Query) -> AuditView:
    now = database.clock.now()
    of_no = INSTALLATION if query.is_of_installation else tenant_no
    async with database.reading(of_no) as connection:
        rows = await list_audit(connection, of_no, before=query.cursor, limit=PAGE_SIZE + 1, **query.filter(now))
    page = rows[:PAGE_SIZE]
    tenants = await database.tenants.snapshot()
    return AuditView(
        now=now,
        query=query,
        rows=tuple(_line(row, tenants) for row in page),
        older=query.address(page[-1].id) if len(rows) > PAGE_SIZE else None,
        has_tenants=len(tenants) > 1,
    )


def _line(row: AuditRow, tenants: Mapping[TenantNo, Tenant]) -> AuditLine:
    before, after = row.before or {}, row.after or {}
    detail = {name: value for name, value in (row.detail or {}).items() if name != "reason"}
    noun = row.action.partition(".")[0]
    start = LINKS.get("bulk" if noun == "dead_letter" and "total" in detail else noun)  # letters by a filter
    came = {"address": row.address, "key": row.key_id, "user": row.user_id, "request": row.request_id}
    home_tenant = None if row.home_tenant_no is None else tenants.get(row.home_tenant_no)
    home = {"owner of tenant": None if home_tenant is None else home_tenant.name}
    return AuditLine(
        id=row.id,
        at=row.at,
        actor=row.actor,
        action=row.action,
        subject=row.subject,
        link=f"{start}{row.subject}" if start and row.subject else None,
        reason=row.reason,
        origin=" · ".join(f"{name} {value}" for name, value in (came | home).items() if value is not None),
        changes=tuple(
            Change(name, _value(before.get(name)), _value(after.get(name))) for name in dict.fromkeys((*before, *after))
        ),
        detail=", ".join(f"{name}: {_value(value)}" for name, value in detail.items()),
    )


def _value(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _text(given: str) -> str:
    return given.replace("\0", "").strip()[:LONGEST]


def _add_query(path: str, fields: Mapping[str, object]) -> str:
    query = urlencode({name: str(value) for name, value in fields.items() if value})
    return f"{path}?{query}" if query else path


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
