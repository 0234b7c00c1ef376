"""An asynchronous standby without the last jobs is promoted: nothing starts by itself, and the alarm says what to do
(P1 to P3 are not promised then). A restored backup looks the same: a new timeline starts."""

from pathlib import Path

import pytest

from tests.cli.running import ondot
from tests.faults.postgres import a_postgres
from tests.proves import proves
from tests.stories.outage import Office, an_office, until

pytestmark = pytest.mark.timeout(300)

EACH_SECOND = {"name": "each second", "function": "works_together", "payload": {"seconds": 0}, "every": "1s"}


@proves("P1", "P3", "L7")
async def test_after_an_asynchronous_standby_was_promoted_nothing_starts_until_a_person_accepts_it(
    tmp_path: Path,
) -> None:
    async with a_postgres() as postgres:
        await postgres.add_standby(synchronous=False)
        async with an_office(postgres.failover_url, tmp_path, allow_unsafe_database="0") as office:
            office.open()
            await office.works("before the promotion")
            await office.ask("/v1/jobs", EACH_SECOND)
            await until(lambda: _called_more_than(office, 1), what="it runs each second")

            await postgres.fail_over()
            why = await until(lambda: _held(office), what="/readyz says that all is held")
            assert "timeline 1 to 2" in why
            assert "--accept-database" in why
            begun = len(office.calls())
            await until(lambda: _is_late(office), what="what was planned ahead is late")
            assert len(office.calls()) == begun
            office.all_run()
            doctor = ondot("doctor", database_url=postgres.url)
            assert doctor.code == 1
            assert "Everything is held since" in " ".join(doctor.out.split())

            accepted = ondot("doctor", "--accept-database", "--reason", "we looked", database_url=postgres.url)
            assert (accepted.code, accepted.err) == (0, "")
            assert "Accepted" in accepted.out
            await office.works("after it was accepted")
            await until(lambda: _called_more_than(office, begun), what="it runs each second again")
            assert await office.value("SELECT held_at FROM ondot.lineage") is None

            # One role has found it, and all others learn of it, although their connections still work.
            await office.value("UPDATE ondot.lineage SET held_at = ondot.clock(), held_why = 'somebody found it so'")
            await until(lambda: _is_late(office), what="nothing is begun any more")
            office.all_run()
            assert ondot("doctor", "--accept-database", database_url=postgres.url).code == 0
            await office.works("after it was accepted once more")


async def _called_more_than(office: Office, count: int) -> bool | None:
    return len(office.calls()) > count or None


async def _held(office: Office) -> str | None:
    answer = await office.ask("/readyz")
    is_held = answer.status == 503 and answer.body["status"] == "held"
    return answer.body["why"] if is_held else None


async def _is_late(office: Office) -> bool | None:
    return await office.value("SELECT ondot.clock() - min(ready_at) > interval '3 s' FROM ondot.ready") or None
