"""`ondot function`, and what commands say about a function, against the API as it is served."""

import asyncio
import json

from ondot.flow.known_functions import register
from ondot.model.app_release import AppRelease
from ondot.model.ids import DEFAULT_TENANT
from ondot.sdk.app import Ondot
from ondot.sdk.declared import declare_functions
from tests.cli.running import Ran, ondot
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

app = Ondot(name="shop", release="7")


@app.job(retries=0)
def charge(customer: int, amount: float = 1.0) -> None:
    """Charge a customer."""


async def run(page: Served, *words: str) -> Ran:
    return await asyncio.to_thread(ondot, *words, url=page.url)


@proves("D1", "D5")
async def test_a_function_is_shown_with_its_arguments_and_latest_runs(world: World) -> None:
    await register(world.database, AppRelease("shop", "7"), declare_functions(app), frozenset({DEFAULT_TENANT}))
    async with served(world.database) as page:
        created = await run(page, "job", "create", "--function", "charge", "--payload", '{"customer": 7}', "-o", "json")
        execution = json.loads((await run(page, "execution", "list", "-o", "json")).out)["items"][0]

        shown = await run(page, "function", "get", "charge")

    assert (created.err, shown.err, shown.code) == ("", "", 0)
    assert "Charge a customer." in shown.out
    assert execution["id"] in shown.out
    assert ["customer", "whole", "number", "required"] in [line.split() for line in shown.out.splitlines()]


@proves("D1", "D5")
async def test_a_warning_is_on_standard_error_also_in_a_script(world: World) -> None:
    await register(world.database, AppRelease("shop", "7"), declare_functions(app), frozenset({DEFAULT_TENANT}))
    body = {"key": "k", "name": "k", "every": "1h", "function": "chrage"}
    async with served(world.database) as page:
        created = await run(page, "job", "create", "--function", "chrage", "-o", "json")
        applied = await asyncio.to_thread(ondot, "job", "apply", "-f", "-", url=page.url, stdin=json.dumps(body))

    warning = "No worker has registered 'chrage'. Did you mean 'charge'?"
    assert created.err == f"Warning: {warning}\n"
    assert json.loads(created.out)["warnings"][0]["detail"] == warning
    assert (applied.code, applied.err) == (0, f"Warning: k: {warning}\n")
