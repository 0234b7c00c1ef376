"""The words of an execution's page where it never began, and where its error has facts for programs."""

import re
from html import unescape

from ondot.flow.cancel import cancel
from ondot.model.execution import State
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.outcome import AttemptError, Failed
from ondot.model.retry import Retry
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, every, job


async def facts_of(world: World, id_: object) -> tuple[dict[str, str], str]:
    """The named facts of a page, and all of it."""
    async with served(world.database) as page:
        html = (await page.client.get(f"/executions/{id_}")).text
    pairs = re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", html, re.DOTALL)
    return {name: unescape(re.sub(r"<[^>]+>", "", value)).strip() for name, value in pairs}, html


@proves("O5")
async def test_what_ended_before_it_began_never_started_and_what_waits_has_not_yet(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now)))
    id_ = await world.run_now(accepted.id)
    told, _ = await facts_of(world, id_)
    assert (told["Started"], told["Ended"], told["Attempt"]) == ("not yet", "not yet", "none yet")
    await cancel(world.database, DEFAULT_TENANT, id_, actor="local")
    assert (await world.execution(id_)).state is State.CANCELLED
    told, _ = await facts_of(world, id_)
    assert (told["Started"], told["Attempt"]) == ("never", "none")
    assert told["Ended"] != "not yet"


@proves("O5")
async def test_the_types_of_an_error_are_not_shown_and_its_other_facts_are(world: World) -> None:
    await world.submit(job(retry=Retry(max_retries=0)))
    error = AttemptError("exception", "no", "Traceback …", {"type": "ValueError", "types": ["ValueError", "Exception"]})
    attempt = await (await world.worker()).run_one(Failed(error))
    told, html = await facts_of(world, attempt.leased.id)
    assert told["type"] == "ValueError"
    assert "types" not in told
    assert "Exception'" not in unescape(html)
