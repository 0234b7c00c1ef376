"""`GET /v1/history` (O1): how much history there is, what stays and why, and what goes next. For owners."""

from datetime import date, datetime

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from ondot.api.dependencies import RequestServices, needs
from ondot.api.parameters import only_known_parameters
from ondot.flow.history.kept import REASONS
from ondot.flow.history.show import HistoryView, read_history
from ondot.model.access import Right

router = APIRouter(tags=["history"], dependencies=[Depends(only_known_parameters)])


class HistoryDayOut(BaseModel):
    """One day of all tables that are cut by day."""

    day: date | None = Field(description="By UTC; null: everything that is left of earlier days.")
    executions: int | None = Field(description="Ended executions, as PostgreSQL estimates them; null: not known yet.")
    bytes: int
    rewritten: bool = Field(description="Whether it is past a retention, and only what must stay is left.")


class StaysOut(BaseModel):
    """Rows that stay though their day is over."""

    table: str
    reason: str = Field(examples=["dead_letter"])
    in_words: str
    rows: int


class LastRewritingOut(BaseModel):
    """The day that was rewritten last, over all tables."""

    day: str
    at: datetime
    took: float = Field(description="Seconds.")
    removed: int = Field(description="Rows.")
    kept: int = Field(description="Rows.")
    freed_bytes: int


class NextDayOut(BaseModel):
    day: date
    at: datetime = Field(
        description="When it is past the shortest retention. In the past if it is kept for longer: see `troubles`."
    )


class HistoryOut(BaseModel):
    """History of the installation. Days are listed newest first."""

    bytes: int = Field(description="The whole database.")
    history_bytes: int = Field(description="The tables that are cut by day.")
    retention_days: int = Field(description="ONDOT_RETENTION_DAYS of this API process.")
    tenants: dict[str, int] = Field(description="Tenants with a retention of their own, in days.")
    complete_since: datetime | None = Field(description="What ended before may be gone; null: nothing has gone yet.")
    oldest_day: date | None
    days: list[HistoryDayOut]
    stays: list[StaysOut]
    next: NextDayOut | None
    troubles: list[str] = Field(description="Why days do not go, or the disk fills up; empty if all is well.")
    last: LastRewritingOut | None
    under_way: list[str] = Field(description="Tables of days that are being rewritten now.")
    object_lists: int = Field(description="Days whose objects are still to be deleted from storage.")
    disk_used: float | None = Field(
        description="The used share of the database's disk, or of ONDOT_DISK_LIMIT if it is set; null: a server on"
        " another machine does not report it: set that."
    )
    now: datetime


@router.get("/history", dependencies=[needs(Right.FLEET_MANAGE)], response_model=HistoryOut)
async def history(services: RequestServices) -> HistoryOut:
    """How much history there is, what stays though its day is over and why, and what goes next."""
    return _out(await read_history(services.database))


def _out(view: HistoryView) -> HistoryOut:
    last, next_day, next_at = view.last, view.next_day, view.next_at
    return HistoryOut(
        bytes=view.bytes,
        history_bytes=view.history_bytes,
        retention_days=view.retentions.days,
        tenants={name: view.retentions.of(no) for no, name in view.tenants.items()},
        complete_since=view.kept_from,
        oldest_day=view.oldest_day,
        days=[
            HistoryDayOut(day=each.day, executions=each.executions, bytes=each.bytes, rewritten=each.is_rewritten)
            for each in view.days
        ],
        stays=[
            StaysOut(table=table, reason=reason, in_words=REASONS[reason], rows=rows)
            for table, reasons in view.stays.items()
            for reason, rows in reasons.items()
        ],
        next=None if next_day is None or next_at is None else NextDayOut(day=next_day, at=next_at),
        troubles=list(view.troubles),
        last=None
        if last is None
        else LastRewritingOut(
            day=last.name,
            at=last.at,
            took=round(last.took_s, 3),
            removed=last.removed,
            kept=last.kept,
            freed_bytes=last.freed_bytes,
        ),
        under_way=[name for copy in view.under_way for name in copy.sources],
        disk_used=None if view.disk_used is None else round(view.disk_used, 4),
        object_lists=view.lists_of_objects,
        now=view.now,
    )
