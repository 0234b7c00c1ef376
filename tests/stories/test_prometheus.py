"""A real Prometheus scrapes every role of a real installation; its answers are right, also after workers were killed.
One installation for all: its processes take longer to start than everything else (O2)."""

import asyncio
import json
import re
import shutil
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from started import free_port

from tests.faults.fleet import Fleet, Member, a_fleet
from tests.proves import proves
from tests.telemetry.test_deploy import BOARDS, queries, rules

PROMETHEUS: Final = shutil.which("prometheus")
RULES: Final = Path(__file__).parents[2] / "deploy/prometheus"
WITHIN_S: Final = 30.0
FILE: Final = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}/recording-rules.yml, {rules}/alert-rules.yml]
scrape_configs:
  - job_name: ondot
    static_configs: [{{targets: {targets}}}]
"""

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on this machine: apt-get install prometheus"),
]


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, query: str) -> dict[str, float]:
        """The values now, by their labels."""
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        answer = json.loads(await asyncio.to_thread(read, url))
        assert answer["status"] == "success", answer
        return {
            ",".join(value for name, value in sorted(found["metric"].items()) if name != "__name__"): float(
                found["value"][1]
            )
            for found in answer["data"]["result"]
        }


def read(url: str, **headers: str) -> str:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


@asynccontextmanager
async def a_prometheus(directory: Path, targets: list[str]) -> AsyncIterator[Prometheus]:
    assert PROMETHEUS is not None
    file = directory / "prometheus.yml"
    file.write_text(FILE.format(rules=RULES, targets=json.dumps(targets)))
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS,
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    )
    try:
        yield Prometheus(f"http://{address}")
    finally:
        process.kill()
        await process.wait()


async def served_at(fleet: Fleet, member: Member) -> str:
    [event] = await fleet.logged(member, "metrics.served", within_s=WITHIN_S)
    return str(event["address"])


async def until(fleet: Fleet, prometheus: Prometheus, query: str, expected: Mapping[str, float]) -> None:
    """Wait for this answer; the last one that differs is in the failure."""
    seen: list[Any] = []

    async def look() -> bool | None:
        try:
            seen.append(await prometheus.ask(query))
        except (OSError, ValueError) as error:
            # It is still starting.
            seen.append(error)
        return seen[-1] == expected or None

    try:
        await fleet.until(look, within_s=WITHIN_S, what=query)
    except TimeoutError as error:
        raise AssertionError(f"{query}: {seen[-1]} instead of {expected}") from error


@proves("O2")
async def test_prometheus_scrapes_every_role_and_counts_right_also_after_workers_were_killed(
    database_url: str, tmp_path: Path
) -> None:
    async with a_fleet(database_url, tmp_path, metrics_port="0", heartbeat_s="10") as fleet:
        api = fleet.api(free_port())
        members = [
            api,
            fleet.scheduler(),
            fleet.worker("--pool", "alone"),
            fleet.worker("--pool", "several", "--processes", "2"),
        ]
        of_api, of_scheduler, of_one, of_two = addresses = [await served_at(fleet, member) for member in members]
        async with a_prometheus(tmp_path, addresses) as prometheus:
            check = _checker(fleet, prometheus)
            await check("up", {f"{address},ondot": 1 for address in addresses})
            await check("sum by (role) (ondot_processes)", {"api": 1, "scheduler": 1, "worker": 3})
            await check("sum(ondot_process_partitions)", {"": 64})
            await check("max(ondot_workers{state='alive'})", {"": 3})
            await check("max by (pool) (ondot_pool_workers)", {"alone": 1, "several": 2})
            await _run(fleet, pool="alone", good=20, bad=5)
            await _run(fleet, pool="several", good=30, bad=0)
            outcomes = "sum by (outcome, pool) (ondot_attempts_completed_total)"
            ended = {"SUCCEEDED,alone": 20, "FAILED,alone": 5, "SUCCEEDED,several": 30}
            await check(outcomes, ended)
            await check("sum by (pool) (ondot_queue_wait_seconds_count)", {"alone": 25, "several": 30})
            await check("sum by (pool) (ondot_start_lateness_seconds_count)", {"alone": 25, "several": 30})
            await check(
                "sum by (pool) (ondot_attempt_duration_seconds_bucket{le='+Inf'})", {"alone": 25, "several": 30}
            )
            await check("max(ondot_dead_letters)", {"": 5})

            # One of two processes: what it counted stays, and the one that replaces it goes on.
            [killed, _] = sorted(psutil.Process(members[3].process.pid).children(), key=lambda child: child.pid)
            killed.send_signal(signal.SIGKILL)
            await check(f"ondot_process_starts_total{{instance='{of_two}'}}", {f"{of_two},ondot,worker": 3})
            await check(f"ondot_processes{{instance='{of_two}'}}", {f"{of_two},ondot,worker": 2})
            await _run(fleet, pool="several", good=10, bad=0)
            await check(outcomes, ended | {"SUCCEEDED,several": 40})
            assert (
                await prometheus.ask(f"sum(resets(ondot_executions_leased_total{{instance='{of_two}'}}[10m]))")
            ) == {"": 0}

            # A worker on its own: it is gone, and is seen to be gone.
            await members[2].kill()
            await check("up == 0", {f"{of_one},ondot": 0})
            await check("sum by (role) (ondot_processes)", {"api": 1, "scheduler": 1, "worker": 2})
            await check(f"sum(max_over_time(ondot_attempts_completed_total{{instance='{of_one}'}}[10m]))", {"": 25})

            for query in {query for board in BOARDS for query in queries(board)} | {rule["expr"] for rule in rules()}:
                await prometheus.ask(re.sub(r"\$\w+", "alone", query))
            assert await prometheus.ask("ondot:starts:rate5m")

            await _serves_while_it_hangs(fleet, members[1], of_scheduler)
        text = read(f"http://{of_two}/metrics", Accept="application/openmetrics-text; version=1.0.0")
        example = r'ondot_queue_wait_seconds_bucket\{.*pool="several".*\} \S+ # \{execution_id="[0-9a-f-]{36}"'
        assert re.search(example, text)
        assert {"ondot_database_up 1.0", 'ondot_processes{role="api"} 1.0'} <= set(
            read(f"http://{of_api}/metrics").splitlines()
        )
        await _refuses_a_port_in_use(fleet, of_two)


def _checker(fleet: Fleet, prometheus: Prometheus) -> Callable[[str, Mapping[str, float]], Awaitable[None]]:
    async def check(query: str, expected: Mapping[str, float]) -> None:
        await until(fleet, prometheus, query, expected)

    return check


async def _run(fleet: Fleet, *, pool: str, good: int, bad: int) -> None:
    """`transacts` writes its outcome itself; it counts as any other."""
    bodies: list[dict[str, Any]] = [
        {"function": "naps" if number % 2 else "transacts", "pool": pool} for number in range(good)
    ]
    bodies += [{"function": "fails_at_random", "payload": {"percent": 100}, "pool": pool, "max_retries": 0}] * bad
    await fleet.ended(await fleet.submit(*bodies), within_s=WITHIN_S)


async def _serves_while_it_hangs(fleet: Fleet, scheduler: Member, address: str) -> None:
    scheduler.hang()

    async def stalled() -> bool | None:
        found = re.search(r'ondot_process_stalled_seconds\{role="scheduler"\} (\S+)', read(f"http://{address}/metrics"))
        return (found is not None and float(found[1]) > 0.2) or None

    try:
        await fleet.until(stalled, within_s=WITHIN_S, what="a hung scheduler says so")
    finally:
        scheduler.move()


async def _refuses_a_port_in_use(fleet: Fleet, address: str) -> None:
    fleet.settings["ONDOT_METRICS_PORT"] = address.rpartition(":")[2]
    late = fleet.scheduler(name="late")
    assert await asyncio.to_thread(late.process.wait, WITHIN_S) != 0
    assert f"Cannot listen on {address}" in late.log.read_text()
    assert "--processes" in late.log.read_text()
