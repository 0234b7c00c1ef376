"""One small query language for executions, jobs and dead letters (O1, O8): in the API, the commands and the pages.

    state:failed job:nightly* label.team=bi error:"timed out" took>5m since:24h -origin:backfill

All terms must hold. `fields` is the one table of fields, `parse` reads a text, `render` writes it again, `store.search`
executes it. Pure: relative instants are resolved by the reader, with the database's time.
"""

from ondot.model.query.fields import FIELDS, Field, Kind, Of
from ondot.model.query.parse import parse
from ondot.model.query.query import Op, Query, Term, Value, merge
from ondot.model.query.render import render

__all__ = ["FIELDS", "Field", "Kind", "Of", "Op", "Query", "Term", "Value", "merge", "parse", "render"]
