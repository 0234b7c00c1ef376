"""The documents match the code where a machine can check it: settings, error codes, metrics, requirements, links.

Generated documents have their own check (`docs/generate.py`); commands are run by `tests/stories`.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ondot.api.problems import CODES
from ondot.document.parse import job_spec
from ondot.model import errors
from ondot.model.errors import OndotError
from ondot.settings import SECRETS, Settings
from tests.stories.test_guide_snippets import files_of

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
OF_THE_SERVER = {"method-not-allowed", "head-too-large"}
"""Answered by the web server itself: no error of ondot has these codes."""
_PROVES = re.compile(r"@?proves\(([^)]*)\)")


def read(document: str) -> str:
    return (DOCS / document).read_text()


def rows(document: str) -> set[str]:
    """The first cells of all tables of a document, without backticks."""
    return {cell.strip().strip("`") for cell in re.findall(r"^\| ([^|]+) \|", read(document), re.MULTILINE)}


def links() -> Iterator[tuple[Path, str]]:
    for document in DOCUMENTS:
        text = _FENCE.sub("", document.read_text())
        for target in _LINK.findall(text):
            if "://" not in target and not target.startswith("mailto:"):
                yield document, target


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    found = set()
    for heading in _HEADING.findall(_FENCE.sub("", document.read_text())):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def codes(error: type[OndotError]) -> set[str]:
    return {error.code, *(code for kind in error.__subclasses__() for code in codes(kind))}


def test_the_settings_page_lists_every_setting_and_no_other() -> None:
    expected = {f"ONDOT_{name.upper()}" for name in Settings.model_fields}
    assert {cell for cell in rows("reference/settings.md") if cell.startswith("ONDOT_")} == expected


def test_the_settings_page_has_the_defaults() -> None:
    text = read("reference/settings.md")
    written = dict(re.findall(r"^\| `(ONDOT_\w+)` \| `?([^`|]*?)`? \|", text, re.MULTILINE))
    for name, field in Settings.model_fields.items():
        default = field.default
        if default is None or name == "home":
            continue
        expected = (
            str(default).lower()
            if isinstance(default, bool)
            else f"{default:g}"
            if isinstance(default, float)
            else str(default)
        )
        assert written[f"ONDOT_{name.upper()}"] == expected, name


def test_the_settings_page_names_the_secrets_that_may_come_from_files() -> None:
    assert [name for name in SECRETS if f"ONDOT_{name.upper()}_FILE" not in read("reference/settings.md")] == []


def test_the_errors_page_lists_every_code_with_its_status_and_no_other() -> None:
    found = re.findall(r"^\| (\d{3}) \| `([a-z-]+)` \|", read("reference/errors.md"), re.MULTILINE)
    written = {code: int(status) for status, code in found}
    assert codes(errors.OndotError) - set(written) == set()
    assert {code: status for code, status in written.items() if code not in OF_THE_SERVER} == dict(CODES)


def test_the_metrics_page_lists_every_metric_and_no_other() -> None:
    sources = [*(ROOT / "src/ondot/telemetry").glob("*.py"), *(ROOT / "src/ondot/api").rglob("*.py")]
    defined = re.compile(r"\(\s*\"(ondot_[a-z_]+)\",\s*\"")
    names = {name for path in sources for name in defined.findall(path.read_text())}
    assert len(names) > 30, "the metrics have moved: change `sources`"
    assert {cell for cell in rows("reference/metrics.md") if cell.startswith("ondot_")} == names


def test_the_jobs_that_the_documents_show_are_accepted() -> None:
    now = datetime(2026, 11, 15, tzinfo=UTC)
    long_form = re.findall(r'^```json\n(\{"name".*?)^```', read("reference/api.md"), re.MULTILINE | re.DOTALL)
    curls = [body for page in DOCUMENTS for body in re.findall(r"/v1/jobs -d '([^']+)'", page.read_text())]
    assert len(long_form) == 1
    assert len(curls) >= 3
    for body in (*long_form, *curls):
        assert job_spec(json.loads(body), now).name


def test_every_requirement_that_a_test_proves_has_a_row_of_its_own() -> None:
    known = rows("reference/requirements.md")
    unknown = {
        f"{path.relative_to(ROOT)}: {code}"
        for path in (ROOT / "tests").rglob("*.py")
        for arguments in _PROVES.findall(path.read_text())
        for code in re.findall(r'"([A-Z]\d+)"', arguments)
        if code not in known
    }
    assert unknown == set()


def test_no_requirement_is_left_out_of_the_requirements_page() -> None:
    groups = {"S": 13, "E": 17, "W": 9, "C": 11, "T": 7, "O": 11, "D": 6, "N": 6, "P": 14, "L": 7}
    expected = {f"{group}{number}" for group, last in groups.items() for number in range(1, last + 1)}
    assert {cell for cell in rows("reference/requirements.md") if re.fullmatch(r"[A-Z]\d+", cell)} == expected


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_of_a_document_leads_somewhere(document: Path) -> None:
    broken = []
    for source, target in links():
        if source != document:
            continue
        path, _, anchor = target.partition("#")
        place = (source.parent / path).resolve() if path else source
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*\.(?:py|sql|md|sh|html|toml))`", _FENCE.sub("", document.read_text()))
    roots = (ROOT, ROOT / "src/ondot", ROOT / "src", document.parent)
    own = files_of(document)  # of the application that a guide builds
    assert [name for name in named if name not in own and not any((root / name).exists() for root in roots)] == []
