"""A role whose loop can be made to hang: `python -m tests.faults.hangs scheduler …` is `ondot scheduler …`.

SIGURG blocks the main thread, and with it the loop, for as long as the file of ONDOT_TEST_HANG exists: as a lock that
is never released would, or a call that does not return. Other threads go on. SIGURG, because a process ignores it until
its handler is installed.
"""

import os
import signal
import sys
import time
from pathlib import Path

from tests.faults.pace import hurry


def _hang(_number: int, _frame: object) -> None:
    place = Path(os.environ["ONDOT_TEST_HANG"])
    while place.exists():
        time.sleep(0.02)


def may_hang() -> None:
    signal.signal(signal.SIGURG, _hang)


def main() -> None:
    from ondot.cli import main as run

    may_hang()
    hurry()
    sys.argv = ["ondot", *sys.argv[1:]]
    run()


if __name__ == "__main__":
    main()
