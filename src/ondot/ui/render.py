"""The templates and static files of the pages.

Names and messages come from users and are hostile until escaped: Jinja escapes everything, and the content policy in
`pages` lets the browser run and load only ondot's own files, even if escaping fails.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ondot import __version__
from ondot.model.errors import OndotError
from ondot.model.text import visible
from ondot.ui.examples import EXAMPLE_ID
from ondot.ui.feed import Liveness, LiveView
from ondot.ui.me import Me
from ondot.ui.reference import Reference
from ondot.ui.schedules import EXAMPLES, FIELD_OF, Form, FormErrors, PreviewView, zones
from ondot.words import job as words

_WRITTEN = re.compile(r"\b(\d{4}-\d\d-\d\d) (\d\d:\d\d(?::\d\d)?) UTC\b")
"""An instant inside a sentence, as `model` writes it."""
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """Named with its hash in the page, so that a browser keeps it until a release changes it."""

    content: bytes
    kind: str
    hash: str


class Renderer:
    def __init__(self, *, previews: bool = False, writes: bool = False) -> None:
        """`previews`, `writes`: whether there are pages that preview schedules, and that create and edit jobs."""
        self.static = _load_static()
        self._templates = Environment(
            loader=PackageLoader("ondot.ui"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_show_hidden,
        )
        self._templates.globals.update(
            version=__version__, static=self.address, words=words, previews=previews, writes=writes
        )
        self._templates.filters["breakable"] = breakable
        self._templates.filters["instants"] = mark_instants

    def address(self, name: str) -> str:
        return f"/ui/static/{name}?v={self.static[name].hash}"

    def page(self, template: str, **values: object) -> str:
        return self._templates.get_template(f"{template}.html").render(values)

    def section(self, name: str, section: object, now: datetime) -> str:
        return self.page(name, section=section, now=now)

    def liveness(self, liveness: Liveness, now: datetime | None) -> str:
        return self.page("live", liveness=liveness, now=now)

    def fragments(self, view: LiveView) -> dict[str, Markup]:
        """The sections of a live page, by name."""
        return {
            name: Markup(self.section(name, section, view.now))  # noqa: S704 - escaped when it was rendered
            for name, section in view.sections.items()
        }

    def docs(self, reference: Reference, base_url: str, *, with_key: bool) -> str:
        return self.page("docs", reference=reference, base_url=base_url, with_key=with_key, example_id=EXAMPLE_ID)

    def schedules(
        self,
        form: Form,
        shown: PreviewView | FormErrors,
        now: datetime,
        base_url: str,
        open_letters: int,
        me: Me,
        *,
        whole: bool,
    ) -> str:
        """The whole page, or only the part that changes while a person types."""
        values: dict[str, Any] = {
            "form": form,
            "shown": shown if isinstance(shown, PreviewView) else None,
            "faults": shown.faults if isinstance(shown, FormErrors) else {},
            "fields": [*dict.fromkeys(FIELD_OF.values()), "form"],
            "examples": EXAMPLES,
            "now": now,
            "as_json": json.dumps(form.schedule(), indent=2, ensure_ascii=False),
            "command": form.command(),
            "create": form.create_address(),
            "curl": form.curl(base_url),
            "zones": zones() if whole else (),
            "open_letters": open_letters,
            "me": me,
        }
        return self.page("schedules" if whole else "schedule_fragment", **values)

    def message(self, error: OndotError, base_url: str) -> str:
        return self.page("message", error=error, base_url=base_url)


def breakable(name: str) -> Markup:
    """A name that may wrap after an underscore, as browsers wrap after a hyphen."""
    return Markup("_<wbr>").join(escape(part) for part in visible(name).split("_"))


def _show_hidden(value: object) -> object:
    """Text with its invisible characters shown; any other value unchanged."""
    return visible(value) if type(value) is str else value


def _load_static() -> dict[str, StaticFile]:
    found = {}
    for entry in files("ondot.ui").joinpath("static").iterdir():
        kind = KINDS.get("." + entry.name.rpartition(".")[2])
        if kind:
            content = entry.read_bytes()
            found[entry.name] = StaticFile(content, kind, hashlib.sha256(content).hexdigest()[:12])
    return found


def mark_instants(text: str) -> Markup:
    """A sentence, escaped, with each instant in it as a `<time>` that the page's script shows in the reader's zone."""
    parts: list[Markup] = []
    end = 0
    for found in _WRITTEN.finditer(text):
        try:
            at = datetime.fromisoformat(f"{found[1]}T{found[2]}+00:00")
        except ValueError:
            continue  # text of a user, such as 2026-99-99 12:00 UTC
        parts.append(escape(text[end : found.start()]))
        parts.append(
            Markup('<time class="clock" datetime="{}" data-clock="date" title="{}">{}</time>').format(
                at.isoformat(), words.zones(at), found[0]
            )
        )
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])
