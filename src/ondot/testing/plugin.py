"""The pytest plugin that comes with ondot: the fixture `ondot_world`, and a runner for async tests that use it.

It is loaded in every project that has ondot installed, so it imports nothing until a test uses it. Tests that belong to
the plugin of anyio or pytest-asyncio are left to that.
"""

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from ondot.testing.world import World

FIXTURE = "ondot_world"
OTHERS = ("anyio", "asyncio", "trio", "twisted")


@pytest.fixture
def ondot_world() -> "Callable[..., AbstractAsyncContextManager[World]]":
    """`open_world`: a whole ondot whose clock the test turns; see docs/guides/testing.md."""
    from ondot.testing.opening import open_world

    return open_world


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that uses the fixture, unless another plugin does."""
    test: Any = pyfuncitem.obj
    if FIXTURE not in pyfuncitem.fixturenames or not iscoroutinefunction(test):
        return None
    if any(pyfuncitem.get_closest_marker(name) for name in OTHERS):
        return None
    import uvloop  # the loop that workers run on

    names = pyfuncitem._fixtureinfo.argnames
    uvloop.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
