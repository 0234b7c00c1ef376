"""A server without API keys that runs as an account of its own, and clients of other accounts: real processes.

Everything is imported before the account is given up: the interpreter may lie where only root gets to. There is no
database behind the server: a request that is let in is answered with 503, one that is not with 401.
"""

import asyncio
import encodings.idna  # noqa: F401 - imported by the first look-up of a name
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LET_IN, REFUSED = 503, 401
PATH = "/v1/pools"
BEGIN = """
import encodings.idna, http.client, json, os, socket, sys, threading
uid, host, port, given = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
os.setgroups([]); os.setgid(uid); os.setuid(uid)

def ask(headers={}, path="/v1/pools", times=1, at=(host, port)):
    connection = http.client.HTTPConnection(*at, timeout=20)
    for _ in range(times):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    return {"status": answer.status, "text": text, "challenge": answer.getheader("www-authenticate")}
"""


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int
    home: Path
    pid: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    def ask_as(self, uid: int, code: str = "print(json.dumps(ask()))", **given: Any) -> dict[str, Any]:
        """What a client of that account is answered; the code prints it."""
        with self.client(uid, code, **given) as client:
            out, err = client.communicate(timeout=60)
        assert client.returncode == 0, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    @contextmanager
    def client(self, uid: int, code: str, **given: Any) -> Iterator[subprocess.Popen[str]]:
        arguments = [str(uid), self.host, str(self.port), json.dumps(given)]
        with subprocess.Popen(
            [sys.executable, "-c", BEGIN + code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()


@contextmanager
def serving_as(uid: int, home: Path, host: str = "127.0.0.1") -> Iterator[Server]:
    home.mkdir()
    os.chown(home, uid, uid)
    home.chmod(0o700)
    words = [sys.executable, "-m", "tests.account.served", str(uid), str(home), host]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout
            yield Server(host, int(process.stdout.readline()), home, process.pid)
        finally:
            process.kill()


def main(uid: int, home: Path, host: str) -> None:
    import uvloop

    from ondot.account.token import NAME, keep_token
    from ondot.api.auth import Auth
    from ondot.api.dependencies import Services
    from ondot.api.serve import serve
    from ondot.api.server import build_api
    from ondot.flow.dispatch import Dispatcher
    from ondot.model.errors import Unauthorized
    from ondot.roles.listen import listen
    from ondot.store.database import open_database
    from ondot.transports.polling import PollingTransport
    from ondot.ui.pages import build_pages
    from ondot.ui.render import Renderer
    from tests.servers import settings_for

    settings = settings_for("postgresql://nobody@127.0.0.1:1/none", auth="off", host=host)
    listener = listen(host, 0)
    Renderer().message(Unauthorized(""), "")  # imports all that rendering needs
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)

    async def run() -> None:
        database = await open_database(settings)
        auth = Auth(database, settings, token=keep_token(home), token_path=home / NAME)
        app = build_api(Services(database, Dispatcher(PollingTransport()), auth))
        build_pages(app, database, auth)
        print(listener.getsockname()[1], flush=True)  # noqa: T201 - read by the test
        await serve(app, listener, asyncio.Event())

    uvloop.run(run())


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
