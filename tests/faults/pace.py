"""Shorter waits of alerts and retention, so that minutes of faults meet whole incidents and many rewritings.

An incident recovers a minute after its cause is over, a message that failed waits seconds to minutes, and retention
looks once a minute: in a campaign all of that takes about a second (ONDOT_TEST_PACE). What is decided stays the same.
"""

import os
from datetime import timedelta

GONE_S = 1.0
CLEAR_S = 1.0
RETRY_S = 0.5
LONGEST_RETRY_S = 3.0
ATTEMPT_S = 5.0
LOOK_S = 1.0


def hurry() -> None:
    """Shorten the waits of this process, if it belongs to a campaign."""
    if not os.environ.get("ONDOT_TEST_PACE"):
        return
    from msgspec import structs

    from ondot.flow.alerts import known_jobs
    from ondot.flow.channels import deliver, manage
    from ondot.flow.expect import watch
    from ondot.model import expect
    from ondot.model.alerts import latch
    from ondot.roles import housekeeper

    for place, name, value in (
        (latch, "GONE_S", GONE_S),
        (latch, "CLEAR_S", CLEAR_S),
        (known_jobs, "KEPT_S", LOOK_S),
        (deliver, "ATTEMPT_S", ATTEMPT_S),
        (deliver, "BESIDE_S", RETRY_S),
        (manage, "RETRY", structs.replace(manage.RETRY, initial_s=RETRY_S, max_s=LONGEST_RETRY_S)),
        (expect, "LOOK_AGAIN", timedelta(seconds=LOOK_S)),
        (watch, "LOOK_AGAIN", timedelta(seconds=LOOK_S)),
        (housekeeper, "RETAIN_EVERY_S", LOOK_S),
    ):
        if not hasattr(place, name):
            raise LookupError(f"{place.__name__} has no {name} any more: shorten its wait elsewhere")
        setattr(place, name, value)
