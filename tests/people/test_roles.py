"""Roles on every button: a page shows what the person may do, and nothing else; the API refuses the rest."""

import re
from html.parser import HTMLParser
from typing import Any, Final
from uuid import uuid4

import pytest

from ondot.model.access import RIGHTS_OF, Right, Role
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.retry import Retry
from ondot.ui.pages import PAGES
from tests.flow.workflows import run_steps, start, step
from tests.people.signing import Place, add
from tests.proves import proves
from tests.world import every, failed, job

ROLES: Final = (Role.VIEWER, Role.OPERATOR, Role.EDITOR, Role.ADMIN, Role.OWNER)
OF_ONES_OWN: Final = {"/sign-out", "/account/password", "/account/sessions"}
"""Forms that every person may send."""
OF_EDITORS: Final = {"/jobs/new", "/jobs/ID/edit", "/functions/f"}
UUIDS: Final = r"[0-9a-f]{8}-[0-9a-f-]{27}"

UNKNOWN: Final = str(uuid4())
CALLS: Final[dict[tuple[str, str], tuple[str, str, Any]]] = {
    ("job", "run"): ("POST", f"/v1/jobs/{UNKNOWN}/run", None),
    ("job", "pause"): ("POST", f"/v1/jobs/{UNKNOWN}/pause", None),
    ("job", "resume"): ("POST", f"/v1/jobs/{UNKNOWN}/resume", None),
    ("job", "backfill"): ("POST", f"/v1/jobs/{UNKNOWN}/backfill", {"from": "2026-11-01", "to": "2026-11-02"}),
    ("job", "delete"): ("DELETE", f"/v1/jobs/{UNKNOWN}", None),
    ("execution", "cancel"): ("POST", f"/v1/executions/{UNKNOWN}/cancel", None),
    ("execution", "again"): ("POST", f"/v1/executions/{UNKNOWN}/retry", None),
    ("dead_letters", "replay"): ("POST", "/v1/dead-letters/replay", {"ids": [UNKNOWN]}),
    ("dead_letters", "discard"): ("POST", "/v1/dead-letters/discard", {"ids": [UNKNOWN], "reason": "test"}),
    ("users", "invite"): ("POST", "/v1/users", {"email": "x"}),
    ("users", "role"): ("PATCH", f"/v1/users/{UNKNOWN}", {"role": "viewer"}),
    ("users", "disable"): ("PATCH", f"/v1/users/{UNKNOWN}", {"state": "DISABLED"}),
    ("users", "enable"): ("PATCH", f"/v1/users/{UNKNOWN}", {"state": "ACTIVE"}),
    ("users", "reset"): ("POST", f"/v1/users/{UNKNOWN}/reset", None),
    ("users", "delete"): ("DELETE", f"/v1/users/{UNKNOWN}", None),
    ("keys", "create"): ("POST", "/v1/keys", {"name": "x"}),
    ("keys", "rotate"): ("POST", f"/v1/keys/{UNKNOWN}/rotate", None),
    ("keys", "revoke"): ("DELETE", f"/v1/keys/{UNKNOWN}", None),
}
"""What the script of a page sends for each button."""
RIGHT_OF: Final = {"users": Right.USERS_MANAGE, "keys": Right.KEYS_MANAGE}


