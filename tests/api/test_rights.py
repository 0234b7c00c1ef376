"""Every route declares the right that it needs."""

from fastapi.routing import APIRoute

from ondot.api.dependencies import Needs
from ondot.api.server import PARTS
from tests.proves import proves


@proves("T1", "T7")
def test_every_route_declares_a_right() -> None:
    routes = [route for part in PARTS for route in part.router.routes if isinstance(route, APIRoute)]
    without = [
        f"{sorted(route.methods or ())} {route.path}"
        for route in routes
        if sum(isinstance(found.dependency, Needs) for found in route.dependencies) != 1
    ]
    assert routes
    assert not without
