"""`/v1/find`: what a person types, a name, a key or the beginning of an id, to what may be meant (D5)."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from ondot.api.dependencies import RequestServices, SharedView, needs
from ondot.api.parameters import only_known_parameters
from ondot.flow.find import MOST, Asked, find, kinds_for
from ondot.model.access import Right
from ondot.model.errors import InvalidParameters
from ondot.model.find import LONGEST, Candidate, Kind, Match

router = APIRouter(tags=["find"], dependencies=[Depends(only_known_parameters)])


class CandidateOut(BaseModel):
    """Something that may be meant."""

    kind: Kind
    id: str = Field(description="Its id; of a pool, a secret or a tenant, its name.")
    name: str = Field(
        description="Of an execution, a run, a dead letter or a backfill: the name of its job. Of a user: the e-mail"
        " address. Of a worker or a node: host and process id."
    )
    key: str | None = Field(description="The key of a job.")
    match: Match = Field(
        description="`id`, `key` and `name`: it is that; `id-prefix`: its id begins with it; `prefix` and `part`: its"
        " name or key begins with it or contains it, whatever the case."
    )
    state: str | None
    about: str | None = Field(description="A few words for people: the schedule, the fire, the role.")
    next_fire_at: datetime | None = Field(description="The next run of a job; when a ping is due.")
    once: bool = Field(description="A one-time job. Jobs with a schedule come before it.")
    page: str = Field(description="Its path in the pages of this server.")


class FoundOut(BaseModel):
    items: list[CandidateOut] = Field(description="Best first.")
    more: bool = Field(description="There are more, or there was no time to look everywhere. Type more of it.")
    near: list[str] = Field(description="With `exact`, if nothing is found: similar names.")


@router.get("/find", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=FoundOut)
async def find_candidates(
    services: RequestServices,
    view: SharedView,
    q: Annotated[
        str, Query(max_length=LONGEST, description="A name, a key, an id, or its first 4 characters and more.")
    ] = "",
    kinds: Annotated[
        str | None, Query(description="Only these, with commas between, for example `job,execution`. Default: all.")
    ] = None,
    exact: Annotated[
        bool, Query(description="Only what `q` names: the whole name or key, the id, or its first characters.")
    ] = False,
    limit: Annotated[int, Query(ge=1, le=MOST, description="How many to list.")] = 20,
) -> FoundOut:
    """What a text may mean: whole ids, keys and names first, then ids and names that begin with it, then names that
    contain it. Only what the caller may read. An empty text means everything: names in order, ids newest first."""
    wanted = kinds_for(view.caller, _kinds(kinds))
    asked = Asked(view.caller, q, wanted, limit, exact, view.shows, sees_fleet=_sees_fleet(view))
    found = await find(services.database, asked)
    return FoundOut(items=[_out(each) for each in found.candidates], more=found.is_cut, near=found.near)


def _sees_fleet(view: SharedView) -> bool:
    return view.is_whole or view.caller.may(Right.FLEET_MANAGE)


def _kinds(written: str | None) -> list[Kind]:
    kinds = []
    for name in (written or "").split(","):
        try:
            kinds += [Kind(name.strip().lower().replace("-", "_"))] if name.strip() else []
        except ValueError:
            raise InvalidParameters(f"Unknown kind {name[:64]!r}. Use one of: {', '.join(Kind)}.") from None
    return kinds


def _out(each: Candidate) -> CandidateOut:
    return CandidateOut(
        kind=each.kind,
        id=each.id,
        name=each.name,
        key=each.key,
        match=each.match,
        state=each.state,
        about=each.about,
        next_fire_at=each.next_fire_at,
        once=each.is_once,
        page=each.page,
    )
