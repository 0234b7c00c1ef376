"""The report of a fault run, for people (Markdown) and programs (JSON): what was injected, checked and found.

Violations come first. The last line is the command that repeats the run: the same seed and sizes make the same workload
and faults.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.faults.checker import Verdict
from tests.faults.evidence import Fault, read_faults

SHOWN = 50
"""How many violations the text lists; the JSON has all of them."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    seed: int
    seconds: float
    sizes: dict[str, int]
    took_s: float
    takeovers_s: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By kind of fault, how long it took until all partitions of a node had other owners."""
    workload: dict[str, int] = field(default_factory=dict)
    coordination: str = "postgres"
    transport: str = "postgres"


@dataclass(frozen=True, slots=True)
class Report:
    text: str
    data: dict[str, Any]


def report(facts: RunFacts, verdict: Verdict, faults: Path) -> Report:
    log = read_faults(faults)
    return Report("\n".join(_lines(facts, verdict, log)) + "\n", _data(facts, verdict, log))


def write_report(written: Report, directory: Path) -> None:
    (directory / "faults.md").write_text(written.text)
    (directory / "faults.json").write_text(json.dumps(written.data, indent=2) + "\n")


def _again(facts: RunFacts) -> str:
    sizes = " ".join(f"--{name} {count}" for name, count in facts.sizes.items())
    how = "" if facts.coordination == "postgres" else f" --coordination {facts.coordination}"
    how += "" if facts.transport == "postgres" else f" --transport {facts.transport}"
    return f'make faults SEED={facts.seed} SECONDS={facts.seconds:g} FAULTS="{sizes}{how}"'


def _injected(log: Sequence[Fault]) -> dict[str, tuple[int, float]]:
    seconds: defaultdict[str, float] = defaultdict(float)
    for fault in log:
        seconds[fault.kind] += fault.ended_s - fault.began_s
    return {kind: (count, seconds[kind]) for kind, count in sorted(Counter(fault.kind for fault in log).items())}


def _data(facts: RunFacts, verdict: Verdict, log: Sequence[Fault]) -> dict[str, Any]:
    return {
        **asdict(facts),
        "again": _again(facts),
        "clean": verdict.clean,
        "counts": verdict.counts,
        "skipped": verdict.skipped,
        "violations": [asdict(violation) for violation in verdict.violations],
        "faults": {kind: {"count": count, "seconds": seconds} for kind, (count, seconds) in _injected(log).items()},
        "lateness": {kind: asdict(lateness) for kind, lateness in verdict.lateness.items()},
        "began_s": verdict.began_s,
        "ended_s": verdict.ended_s,
    }


def _lines(facts: RunFacts, verdict: Verdict, log: Sequence[Fault]) -> Iterator[str]:
    found, counts = verdict.violations, verdict.counts
    judgement = "clean" if verdict.clean else "1 violation" if len(found) == 1 else f"{len(found)} violations"
    yield f"# Fault run, seed {facts.seed}: {judgement}"
    yield ""
    if found:
        by_check = Counter(violation.check for violation in found)
        yield "Violations: " + ", ".join(f"{check} {count}" for check, count in by_check.most_common()) + "."
        yield ""
        yield from (f"- {violation}" for violation in found[:SHOWN])
        if len(found) > SHOWN:
            yield f"- … and {len(found) - SHOWN} more, all in faults.json"
        yield ""
    sizes = ", ".join(
        f"{count} {name.removesuffix('s') if count == 1 else name}" for name, count in facts.sizes.items()
    )
    yield f"{sizes}; {facts.seconds:g} s of faults, {facts.took_s:.0f} s until all work had ended."
    yield ""
    yield "| fires checked | executed | skipped | cancelled | lost | doubled | early | late |"
    yield "|---|---|---|---|---|---|---|---|"
    named = ("fires", "executed", "skipped", "cancelled", "lost", "doubled", "early", "late")
    yield "| " + " | ".join(f"{counts[name]:,}" for name in named) + " |"
    yield ""
    if verdict.skipped:
        yield "Skipped: " + ", ".join(f"{reason} {count}" for reason, count in sorted(verdict.skipped.items())) + "."
    yield (
        f"{counts['jobs']:,} jobs, {counts['calls']:,} calls received. {counts['acked']:,} requests acknowledged, "
        f"{counts['acked_lost']} of them lost; {counts['unclear']} without a clear answer."
    )
    if counts.get("tenants"):
        yield (
            f"Beside them {counts['tenants']} tenants, {counts['tenants_deleted']} of them deleted:"
            f" {counts['tenant_jobs']:,} jobs acknowledged, {counts['tenant_calls']:,} calls received,"
            f" {counts['tenant_probes']} tries with keys that no longer work."
        )
    if counts.get("workflow_runs"):
        yield (
            f"Workflows: {counts['workflow_runs']:,} runs with {counts['workflow_steps']:,} executions of steps,"
            f" {counts['runs_retried']} runs retried; in the end {counts['runs_succeeded']} SUCCEEDED,"
            f" {counts['runs_blocked']} BLOCKED, {counts['runs_failed']} FAILED, {counts['runs_cancelled']} CANCELLED."
        )
    if counts.get("events_sent"):
        yield (
            f"Events: {counts['events_sent']:,} sent, {counts['events_started']:,} executions started by them, of"
            f" {counts['subscribers']} jobs that were created and deleted meanwhile."
        )
    if counts.get("alert_causes"):
        yield (
            f"Alerts: {counts['alert_causes']} causes and {counts['alert_blips']} blips,"
            f" {counts['alert_messages']} messages received in {counts['alert_tries']} tries."
        )
    if counts.get("old_rows_gone"):
        yield (
            f"Old days: {counts['old_rows_gone']:,} rows had to go and {counts['old_rows_kept']:,} to stay,"
            f" {counts['old_jobs_run']} jobs of them ran."
        )
    for kind, took_s in sorted(facts.takeovers_s.items()):
        yield f"Takeovers after {kind}: {len(took_s)}, p50 {median(took_s):.2f} s, longest {max(took_s):.2f} s."
    yield ""
    yield from _fault_lines(verdict, _injected(log))
    if facts.workload:
        yield ""
        yield "Requests: " + ", ".join(f"{name} {count}" for name, count in sorted(facts.workload.items())) + "."
    yield ""
    yield f"To repeat this run: `{_again(facts)}`"


def _fault_lines(verdict: Verdict, injected: dict[str, tuple[int, float]]) -> Iterator[str]:
    yield "| fault | times | total seconds | fires during it | start lateness: p50 | worst | worst by the receiver |"
    yield "|---|---|---|---|---|---|---|"
    for kind in sorted(injected.keys() | verdict.lateness.keys()):
        count, seconds = injected.get(kind, (0, 0.0))
        times = f"{count} | {seconds:.0f}" if kind in injected else " | "
        late = verdict.lateness.get(kind)
        if late is None:
            yield f"| {kind} | {times} | 0 | | | |"
            continue
        called = "" if late.worst_call_s is None else f"{late.worst_call_s:.2f} s"
        yield f"| {kind} | {times} | {late.count} | {late.p50_s:.3f} s | {late.worst_s:.2f} s | {called} |"
