"""The HTTP API as methods, for the SDK and the command line. Answers are plain dicts, problems are raised.

A problem is raised as the error of `model.errors` that has its code, so that both sides of the wire speak of the same
things. What makes something carries an idempotency key and is tried again when the server could not be reached or
asks for it: with the same key it is made once (P2).
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit
from uuid import UUID, uuid4

import httpx2

from ondot import __version__
from ondot.model.errors import Unavailable
from ondot.sdk.problems import error_of

RETRIES: Final = 3
LONGEST_WAIT_S: Final = 10.0

_UNSET: Final = object()
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

Json = dict[str, Any]
Id = UUID | str


class Client:
    """Bound to no event loop: the connections are those of the loop that it is used in."""

    def __init__(self, url: str | None = None, api_key: str | None = None, timeout_s: float = 30) -> None:
        self._given_url = url
        self._given_key = api_key
        self._timeout_s = timeout_s
        self._http: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # Jobs.

    async def create_job(self, body: Mapping[str, Any], idempotency_key: str | None = None) -> Json:
        return await self._make("/v1/jobs", body, idempotency_key)

    async def create_jobs(self, bodies: Sequence[Mapping[str, Any]], idempotency_key: str | None = None) -> Json:
        """All or none; the answer has `items` in their order."""
        return await self._make("/v1/jobs/batch", {"jobs": list(bodies)}, idempotency_key)

    async def list_jobs(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/jobs", query=filters)

    async def get_job(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}")

    async def patch_job(self, id_: Id, changes: Mapping[str, Any], if_version: int | None = None) -> Json:
        """Change the fields that are named (RFC 7396: null takes one out); with `if_version` only that version."""
        headers = {} if if_version is None else {"if-match": f'"{if_version}"'}
        return await self._call("PATCH", f"/v1/jobs/{_segment(id_)}", body=changes, headers=headers)

    async def delete_job(self, id_: Id) -> Json:
        return await self._call("DELETE", f"/v1/jobs/{_segment(id_)}")

    async def run_job(self, id_: Id, payload: Any = _UNSET, idempotency_key: str | None = None) -> Json:
        """One execution now; without a payload it gets the job's own."""
        body = {} if payload is _UNSET else {"payload": payload}
        return await self._make(f"/v1/jobs/{_segment(id_)}/run", body, idempotency_key)

    async def pause_job(self, id_: Id) -> Json:
        return await self._call("POST", f"/v1/jobs/{_segment(id_)}/pause")

    async def resume_job(self, id_: Id, missed: Literal["skip", "once", "all"] | None = None) -> Json:
        """Fire again; `missed` says what becomes of the fires of the pause, which are skipped if it is left out."""
        body = None if missed is None else {"missed": missed}
        return await self._call("POST", f"/v1/jobs/{_segment(id_)}/resume", body=body)

    async def job_status(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/status")

    async def next_fires(self, id_: Id, n: int = 10) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/next", query={"n": n})

    async def job_executions(self, id_: Id, **filters: Any) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/executions", query=filters)

    async def backfill_job(
        self,
        id_: Id,
        from_at: datetime | str,
        to_at: datetime | str,
        *,
        order: Literal["oldest", "newest"] = "oldest",
        concurrency: int = 1,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Json:
        """Run the fires of a past range; `dry_run` only counts them."""
        body = {
            "from_at": _plain(from_at),
            "to_at": _plain(to_at),
            "order": order,
            "concurrency": concurrency,
            "dry_run": dry_run,
        }
        return await self._make(f"/v1/jobs/{_segment(id_)}/backfill", body, idempotency_key)

    async def list_backfills(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/backfills")

    async def get_backfill(self, id_: Id, backfill_id: Id) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/backfills/{_segment(backfill_id)}")

    async def cancel_backfill(self, id_: Id, backfill_id: Id) -> Json:
        """What has not begun is not run; what runs may end."""
        return await self._call("POST", f"/v1/jobs/{_segment(id_)}/backfills/{_segment(backfill_id)}/cancel")

    async def preview(self, body: Mapping[str, Any]) -> Json:
        return await self._call("POST", "/v1/schedules/preview", body=body)

    # Executions.

    async def list_executions(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/executions", query=filters)

    async def get_execution(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/executions/{_segment(id_)}")

    async def execution_logs(self, id_: Id, cursor: str | None = None, **filters: Any) -> Json:
        return await self._call("GET", f"/v1/executions/{_segment(id_)}/logs", query={"cursor": cursor, **filters})

    # The server.

    async def ready(self) -> Json:
        """What `/readyz` says, with `ready` true or false. Raises Unavailable only if nobody answers."""
        response = await self._send("GET", "/readyz")
        answer = _json(response)
        return {"ready": response.status_code == 200, **(answer if isinstance(answer, dict) else {})}

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None and self._loop is asyncio.get_running_loop():
            await http.aclose()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _make(self, path: str, body: Mapping[str, Any], idempotency_key: str | None) -> Json:
        """A POST that makes something, and makes it once however often it has to be sent."""
        headers = {"idempotency-key": idempotency_key or str(uuid4())}
        for tries in range(1, RETRIES + 1):
            try:
                response = await self._send("POST", path, body=body, headers=headers)
            except Unavailable:
                await asyncio.sleep(0.1 * 2**tries)
                continue
            wait_s = _asks_to_wait_s(response)
            if wait_s is None:
                return self._answer(response)
            await asyncio.sleep(wait_s)
        return self._answer(await self._send("POST", path, body=body, headers=headers))

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        return self._answer(await self._send(method, path, query=query, body=body, headers=headers))

    def _answer(self, response: httpx2.Response) -> Json:
        answer = _json(response)
        if response.is_success and isinstance(answer, dict):
            return answer
        raise error_of(response.status_code, answer, str(self._client().base_url))

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        client = self._client()
        try:
            return await client.request(
                method,
                path,
                params={name: _plain(value) for name, value in (query or {}).items() if value is not None},
                json=body,
                headers=headers,
            )
        except httpx2.TimeoutException as error:
            raise Unavailable(f"{client.base_url} did not answer within {self._timeout_s:g} s.") from error
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise Unavailable(
                f"No ondot can be reached at {client.base_url} ({error}). "
                "Start one with `ondot up`, or say where it is: ONDOT_URL=http://host:1200."
            ) from error

    def _client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            # The connections of a loop that has ended (an `asyncio.run` before this one) are of no use any more.
            self._http, self._loop = self._open(), loop
        return self._http

    def _open(self) -> httpx2.AsyncClient:
        url, key = self._given_url, self._given_key
        if url is None or key is None:
            from ondot.settings import load_settings

            settings = load_settings(url=url, api_key=key)
            url, key = settings.url, settings.api_key
        headers = {"user-agent": f"ondot/{__version__}", "accept": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        return httpx2.AsyncClient(
            base_url=url.rstrip("/"),
            headers=headers,
            timeout=self._timeout_s,
            # A proxy for the world outside does not know this machine's own ondot.
            trust_env=urlsplit(url).hostname not in _LOOPBACK,
        )


def _segment(id_: Id) -> str:
    return quote(str(id_), safe="")


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _json(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _asks_to_wait_s(response: httpx2.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    if response.status_code != 503 or not (text.isascii() and text.isdigit()):
        return None
    return min(float(text), LONGEST_WAIT_S)
