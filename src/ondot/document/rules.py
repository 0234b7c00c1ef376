"""Bounds and patterns of a job's fields that SQL checks too: they are filled into `store/functions/check_spec.sql`."""

from collections.abc import Mapping
from typing import Final, get_args

from ondot.model.job import Priority
from ondot.model.text import MAX_NAME
from ondot.model.trace import MAX_STATE

DAY_S: Final = 86_400
LONG_AGO_S: Final = 60
"""An `at` older than this is rejected; a younger one is a clock that is a little slow, and fires at once."""
LONGEST_ATTEMPT_S: Final = 7 * DAY_S
LONGEST_WAIT_S: Final = 366 * DAY_S
LONGEST_CANCEL_GRACE_S: Final = 3_600
MAX_BATCH: Final = 10_000
MAX_LABELS: Final = 64
MAX_LABEL_NAME: Final = 63
MAX_LABEL_VALUE: Final = 255
MAX_PAYLOAD_BYTES: Final = 1_048_576
MAX_RETRIES: Final = 100
POOL_NAME: Final = "[a-z0-9][a-z0-9_.-]{0,62}"

AT_CREATION: Final = ("unique", "debounce", "throttle")
"""Fields that decide what happens to a job when it is created."""

FOR_SQL: Final[Mapping[str, object]] = {
    "max_labels": MAX_LABELS,
    "max_label_name": MAX_LABEL_NAME,
    "max_label_value": MAX_LABEL_VALUE,
    "max_name": MAX_NAME,
    "max_payload_bytes": MAX_PAYLOAD_BYTES,
    "max_retries": MAX_RETRIES,
    "max_tracestate": MAX_STATE,
    "pool_name": POOL_NAME,
    "priorities": ", ".join(get_args(Priority)),
    "long_ago_s": LONG_AGO_S,
    "longest_attempt_s": LONGEST_ATTEMPT_S,
    "longest_wait_s": LONGEST_WAIT_S,
    "longest_cancel_grace_s": LONGEST_CANCEL_GRACE_S,
    "at_creation": ", ".join(f"'{field}'" for field in AT_CREATION),
}
