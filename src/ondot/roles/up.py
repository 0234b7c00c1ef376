"""`ondot up`: everything in one, under one supervisor, on an embedded PostgreSQL (O6).

On loopback it is a person's own machine: no API key is required and private targets are allowed, and its first screen
says so. The order matters: the port is tried before anything starts; the database is up and migrated before the roles
start, and stops after them.
"""

import os
import time
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ondot.account.secret_key import keep_secret_key
from ondot.embedded.binaries import choose_account
from ondot.embedded.server import EmbeddedPostgres
from ondot.model.errors import Misconfigured
from ondot.proxies import open_url
from ondot.roles.listen import listen
from ondot.roles.metrics import make_pages
from ondot.roles.migrate import migrate
from ondot.roles.supervise import STOP_MARGIN_S, Child, StopSignals, Supervisor, hung_after, role_argv
from ondot.settings import Settings, default_home

STARTS_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    workers: int = 1
    demo: bool = False
    app_reference: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """What to show once everything answers."""

    url: str
    home: Path | None
    database: str


def run_up(
    settings: Settings,
    options: UpOptions,
    *,
    show: Callable[[Running], None],
    report_waiting: Callable[[str], None] = lambda _kind: None,
) -> int:
    """Start everything, show where, keep it alive until a signal; return the exit code."""
    signals = StopSignals()
    port = free_port(settings.host, settings.port)
    postgres = None if settings.database_url else EmbeddedPostgres(settings.home or default_home())
    if postgres and settings.allow_shell:
        refuse_account_of_server(settings.shell_user, postgres.data)
    try:
        database_url = settings.database_url or (postgres.start() if postgres else "")
        settings = settings.model_copy(update={"database_url": database_url, "port": port} | _own_machine(settings))
        if postgres and settings.secret_key is None:
            settings = settings.model_copy(update={"secret_key": keep_secret_key(postgres.home)})
        migrate(settings)
        supervisor = Supervisor(
            children=children(settings, options),
            environment=environment(settings),
            stop_timeout_s=settings.grace_s + STOP_MARGIN_S,
            signals=signals,
            look=lambda: _restart(postgres),
            report_waiting=report_waiting,
            hung_after_s=hung_after(settings.heartbeat_s),
        )
        if signals.stopping:
            return 0
        supervisor.start()
        url = f"http://{_in_url(settings.host)}:{port}"
        if wait_until_served(url, supervisor):
            show(
                Running(
                    url,
                    postgres.home if postgres else None,
                    "embedded PostgreSQL" if postgres else "ONDOT_DATABASE_URL",
                )
            )
        return supervisor.run()
    finally:
        if postgres:
            postgres.stop()


def children(settings: Settings, options: UpOptions) -> list[Child]:
    """Workers first: they stop first, all at once, while the other roles still serve them."""
    app = ["ondot.demo:app"] if options.demo else [options.app_reference] if options.app_reference else []
    names = [f"worker-{number}" for number in range(1, options.workers + 1)]
    pages = make_pages([*names, "scheduler", "api"])
    api = role_argv("api", "--host", settings.host, "--port", str(settings.port))
    return [
        *(Child(name, "worker", role_argv("worker", *app), pages=[pages[name]]) for name in names),
        Child("scheduler", "scheduler", role_argv("scheduler"), pages=[pages["scheduler"]]),
        # It serves the sum of all.
        Child("api", "api", api, pages=[pages.pop("api"), *pages.values()]),
    ]


def environment(settings: Settings) -> dict[str, str]:
    """The environment of the children: that of this process, with the settings in effect."""
    # The URL and key of `ondot.toml` must not look as if they came from the environment: each role reads the file
    # itself.
    variables = {
        f"ONDOT_{name.upper()}": str(value)
        for name in settings.model_fields_set - {"url", "api_key"}
        if (value := getattr(settings, name)) is not None
    }
    return {**os.environ, **variables}


def refuse_account_of_server(shell_user: str | None, data: Path) -> None:
    """Commands that run as the account of the embedded PostgreSQL could read and change its files."""
    account = choose_account(data)
    if account is not None and account.name == shell_user:
        raise Misconfigured(
            f"ONDOT_SHELL_USER={shell_user} is the account that the embedded PostgreSQL runs as, so commands could"
            " change its data: name another account."
        )


def free_port(host: str, port: int) -> int:
    """The port, tried before anything starts."""
    with listen(host, port) as listener:
        return int(listener.getsockname()[1])


def wait_until_served(url: str, supervisor: Supervisor) -> bool:
    """Until the API answers; False if a signal arrives first. If a role dies first, its own message is shown above."""
    deadline_s = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline_s:
        if supervisor.signals.stopping:
            return False
        try:
            with open_url(f"{url}/livez", 2.0):
                return True
        except (urllib.error.URLError, OSError):
            dead = [child.name for child in supervisor.children if not child.running]
            if dead:
                supervisor.stop()
                raise Misconfigured(f"The {dead[0]} could not start: see its message above.") from None
            time.sleep(0.05)
    supervisor.stop()
    raise Misconfigured(f"The API did not answer at {url} within {STARTS_WITHIN_S:g} s.")


def _own_machine(settings: Settings) -> dict[str, object]:
    if not settings.on_loopback:
        return {}
    given = settings.model_fields_set
    return {
        **({} if "auth" in given else {"auth": "off"}),
        **({} if "allow_private_targets" in given else {"allow_private_targets": True}),
    }


def _restart(postgres: EmbeddedPostgres | None) -> None:
    if postgres and not postgres.alive():
        postgres.start()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
