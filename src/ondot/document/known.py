"""Options of a registered function as they may be used for jobs (D1)."""

from collections.abc import Mapping
from typing import Any, Final

from ondot.document.body import JobBody
from ondot.document.parse import job_spec
from ondot.document.shorthand import to_long_form
from ondot.model.errors import InvalidBody
from ondot.model.ids import EPOCH
from ondot.telemetry.log import get_logger

_KEYS: Final = ("concurrency_key", "order_key")

log = get_logger()


def check_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the long form, as far as this release can use them: a worker of a later one may have others, and
    no job may fail for that."""
    long = to_long_form(dict(options)).body
    known = {field: value for field, value in long.items() if field in JobBody.model_fields}
    sample = known | {key: "key" for key in _KEYS if key in known}
    try:
        job_spec({"name": name, "target": {"function": name}, **sample}, EPOCH, may_be_over=True)
    except InvalidBody as refusal:
        log.warning("function.options_ignored", function=name, why=refusal.message)
        return {}
    return known