class Controls(HTMLParser):
    """The buttons and forms of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.acts: list[tuple[str, str]] = []
        """Action and right."""
        self.bare: list[str] = []
        self.posts: list[str] = []
        self.dialogs = 0
        self._forms = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self._forms += 1
            method = (given.get("method") or "get").lower()
            if method == "post":
                self.posts.append(given.get("action") or "")
            elif method == "dialog":
                self.dialogs += 1
        elif tag == "button" and "data-act" in given:
            self.acts.append((given["data-act"] or "", given.get("data-right") or ""))
        elif tag == "button" and not self._forms:
            self.bare.append(self.get_starttag_text() or "")
        assert not any(name.startswith("on") for name in given)
        assert not {"hx-post", "hx-put", "hx-patch", "hx-delete"} & given.keys()

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._forms -= 1


async def fill(place: Place) -> dict[str, list[str]]:
    """Something for every button: jobs that run, are paused and are deleted; executions that wait, ran and failed.
    Returns the addresses of each template."""
    world = place.world
    worker = await world.worker()
    active = await world.submit(job("active", schedule=every(3600, world.now)))
    await world.submit(job("broken", retry=Retry(max_retries=0)))
    broken = str((await worker.run_one(failed("it broke"))).leased.id)
    await world.submit(job("fine"))
    fine = str((await worker.run_one()).leased.id)
    run = await start(world, worker, {"a": step(), "b": step("a")}, retry=Retry(max_retries=0))
    await run_steps(world, worker, run, {"a": failed("it broke")})
    flow = await world.value("SELECT job_id FROM ondot.run WHERE id = $1", run)
    await world.submit(job("waits"))
    owner = await place.signed_in(Role.OWNER, "first@example.com")
    made = await owner.call("POST", "/v1/jobs", {"name": "paused", "function": "f", "every": "1h"})
    await owner.call("POST", f"/v1/jobs/{made.json()['id']}/pause")
    waits = [
        item["id"]
        for item in (await owner.call("GET", "/v1/executions?limit=50")).json()["items"]
        if item["id"] not in {broken, fine, str(run)}
    ]
    await add(place.database, "disabled@example.com")
    users = (await owner.call("GET", "/v1/users")).json()["items"]
    [id_] = [user["id"] for user in users if user["email"].startswith("disabled")]
    await owner.call("PATCH", f"/v1/users/{id_}", {"state": "DISABLED"})
    assert (await owner.call("POST", "/v1/keys", {"name": "ci", "role": "editor"})).status_code == 201
    event = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "com.acme.paid"}
    sent = await owner.call("POST", "/v1/events", event, content_type="application/cloudevents+json")
    assert (await owner.call("POST", "/v1/alerts", {"name": "q", "when": {"quota": {}}})).status_code == 201
    incident = world.database.clock.new_id()
    await world.fetch(
        "INSERT INTO ondot.incident (id, alert_id, since, opened_at, tenant_no, kind, reason, alert, title)"
        " VALUES ($1, $1, ondot.clock(), ondot.clock(), 1, 'quota', 'jobs', 'q', '10 of 10 jobs')",
        incident,
    )
    operation = await owner.call("POST", "/v1/bulk", {"of": "jobs", "action": "pause", "ids": [str(active.id)]})
    assert operation.status_code == 202, operation.text
    return {
        "bulk": [f"/bulk/{operation.json()['id']}"],
        "incident": [f"/incidents/{incident}"],
        "matrix": [f"/jobs/{flow}/runs"],
        "run": [f"/runs/{run}"],
        "step": [f"/runs/{run}/steps/0"],
        "event": [f"/events/{sent.json()['id']}"],
        "job": [f"/jobs/{active.id}", f"/jobs/{made.json()['id']}"],
        "execution": [f"/executions/{id_}" for id_ in (broken, fine, *waits)],
        "tenant": [f"/tenants/{(await place.database.tenants.snapshot())[DEFAULT_TENANT].name}"],
    }


async def addresses(place: Place) -> list[tuple[str, str, Right]]:
    """Every page: its template, path, and the right that it needs."""
    filled = await fill(place)
    for_all = (
        ("page", "/"),
        ("fleet", "/fleet"),
        ("schedules", "/schedules"),
        ("docs", "/docs"),
        ("account", "/account"),
    )
    found = [(template, path, Right.JOBS_READ) for template, path in for_all]
    of_jobs = ("/jobs/new", *(f"{path}/{what}" for path in filled["job"] for what in ("edit", "duplicate")))
    found += [("job_form", path, Right.JOBS_WRITE) for path in of_jobs]
    found.append(("function", "/functions/f", Right.JOBS_READ))
    for page in PAGES:
        paths = filled[page.template] if "{" in page.path else [page.path]
        found += [(page.template, path, page.right) for path in paths]
    letters = "/dead-letters"
    shown = (await (await place.signed_in(Role.OPERATOR, "walker@example.com")).get(letters)).text
    fingerprint = re.search(r"fingerprint=([0-9a-f]+)", shown)
    assert fingerprint, "there is a group of dead letters"
    return [*found, ("dead_letters", f"{letters}?fingerprint={fingerprint[1]}", Right.JOBS_READ)]


@proves("T7")
async def test_no_page_shows_a_role_a_button_that_it_would_be_refused(place: Place) -> None:
    pages = await addresses(place)
    seen: dict[Role, set[tuple[str, str]]] = {}
    for role in ROLES:
        browser = await place.signed_in(role)
        rights = RIGHTS_OF[role]
        acts: set[tuple[str, str]] = set()
        links: set[str] = set()
        for template, path, right in pages:
            answer = await browser.get(path)
            if template == "job_form" and right not in rights:
                sent = await browser.submit(path.replace("duplicate", "edit"), {"name": "x", "version": "1"})
                assert sent.status_code == 403, (role, path)
            assert answer.status_code == (200 if right in rights else 403), (role, path)
            if right not in rights:
                continue
            controls = Controls(answer.text)
            assert controls.bare == [], f"{path}: a button without data-act and data-right, outside of a form"
            assert {given for _, given in controls.acts} <= set(rights), (role, path, controls.acts)
            posts = {re.sub(UUIDS, "ID", post) for post in controls.posts}
            assert posts <= OF_ONES_OWN | (OF_EDITORS if Right.JOBS_WRITE in rights else set())
            assert not controls.dialogs or controls.acts, f"{path}: a dialog that no button opens"
            acts |= {(template, act) for act, _ in controls.acts}
            for nav in re.findall(r"<nav.*?</nav>", answer.text, re.DOTALL):
                links.update(re.findall(r'href="([^"]+)"', nav))
        for address in links:
            assert (await browser.get(address)).status_code == 200, (role, address)
        seen[role] = acts
    assert seen[Role.VIEWER] == set()
    assert {template for template, _ in seen[Role.OPERATOR]} == {
        *("job", "jobs", "execution", "executions", "dead_letters", "run", "runs", "step"),
        *("bulk", "bulks", "incident", "incidents"),
    }
    assert seen[Role.ADMIN] >= CALLS.keys()
    assert ("users", "invite") not in seen[Role.EDITOR]


@proves("T7")
@pytest.mark.parametrize("role", ROLES)
async def test_a_button_that_a_role_does_not_see_is_refused_if_it_is_sent(place: Place, role: Role) -> None:
    browser = await place.signed_in(role)
    for (template, act), (method, path, body) in CALLS.items():
        right = Right.JOBS_WRITE if (template, act) == ("job", "delete") else RIGHT_OF.get(template, Right.JOBS_RUN)
        answer = await browser.call(method, path, body)
        assert (answer.status_code == 403) == (right not in RIGHTS_OF[role]), (template, act, answer.text)


@proves("T7")
async def test_the_head_shows_who_is_signed_in_and_a_laptop_sees_nothing_new(place: Place) -> None:
    viewer = await place.signed_in(Role.VIEWER, "ada@example.com")
    text = (await viewer.get("/")).text
    assert "ada@example.com, viewer" in text
    assert "/users" not in text
    assert "act-for" not in text
