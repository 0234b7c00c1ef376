"""`make faults`: a campaign on demand, for ten minutes or for hours. It prints where it leaves its files."""

import argparse
import asyncio
import os
import random
import sys
import time
from pathlib import Path

from tests.faults.campaign import Campaign
from tests.faults.netns import available

JOBS_A_SECOND = 16
FLOWS_A_SECOND = 1
SENDS_A_SECOND = 4
ALERTS_A_MINUTE = 6
DISK_MB = 3000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long faults are injected (default: 600)")
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of the workload and the faults (default: a random one)"
    )
    parser.add_argument("--jobs", type=int, default=None, help=f"how many jobs (default: {JOBS_A_SECOND} per second)")
    parser.add_argument(
        "--flows", type=int, default=None, help=f"how many workflows (default: {FLOWS_A_SECOND} per second)"
    )
    parser.add_argument(
        "--sends", type=int, default=None, help=f"how many requests send events (default: {SENDS_A_SECOND} per second)"
    )
    parser.add_argument(
        "--alerts", type=int, default=None, help=f"how many alerts (default: {ALERTS_A_MINUTE} per minute)"
    )
    parser.add_argument("--schedulers", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--apis", type=int, default=2)
    parser.add_argument("--tenants", type=int, default=5, help="other tenants: 0, or 3 and more (default: 5)")
    parser.add_argument(
        "--kinds", default=None, help="kinds of faults, separated by commas (default: all that this machine can inject)"
    )
    parser.add_argument(
        "--namespaces", type=int, default=None, help="how many schedulers run in their own network namespace"
    )
    parser.add_argument(
        "--slack", type=float, default=1.0, help="seconds that a busy machine may add to the bounds of lateness"
    )
    parser.add_argument(
        "--directory", type=Path, default=None, help="where to write the journal, the logs and the report"
    )
    parser.add_argument("--at-once", type=int, default=2, help="how many sequences of faults run at the same time")
    parser.add_argument(
        "--coordination", choices=["postgres", "etcd"], default="postgres", help="where schedulers hold their leases"
    )
    parser.add_argument(
        "--transport",
        choices=["postgres", "redis", "kafka", "rabbitmq", "nats"],
        default="postgres",
        help="what carries hints to workers",
    )
    parser.add_argument("--no-old-days", action="store_true", help="without days past their retention")
    parser.add_argument("--no-standby", action="store_true", help="without failover to a synchronous standby")
    parser.add_argument(
        "--disk",
        type=int,
        default=None,
        metavar="MB",
        help="size of a disk for PostgreSQL that can be filled; needs root",
    )
    how = parser.parse_args()
    seed = random.randrange(1_000_000) if how.seed is None else how.seed
    directory = (how.directory or Path("var") / "faults" / f"{time.strftime('%Y%m%d-%H%M%S')}-{seed}").resolve()
    # etcd and brokers listen on loopback, which a namespace does not reach.
    most = 0 if how.coordination == "etcd" or how.transport != "postgres" else int(available())
    namespaces = most if how.namespaces is None else how.namespaces
    campaign = Campaign(
        seconds=how.seconds,
        seed=seed,
        jobs=how.jobs or max(round(how.seconds * JOBS_A_SECOND), 100),
        schedulers=how.schedulers,
        workers=how.workers,
        apis=how.apis,
        tenants=how.tenants,
        flows=max(round(how.seconds * FLOWS_A_SECOND), 10) if how.flows is None else how.flows,
        sends=max(round(how.seconds * SENDS_A_SECOND), 10) if how.sends is None else how.sends,
        alerts=max(round(how.seconds / 60 * ALERTS_A_MINUTE), 3) if how.alerts is None else how.alerts,
        old_days=not how.no_old_days,
        kinds=how.kinds.split(",") if how.kinds else None,
        in_namespaces=namespaces,
        at_once=how.at_once,
        standby=not how.no_standby,
        disk_mb=how.disk or (DISK_MB if os.geteuid() == 0 else None),
        slack_s=how.slack,
        coordination=how.coordination,
        transport=how.transport,
    )
    directory.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"Seed {seed}, {how.seconds:g} s of faults. Files: {directory}\n")
    sys.stdout.flush()
    verdict, report = asyncio.run(campaign.run(directory))
    sys.stdout.write(report.text)
    sys.exit(0 if verdict.clean else 1)


main()
