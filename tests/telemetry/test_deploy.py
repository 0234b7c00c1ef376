"""The boards and rules in `deploy/`: they ask for metrics that exist, promtool accepts the rules and their tests pass,
and each alert has its section in the runbook. `tests/stories/test_prometheus.py` asks a real Prometheus."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.proves import proves

ROOT: Final = Path(__file__).parents[2]
PROMETHEUS: Final = ROOT / "deploy/prometheus"
BOARDS: Final = sorted((ROOT / "deploy/grafana").glob("*.json"))
PROMTOOL: Final = shutil.which("promtool")
_NAME: Final = re.compile(r"\bondot_[a-z_]+")
_LABELS: Final = re.compile(r"\bby \(([^)]*)\)|(\w+)\s*(?:=~|!=|=)\s*\"")


def documented() -> dict[str, set[str]]:
    """Every metric of the reference, with its labels."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    return {
        name: set(re.findall(r"`([a-z_]+)`", labels.partition("(")[0] + re.sub(r"\([^)]*\)", "", labels)))
        for name, labels in re.findall(r"^\| `(ondot_[a-z_]+)` \|([^|]*)\|", page, re.MULTILINE)
    }


def queries(board: Path) -> Iterator[str]:
    described = json.loads(board.read_text())
    for panel in described["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in described["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), \w+\)", variable["definition"])
            assert found is not None
            yield found[1]


def rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load((PROMETHEUS / name).read_text()) for name in ("recording-rules.yml", "alert-rules.yml")]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


@proves("O2")
def test_boards_and_rules_ask_only_for_metrics_and_labels_that_exist() -> None:
    known = documented()
    asked = [(board.name, query) for board in BOARDS for query in queries(board)]
    asked += [(str(rule.get("alert") or rule["record"]), rule["expr"]) for rule in rules()]
    assert len(asked) > 60
    for where, query in asked:
        names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in _NAME.findall(query)}
        assert names - {"ondot"} <= known.keys(), where
        of_these = set().union(*(known[name] for name in names)) | {"le", "job", "instance"}
        for grouped, matched in _LABELS.findall(query):
            labels = {label.strip() for label in grouped.split(",")} if grouped else {matched}
            if names:
                assert labels <= of_these, f"{where}: {query}"


@proves("O2")
def test_every_board_is_whole() -> None:
    assert [board.stem for board in BOARDS] == ["job", "overview", "pool"]
    for board in BOARDS:
        described = json.loads(board.read_text())
        assert described["uid"] == f"ondot-{board.stem}"
        panels = described["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            assert place["x"] + place["w"] <= 24
            taken |= cells


@proves("O2")
def test_each_alert_has_its_section_in_the_runbook() -> None:
    page = (ROOT / "docs/reference/operations.md").read_text()
    sections = re.findall(r"^### (Ondot\w+)$", page, re.MULTILINE)
    alerts = [rule for rule in rules() if "alert" in rule]
    assert sections == [rule["alert"] for rule in alerts]
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"docs/reference/operations.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on this machine: apt-get install prometheus")
@proves("O2")
@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alert-rules.yml", "recording-rules.yml"),
        ("test", "rules", "rules.test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_rules_and_their_tests_pass(words: tuple[str, ...]) -> None:
    ended = subprocess.run(
        ["promtool", *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on this machine: apt-get install prometheus")
@proves("O2")
def test_the_tests_of_the_rules_fail_for_a_rule_that_is_wrong(tmp_path: Path) -> None:
    for file in PROMETHEUS.glob("*.yml"):
        text = file.read_text().replace("max(ondot_lag_seconds) > 30", "max(ondot_lag_seconds) > 300")
        (tmp_path / file.name).write_text(text)
    ended = subprocess.run(
        ["promtool", "test", "rules", "rules.test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode != 0
