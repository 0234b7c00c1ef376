"""Which jobs, pools and tenants an alert covers (O4). An empty scope covers all of the alert's tenant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final
from uuid import UUID

ALL_TENANTS: Final = "all"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a scope asks of a job."""

    name: str
    pool: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scope:
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Each of them must have one of its values."""
    jobs: tuple[str, ...] = ()
    """Names, globs (`nightly-*`) or ids."""
    pools: tuple[str, ...] = ()
    tenants: str | None = None

    @property
    def is_of_all_tenants(self) -> bool:
        return self.tenants == ALL_TENANTS

    @property
    def names_jobs(self) -> bool:
        """Whether a job must be known to decide."""
        return bool(self.labels or self.jobs or self.pools)

    def covers_pool(self, pool: str) -> bool:
        return not self.pools or pool in self.pools

    def covers_job(self, job_id: UUID, job: JobFacts) -> bool:
        return (
            self.covers_pool(job.pool)
            and all(job.labels.get(name) in values for name, values in self.labels.items())
            and (not self.jobs or any(_matches(pattern, job_id, job.name) for pattern in self.jobs))
        )

    def as_json(self) -> dict[str, Any]:
        """Only what it says."""
        whole = {
            "labels": {name: list(values) for name, values in self.labels.items()},
            "jobs": list(self.jobs),
            "pools": list(self.pools),
            "tenant": self.tenants,
        }
        return {name: value for name, value in whole.items() if value}


def scope_of(stored: Mapping[str, Any]) -> Scope:
    return Scope(
        {name: tuple(values) for name, values in stored.get("labels", {}).items()},
        tuple(stored.get("jobs", ())),
        tuple(stored.get("pools", ())),
        stored.get("tenant"),
    )


def _matches(pattern: str, job_id: UUID, name: str) -> bool:
    # `[` in a name is a character of that name; only * and ? are wildcards.
    return pattern in (name, str(job_id)) or fnmatchcase(name, pattern.replace("[", "[[]"))
