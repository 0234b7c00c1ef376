"""The name of an app and its release: what is given, what is computed, and what a worker records."""

import sys
from pathlib import Path

import pytest

from ondot import Ondot
from ondot.app import release_of
from ondot.model.app_release import AppRelease
from ondot.model.errors import Misconfigured
from ondot.sdk.load import load_app
from ondot.sdk.release import compute_release
from ondot.settings import load_settings
from tests.proves import proves


def declared(cron: str = "0 2 * * *", retries: int | None = None) -> Ondot:
    app = Ondot()

    @app.job(cron=cron, retries=retries)
    def nightly(region: str = "eu") -> None: ...

    return app


@proves("D4")
def test_an_app_without_a_name_gets_that_of_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bills.py").write_text("from ondot import Ondot\napp = Ondot()\nnamed = Ondot(name='billing')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_app("bills:app").name == "bills"
    assert load_app("bills:named").name == "billing"
    sys.modules.pop("bills")


@proves("D4")
def test_the_release_is_the_given_one_then_the_setting_then_a_hash() -> None:
    unset, app = load_settings(), Ondot(name="billing")
    of_setting = load_settings(release="v7")
    assert release_of(Ondot(name="billing", release="v8"), of_setting) == AppRelease("billing", "v8")
    assert release_of(app, of_setting) == AppRelease("billing", "v7")
    assert release_of(app, unset) == AppRelease("billing", compute_release(app))
    assert release_of(Ondot(), of_setting) is None


@proves("D4")
def test_the_computed_release_follows_what_is_declared_and_nothing_else() -> None:
    first = compute_release(declared())
    assert compute_release(declared()) == first
    assert len({first, *(compute_release(app) for app in (declared("0 3 * * *"), declared(retries=2), Ondot()))}) == 4


@proves("D4")
@pytest.mark.parametrize("wrong", ["", " v1", "v\n1", "x" * 101, "v\u202e1"])
def test_a_name_or_release_that_cannot_be_shown_is_rejected(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="name of an app"):
        Ondot(name=wrong)
    with pytest.raises(ValueError, match="A release"):
        Ondot(release=wrong)
    if wrong:
        monkeypatch.setenv("ONDOT_RELEASE", wrong)
        with pytest.raises(Misconfigured, match="RELEASE"):
            load_settings()
