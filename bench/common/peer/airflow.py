"""Airflow: `airflow standalone` with the LocalExecutor, on a database of its own in ondot's PostgreSQL.

It has an interpreter of its own (AIRFLOW_PYTHON), because its requirements do not fit beside others. The graph is one
task, as many Python tasks that do nothing beside each other, and one more.
"""

import os
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import psutil
from started import free_port

VARIABLE = "AIRFLOW_PYTHON"
READY_WITHIN_S = 180.0

GRAPH = """
from airflow.sdk import DAG, task

with DAG("fan", schedule=None, max_active_tasks={count}) as dag:
    @task
    def first():
        return None

    @task
    def nothing(_before, _no):
        return None

    @task
    def last(_before):
        return None

    before = first()
    last([nothing.override(task_id=f"s{{no}}")(before, no) for no in range({count})])
"""


class Airflow:
    """One `airflow standalone`, ended by its pid with all its children."""

    def __init__(self, directory: Path, url: str, count: int) -> None:
        if VARIABLE not in os.environ:
            raise RuntimeError(f"Not installed: {VARIABLE} names no interpreter that has Airflow.")
        self._python = os.environ[VARIABLE]
        self._url = url
        self._directory = directory
        (directory / "dags").mkdir(parents=True)
        (directory / "dags" / "fan.py").write_text(GRAPH.format(count=count))
        parts = urlsplit(url)
        port = free_port()
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("ONDOT_", "PYTHONPATH"))
        } | {
            "AIRFLOW_HOME": str(directory),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": parts._replace(scheme="postgresql+psycopg2").geturl(),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__PARALLELISM": "16",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "PATH": f"{Path(self._python).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._process: psutil.Popen | None = None

    def start(self) -> None:
        self._call("db", "migrate")
        with (self._directory / "log").open("wb") as output:
            self._process = psutil.Popen(
                [self._python, "-m", "airflow", "standalone"],
                env=self._environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._call("dags", "reserialize")

    async def run_fan(self, within_s: float) -> float:
        """Seconds from the request to the end of the last task, by Airflow's own records."""
        connection = await asyncpg.connect(self._url)
        try:
            await self._wait(
                connection, "SELECT count(*) FROM dag WHERE dag_id = 'fan' AND NOT is_stale", READY_WITHIN_S
            )
            await connection.execute("UPDATE dag SET is_paused = false WHERE dag_id = 'fan'")
            self._call("dags", "trigger", "fan")
            ended = "SELECT count(*) FROM dag_run WHERE dag_id = 'fan' AND end_date IS NOT NULL AND state = 'success'"
            await self._wait(connection, ended, within_s)
            seconds: float = await connection.fetchval(
                "SELECT extract(epoch FROM end_date - queued_at)::float8 FROM dag_run WHERE dag_id = 'fan'"
            )
            return seconds
        finally:
            await connection.close()

    def stop(self) -> None:
        if self._process is None:
            return
        family = [self._process, *self._process.children(recursive=True)]
        self._process.terminate()
        for each in psutil.wait_procs(family, timeout=20)[1]:
            each.kill()

    def _call(self, *words: str) -> None:
        command = [self._python, "-m", "airflow", *words]
        done = subprocess.run(command, env=self._environment, cwd=self._directory, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"airflow {' '.join(words)}: {done.stderr.decode(errors='replace').strip()[-300:]}")

    @staticmethod
    async def _wait(connection: asyncpg.Connection, query: str, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while not await connection.fetchval(query):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"Airflow was not ready or not done within {within_s:g} s.")
            time.sleep(0.1)
