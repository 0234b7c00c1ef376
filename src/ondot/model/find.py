"""What people type to name a thing (D5): a name, a key, an id or its first characters; and how well something fits it.

Pure: `flow.find` looks for candidates, and orders them by what is decided here.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from ondot.model.query.query import Value, id_range

LONGEST: Final = 200
LEAST_OF_ID: Final = 4
"""Characters of an id that are looked for. All ids of 50 days begin with the same four."""


class Kind(StrEnum):
    """In the order in which equally good candidates are listed."""

    JOB = "job"
    WORKFLOW = "workflow"
    """A job whose target is a workflow. It is also found as a job."""
    FUNCTION = "function"
    POOL = "pool"
    ALERT = "alert"
    INCIDENT = "incident"
    CHANNEL = "channel"
    PING = "ping"
    HOOK = "hook"
    VIEW = "view"
    SECRET = "secret"  # noqa: S105 - a kind of thing
    KEY = "key"
    USER = "user"
    TENANT = "tenant"
    WORKER = "worker"
    NODE = "node"
    RUN = "run"
    EXECUTION = "execution"
    DEAD_LETTER = "dead_letter"
    BACKFILL = "backfill"
    BULK = "bulk"
    EVENT = "event"


class Match(StrEnum):
    """How a candidate fits what was typed, best first."""

    ID = "id"
    KEY = "key"
    NAME = "name"
    ID_PREFIX = "id-prefix"
    PREFIX = "prefix"
    """A name or a key that begins with it, whatever its case."""
    PART = "part"


_KINDS: Final = tuple(Kind)
_MATCHES: Final = tuple(Match)
NAMES_IT: Final = frozenset({Match.ID, Match.KEY, Match.NAME, Match.ID_PREFIX})
"""These name a thing; the others only suggest it."""


@dataclass(frozen=True, slots=True)
class Sought:
    """What was typed."""

    text: str

    @property
    def ids(self) -> tuple[UUID, UUID] | None:
        """The first and the last id that it may be the beginning of."""
        try:
            return id_range(Value((self.text,)))
        except ValueError:
            return None

    @property
    def prefixes(self) -> list[str]:
        """Patterns for ILIKE ANY: what a name begins with."""
        return [f"{pattern}%" for pattern in Value((self.text,)).as_ilikes()]

    @property
    def parts(self) -> list[str]:
        """Patterns for ILIKE ANY: what a name contains."""
        return Value((self.text,)).as_ilikes(part=True)

    def match(self, id_: str, *names: str | None) -> Match | None:
        """How an id, a name and further names (its key first) fit; None: not at all."""
        name, *others = names
        first, last = (str(bound) for bound in self.ids or ("", ""))
        is_of_id = bool(first) and first <= id_ <= last and len(id_) == len(first)
        folded = self.text.casefold()
        known = [each.casefold() for each in names if each is not None]
        fits = (
            (Match.PREFIX, not self.text),
            (Match.ID, id_ == self.text or (is_of_id and first == last)),
            (Match.KEY, self.text in others),
            (Match.NAME, name == self.text),
            (Match.ID_PREFIX, is_of_id),
            (Match.PREFIX, any(each.startswith(folded) for each in known)),
            (Match.PART, any(folded in each for each in known)),
        )
        return next((match for match, is_it in fits if is_it), None)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that may be meant. `page`: its address in the pages."""

    kind: Kind
    id: str
    name: str
    match: Match
    page: str
    key: str | None = None
    state: str | None = None
    about: str | None = None
    """A few words: its schedule, its job, its role."""
    next_fire_at: datetime | None = None
    is_once: bool = False
    """A one-time job: definitions come before it."""


def order_of(candidate: Candidate) -> tuple[int, bool, bool, int]:
    """Best first: by the match, definitions before one-time jobs, deleted ones last. Those that are equal in all this
    keep their order."""
    return (
        _MATCHES.index(candidate.match),
        candidate.state in {"DELETED", "REVOKED", "RESOLVED"},
        candidate.is_once,
        _KINDS.index(candidate.kind),
    )
