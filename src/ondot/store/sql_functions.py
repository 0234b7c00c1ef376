"""SQL functions and their triggers: `store/functions/` has the text in force, one file for each function (O9).

`migrate up` applies the files whose text has changed, after the migrations. The first migrations call some of the
functions, so on an empty database all of them are created first, without their triggers, which need tables.
A constant that Python knows too, or a fragment of `sql/transitions.sql`, is written `{{name}}` in SQL and filled in
from `CONSTANTS`; a new value changes the text, and with it the checksum. Roles of the release before run on these
functions: a signature that they call stays until the release after, whose migration drops it. A file says in its
header if it exists only for them.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from ondot.document.rules import FOR_SQL
from ondot.model.execution import PriorityClass
from ondot.model.ids import DEFAULT_TENANT, PARTITIONS
from ondot.model.schedule.preview import LAST_YEAR
from ondot.settings import Settings
from ondot.store.queries import fragments
from ondot.store.queue import CLASS_ADMITTED

CONSTANTS: Final[Mapping[str, object]] = {
    "default_tenant": DEFAULT_TENANT,
    "partitions": PARTITIONS,
    "horizon_s": f"{Settings.model_fields['horizon_s'].default:g}",
    "last_year": LAST_YEAR,
    "class_admitted": CLASS_ADMITTED,
    **{f"class_{each.name.lower()}": each.value for each in PriorityClass},
    **fragments(),
    **FOR_SQL,
}

_TRIGGERS: Final = "\n-- triggers\n"
_CONSTANT: Final = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, slots=True)
class Function:
    """One file: the function, and the triggers that call it."""

    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def without_triggers(self) -> str:
        return self.sql.partition(_TRIGGERS)[0]


def functions() -> list[Function]:
    found = files("ondot.store").joinpath("functions").iterdir()
    return [
        Function(
            entry.name.removesuffix(".sql"), _CONSTANT.sub(lambda name: str(CONSTANTS[name[1]]), entry.read_text())
        )
        for entry in sorted(found, key=lambda entry: entry.name)
        if entry.name.endswith(".sql")
    ]
