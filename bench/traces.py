"""What traces cost: whole lives per second as in `lifecycle`, with one worker process, without traces, with one in a
hundred recorded, and with all of them.

The collector is an HTTP server in the benchmark's own process, which reads what it gets and answers 200. The three take
turns, so that a machine that becomes slower is slower for all. Jobs are submitted without HTTP and without a caller's
trace: spans are the worker's.

- `per_s_off`, `per_s_1_percent`, `per_s_all`: medians of the turns.
- `cpu_us_off`, …: processor time of the worker for each job: steadier than rates if other programs use the machine.
- `lost_1_percent`, `lost_all`: how much longer a job takes the worker's processor than without traces, as a share.
- `requests`: what the collector got.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fleet import Fleet, fleet
from question import Result, ask, say
from steady import Load, check, steady

from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget

SLOTS = 1_000
BACKLOG = 20_000
NOTHING = JobSpec(name="nothing", target=FunctionTarget(name="nothing"))
SHARES = {"off": None, "1_percent": "0.01", "all": "1"}


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    requests = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).requests += 1
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _collector() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()


def traces(quick: bool) -> Result:
    with fleet() as started, _collector() as url:
        started.scheduler()
        turns, backlog, warm_s, windows_s = (1, BACKLOG // 4, 1.5, [3.0]) if quick else (5, BACKLOG, 5.0, [10.0])
        return asyncio.run(_measure(started, url, turns, backlog, warm_s, windows_s))


async def _measure(started: Fleet, url: str, turns: int, backlog: int, warm_s: float, windows_s: list[float]) -> Result:
    loads: dict[str, list[Load]] = {name: [] for name in SHARES}
    for turn in range(turns):
        for name, share in SHARES.items():
            settings: dict[str, Any] = {}
            if share is not None:
                settings = {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": url,
                    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                    "OTEL_TRACES_SAMPLER_ARG": share,
                }
            worker = started.worker(slots=SLOTS, **settings)
            try:
                load = await steady(started, NOTHING, backlog=backlog, warm_s=warm_s, windows_s=windows_s)
            finally:
                started.stop(worker)
            loads[name].append(load)
            say(
                f"turn {turn + 1} of {turns}, traces {name}: {load.per_s:,.0f}/s, worker {load.cpu_us['worker']:.1f} µs"
            )
    await check(started, sum(load.submitted for each in loads.values() for load in each))
    cpu_us = {name: statistics.median(load.cpu_us["worker"] for load in each) for name, each in loads.items()}
    return {
        "question": "traces",
        **{f"per_s_{name}": round(statistics.median(load.per_s for load in each)) for name, each in loads.items()},
        **{f"cpu_us_{name}": round(each, 1) for name, each in cpu_us.items()},
        **{f"lost_{name}": round(cpu_us[name] / cpu_us["off"] - 1, 3) for name in SHARES if name != "off"},
        "requests": _Sink.requests,
    }


if __name__ == "__main__":
    ask(traces, full="6 minutes", quick="40 seconds")
