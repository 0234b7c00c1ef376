"""Handles: what `enqueue` returns, and how a job's end arrives in the program that awaits it (D2)."""

from ondot import Handle, Ondot
from ondot.testing import open_world
from tests.proves import proves

AT = "2026-01-01T00:00:00Z"


def make_app() -> Ondot:
    app = Ondot()

    @app.job(retries=1)
    def divide(a: int, b: int) -> float:
        return a / b

    return app


@proves("D2")
async def test_a_handle_returns_what_the_function_returned() -> None:
    app = make_app()
    async with open_world(app, at=AT) as world:
        job = await world.create({"name": "divide", "function": "divide", "payload": {"a": 6, "b": 3}})
        handle: Handle[float] = Handle(app.client, job, float)
        assert await handle.state() == "PENDING"
        await world.run_due()
        assert await handle.state() == "SUCCEEDED"
        assert await handle.result(timeout=30) == 2.0
        assert await app.handle(handle.id).result() == 2.0
        assert repr(handle) == f"<Handle {job['id']} of divide>"
        assert handle == app.handle(handle.id)
        assert len({handle, app.handle(handle.id)}) == 1
