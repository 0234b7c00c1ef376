"""`make faults`: a campaign on demand, for ten minutes or for hours; its files stay where it says."""

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
DISK_MB = 3000


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    asked.add_argument("--seconds", type=float, default=600, help="how long faults are injected (default: 600)")
    asked.add_argument(
        "--seed", type=int, default=None, help="which workload and which faults (default: another each time)"
    )
    asked.add_argument("--jobs", type=int, default=None, help=f"how many jobs (default: {JOBS_A_SECOND} a second)")
    asked.add_argument("--schedulers", type=int, default=3)
    asked.add_argument("--workers", type=int, default=4)
    asked.add_argument("--apis", type=int, default=2)
    asked.add_argument(
        "--kinds", default=None, help="kinds of faults, with commas (default: all that this machine can)"
    )
    asked.add_argument("--namespaces", type=int, default=None, help="schedulers in network namespaces of their own")
    asked.add_argument("--slack", type=float, default=1.0, help="seconds of lateness that the machine may add")
    asked.add_argument("--directory", type=Path, default=None, help="where the books and the report go")
    asked.add_argument("--at-once", type=int, default=2, help="sequences of faults that blow at the same time")
    asked.add_argument("--no-standby", action="store_true", help="no failover to a synchronous standby")
    asked.add_argument(
        "--disk", type=int, default=None, metavar="MB", help="a small disk that can be filled; needs root"
    )
    how = asked.parse_args()
    seed = random.randrange(1_000_000) if how.seed is None else how.seed
    directory = (how.directory or Path("var") / "faults" / f"{time.strftime('%Y%m%d-%H%M%S')}-{seed}").resolve()
    campaign = Campaign(
        seconds=how.seconds,
        seed=seed,
        jobs=how.jobs or max(round(how.seconds * JOBS_A_SECOND), 100),
        schedulers=how.schedulers,
        workers=how.workers,
        apis=how.apis,
        kinds=how.kinds.split(",") if how.kinds else None,
        in_namespaces=int(available()) if how.namespaces is None else how.namespaces,
        at_once=how.at_once,
        standby=not how.no_standby,
        disk_mb=how.disk or (DISK_MB if os.geteuid() == 0 else None),
        slack_s=how.slack,
    )
    directory.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"seed {seed}, {how.seconds:g} s, files in {directory}\n")
    sys.stdout.flush()
    verdict, report = asyncio.run(campaign.run(directory))
    sys.stdout.write(report.text)
    sys.exit(0 if verdict.clean else 1)


main()
