"""The page of an execution that never started, and of one whose error has facts for programs."""

import re
from html import unescape

from ondot.flow.cancel import cancel
from ondot.model.execution import State
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.outcome import AttemptError, Failed
from ondot.model.retry import Retry
from ondot.store.audit import By
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, every, job


async def facts_of(world: World, id_: object) -> tuple[dict[str, str], str]:
    """The facts of a page by name, and the whole page."""
    async with served(world.database) as page:
        html = (await page.client.get(f"/executions/{id_}")).text
    pairs = re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", html, re.DOTALL)
    return {name: unescape(re.sub(r"<[^>]+>", "", value)).strip() for name, value in pairs}, html


@proves("O5")
async def test_a_cancelled_execution_never_started_and_a_waiting_one_has_not_started_yet(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now)))
    id_ = await world.run_now(accepted.id)
    facts, _ = await facts_of(world, id_)
    assert (facts["Started"], facts["Ended"], facts["Attempt"]) == ("not yet", "not yet", "none yet")
    await cancel(world.database, world.dispatcher, DEFAULT_TENANT, id_, by=By("local"))
    assert (await world.execution(id_)).state is State.CANCELLED
    facts, _ = await facts_of(world, id_)
    assert (facts["Started"], facts["Attempt"]) == ("never", "none")
    assert facts["Ended"] != "not yet"


@proves("O5")
async def test_the_types_of_an_error_are_not_shown_and_its_other_facts_are(world: World) -> None:
    await world.submit(job(retry=Retry(max_retries=0)))
    error = AttemptError("exception", "no", "Traceback …", {"type": "ValueError", "types": ["ValueError", "Exception"]})
    attempt = await (await world.worker()).run_one(Failed(error))
    facts, html = await facts_of(world, attempt.leased.id)
    assert facts["type"] == "ValueError"
    assert "types" not in facts
    assert "Exception'" not in unescape(html)
