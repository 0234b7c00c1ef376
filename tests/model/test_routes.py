"""Which transports carry the hints of a pool: its own or the installation's, and both after a change (C4)."""

from datetime import UTC, datetime, timedelta

import pytest

from ondot.model.ids import PoolNo
from ondot.model.routes import BOTH_FOR, Route, names_of, pools_by_transport
from tests.proves import proves

AT = datetime(2026, 11, 18, tzinfo=UTC)
LATER = AT + BOTH_FOR


@proves("C4")
@pytest.mark.parametrize(
    ("route", "now", "names"),
    [
        (None, AT, ("postgres",)),
        (Route("redis", None, AT), AT, ("redis", "postgres")),
        (Route("redis", None, AT), LATER - timedelta(microseconds=1), ("redis", "postgres")),
        (Route("redis", None, AT), LATER, ("redis",)),
        (Route(None, "redis", AT), AT, ("postgres", "redis")),
        (Route(None, "redis", AT), LATER, ("postgres",)),
        (Route("kafka", "redis", AT), AT, ("kafka", "redis")),
        (Route("postgres", None, AT), AT, ("postgres",)),
        (Route("redis", None, AT), AT - timedelta(seconds=5), ("redis", "postgres")),
    ],
)
def test_a_pool_uses_its_transport_and_the_one_before_for_a_while(
    route: Route | None, now: datetime, names: tuple[str, ...]
) -> None:
    assert names_of(route, "postgres", now) == names


def test_pools_are_grouped_by_their_transports() -> None:
    routes = {PoolNo(2): Route("redis", None, AT)}
    served = pools_by_transport([PoolNo(1), PoolNo(2)], routes, "postgres", AT)
    assert served == {"postgres": (1, 2), "redis": (2,)}
