"""All questions, one after another: their answers as a table and plots in a directory (`make bench`).

Each question runs as its own command; one that fails is reported, and the others go on. The table shows the targets
(docs/explanation/performance.md) beside the measurements. `results.json` has every answer in full.
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import psutil
from question import as_text

BENCH = Path(__file__).parent.parent
QUESTIONS = (
    *(
        "start",
        "idle",
        "schedules",
        "forecast",
        "limit",
        "lifecycle",
        "http",
        "grpc",
        "submit",
        "enqueue",
        "arguments",
        "latency",
    ),
    *("punctual", "herd", "rest", "running", "backlog", "tenants", "days", "snapshot", "alerts", "transports"),
    *("sinks", "peers"),
)
LONGEST_S = 3_600


@dataclass(frozen=True, slots=True)
class Target:
    """One figure with a target: its place in the answer, and how good it must and should be."""

    question: str
    path: str
    what: str
    must: float
    aim: float
    unit: str = ""

    @property
    def more_is_better(self) -> bool:
        return self.aim > self.must

    def of(self, answers: dict[str, Any]) -> float | None:
        value: Any = answers.get(self.question)
        for name in self.path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        return None if value is None or isinstance(value, (str, dict)) else float(value)

    def share(self, value: float) -> float:
        """How much better than required: 1 is just enough."""
        if self.more_is_better:
            return value / self.must
        return self.must / max(value, self.must / 1000)


TARGETS = (
    Target("lifecycle", "ratio", "lifecycle ÷ limit, 2 worker processes", 0.40, 0.70),
    Target("lifecycle", "sustained_per_s", "lifecycle, sustained", 20_000, 40_000, "/s"),
    Target("peers", "ratio", "lifecycle ÷ PgQueuer", 1.8, 4),
    Target("peers", "ratio_redis", "lifecycle ÷ the fastest on Redis", 8, 16),
    Target("http", "per_s", "HTTP calls", 1_667, 4_000, "/s"),
    Target("submit", "per_s", "submitted in batches of 1,000", 20_000, 40_000, "/s"),
    Target("submit", "single_per_s", "single creates, 50 clients", 1_200, 3_000, "/s"),
    Target("latency", "at_100_per_s/started_ms/p50", "enqueue → start at 100/s, p50", 5, 2, "ms"),
    Target("latency", "at_100_per_s/started_ms/p99", "enqueue → start at 100/s, p99", 50, 10, "ms"),
    Target("punctual", "started_ms/p99.9", "lateness with jobs at rest, p99.9", 250, 25, "ms"),
    Target("herd", "last_s", "herd, functions: last start", 8, 3, "s"),
    Target("herd", "http/last_s", "herd, HTTP: last start", 75, 30, "s"),
    Target("rest", "ratio", "cost of a fire, most ÷ fewest at rest", 1.3, 1.0),
    Target("running", "memory_mib/all", "memory of all that run at once", 6_144, 2_048, "MiB"),
    Target("running", "cancel_s/max", "cancel reaches the function, longest", 2, 1, "s"),
    Target("backlog", "ratio", "lease cost, most ÷ fewest waiting", 2, 1.1),
    Target("backlog", "tenants_ratio", "lease cost, 1,000 tenants ÷ 1", 3, 1.5),
    Target("tenants", "flood_ratio", "wait beside a flood ÷ alone, p99", 4, 2),
    Target("tenants", "weights_error", "distance from the weights' shares", 0.1, 0.05),
    Target("tenants", "many_ratio", "lease cost, 10,000 tenants ÷ 1", 3, 1.5),
    Target("days", "ratio", "plan, 730 days of history ÷ 8", 1.5, 1.0),
    Target("snapshot", "ratio", "rate under a held snapshot ÷ before", 0.5, 0.95),
    Target("idle", "statements_per_s", "statements with nothing to do", 12, 5, "/s"),
    Target("idle", "core_percent", "of a core with nothing to do", 2, 0.5, "%"),
)


def answer(question: str, *, quick: bool) -> dict[str, Any]:
    command = [sys.executable, str(BENCH / f"{question}.py"), "--json", *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LONGEST_S, check=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"question": question, "error": str(error)}
    return found


def as_table(answers: dict[str, Any], machine: str) -> str:
    lines = [f"{machine}\n", "| | measured | must | aim | |", "|---|---|---|---|---|"]
    for target in TARGETS:
        value = target.of(answers)
        shown = "–" if value is None else f"{as_text(value)} {target.unit}"
        share = None if value is None else target.share(value)
        verdict = "" if share is None else "yes" if share >= 1 else "**no**"
        lines.append(
            f"| `{target.question}`: {target.what} | {shown} | {as_text(float(target.must))}"
            f" | {as_text(float(target.aim))} | {verdict} |"
        )
    for name, found in answers.items():
        lines.append(f"\n### {name}\n")
        lines += [f"- {key}: {as_text(value)}" for key, value in found.items() if key != "question"]
    return "\n".join(lines) + "\n"


def as_bars(title: str, bars: list[tuple[str, float, str]], *, mark: float | None = None) -> str:
    """A plot of bars on a logarithmic scale: (name, value, label). `mark`: a line at this value."""
    values = [value for _, value, _ in bars if value > 0] + ([mark] if mark else [])
    low, high = math.log10(min(values)) - 0.15, math.log10(max(values)) + 0.05
    left, wide, each = 330, 480, 22

    def at(value: float) -> float:
        return left + wide * (math.log10(max(value, 10**low)) - low) / (high - low)

    height = 50 + each * len(bars)
    frame = f'viewBox="0 0 {left + wide + 130} {height}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame}><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="10" y="22" font-size="15">{escape(title)}</text>',
    ]
    for number, (name, value, written) in enumerate(bars):
        y = 38 + number * each
        color = "#2a78d6" if mark is None or value >= mark else "#c2410c"
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{at(value) - left:.1f}" height="{each - 6}" fill="{color}"/>')
        parts.append(f'<text x="{at(value) + 6:.1f}" y="{y + 12}">{escape(written)}</text>')
    if mark is not None:
        parts.append(f'<line x1="{at(mark):.1f}" x2="{at(mark):.1f}" y1="32" y2="{height - 8}" stroke="#111"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def plots(answers: dict[str, Any]) -> dict[str, str]:
    reached = [(target, target.of(answers)) for target in TARGETS]
    bars = [
        (target.what, target.share(value), f"{as_text(value)} {target.unit}")
        for target, value in reached
        if value is not None
    ]
    found = {}
    if bars:
        found["targets"] = as_bars("How much better than required (the line is just enough)", bars, mark=1.0)
    peers = answers.get("peers", {})
    rates = {
        name: each["lifecycle_per_s"]
        for name, each in {"ondot": peers.get("ondot", {}), **peers.get("peers", {})}.items()
        if each.get("lifecycle_per_s")
    }
    if rates:
        ordered = sorted(rates.items(), key=lambda entry: -entry[1])
        found["peers"] = as_bars(
            "Jobs that do nothing, enqueued and run, per second",
            [(name, rate, f"{rate:,.0f}") for name, rate in ordered],
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute for each question")
    parser.add_argument("--into", type=Path, default=BENCH / "results" / "latest")
    parser.add_argument("questions", nargs="*", help=f"any of: {', '.join(QUESTIONS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.questions) - set(QUESTIONS):
        parser.error(f"unknown question: {', '.join(sorted(unknown))}")
    arguments.into.mkdir(parents=True, exist_ok=True)
    kept = arguments.into / "results.json"
    answers: dict[str, Any] = json.loads(kept.read_text())["answers"] if arguments.questions and kept.exists() else {}
    for question in arguments.questions or QUESTIONS:
        began_s = time.monotonic()
        answers[question] = answer(question, quick=arguments.quick)
        wrong = answers[question].get("error")
        print(f"{question}: {time.monotonic() - began_s:.0f} s{f', failed: {wrong}' if wrong else ''}", flush=True)
    machine = (
        f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, Python"
        f" {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}{', quick' if arguments.quick else ''}."
        " PostgreSQL, load and receivers run on the same machine; fsync and synchronous_commit are on."
    )
    kept.write_text(json.dumps({"machine": machine, "answers": answers}, indent=1) + "\n")
    (arguments.into / "table.md").write_text(as_table(answers, machine))
    for name, plot in plots(answers).items():
        (arguments.into / f"{name}.svg").write_text(plot)
    print(f"Table and plots: {arguments.into}")
    if any("error" in found for found in answers.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
