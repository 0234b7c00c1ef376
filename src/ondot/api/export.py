"""Every list as a file (O2): `?format=csv|jsonl` on each route that answers with `items`, streamed, of any length.

An export asks the route itself, a page at a time. So it has the route's filters and query, shows what the route shows
(secrets are masked), and the caller's rights are checked again for each page. Each page is read with a connection and a
transaction of its own, which end before the page is sent: a reader that is slow or goes away holds nothing but that
page. It is sent in small pieces, so that `protocol` sees whether the reader moves on, and pages of large items are
shorter.

An error before the first page is the answer. After that the connection is cut, without the last chunk of HTTP/1.1, so
that no reader takes a part of a list for the whole; `export.cut` in the log says why.
"""

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args, get_origin
from urllib.parse import urlencode

import msgspec
from fastapi.routing import APIRoute
from msgspec import Raw, Struct
from pydantic import BaseModel
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ondot.api.fast_path import RenderError
from ondot.api.responses import LogList
from ondot.api.routes.find import FoundOut
from ondot.model.errors import InvalidParameters
from ondot.telemetry.log import get_logger

PAGE: Final = 250
"""A fifth slower than 1,000, and a quarter of the memory if all items are as large as they may be, 1 MiB."""
PAGE_BYTES: Final = 4 * 1024 * 1024
"""About as much is read at once, judged by the page before."""
PIECE_BYTES: Final = 64 * 1024
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""A spreadsheet would run text that begins with one of these."""
MEDIA_TYPES: Final = {"csv": "text/csv; charset=utf-8; header=present", "jsonl": "application/x-ndjson"}
NO_FILES: Final = frozenset({LogList, FoundOut})
"""A log is followed, and has no end; `whole=true` is its file. Candidates for a text are no list of things."""
OWN_FORMAT: Final = "/audit/export"
"""It had a `format` before all lists had one."""

ExportFormat = Literal["csv", "jsonl"]

log = get_logger()

_DOCUMENTED: Final[dict[str, Any]] = {
    "parameters": [
        {
            "name": "format",
            "in": "query",
            "required": False,
            "schema": {"type": "string", "enum": ["csv", "jsonl"]},
            "description": "The whole list as a file instead of a page: CSV with a header, or a JSON object in each"
            " line. `limit` then bounds the whole file.",
        }
    ],
    "responses": {
        "200": {
            "content": {
                "text/csv": {"schema": {"type": "string"}},
                "application/x-ndjson": {"schema": {"type": "string"}},
            }
        }
    },
}


class _Page(Struct):
    items: list[Raw]
    next_cursor: str | None = None


@dataclass(slots=True)
class _Answer:
    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    route: APIRoute | None = None


def describe_exports(routes: Iterable[BaseRoute]) -> None:
    """Document the parameter of each route that lists."""
    for route in routes:
        if isinstance(route, APIRoute) and columns_of(route) is not None and route.openapi_extra is None:
            route.openapi_extra = _DOCUMENTED


def columns_of(route: APIRoute) -> list[str] | None:
    """The fields of the items that a route lists; None if it lists nothing."""
    model = route.response_model
    if "GET" not in (route.methods or ()) or not (isinstance(model, type) and issubclass(model, BaseModel)):
        return None
    listed = model.model_fields.get("items")
    if listed is None or get_origin(listed.annotation) is not list or model in NO_FILES:
        return None
    [item] = get_args(listed.annotation)
    fields = item.model_fields if isinstance(item, type) and issubclass(item, BaseModel) else None
    return list(fields if fields is not None else getattr(item, "__annotations__", {})) or None


class Exports:
    """The API with files: requests without `format` pass through."""

    def __init__(self, app: ASGIApp, *, render_error: RenderError) -> None:
        self._app = app
        self._render_error = render_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or b"format=" not in scope["query_string"] or scope["path"].endswith(OWN_FORMAT):
            return await self._app(scope, receive, send)
        request = Request(scope, receive)
        try:
            answer = await self._export(request)
        except InvalidParameters as error:
            answer = await self._render_error(request, error)
        if isinstance(answer, _FileResponse):
            return await self._send(answer, scope, receive, send)
        return await (self._app if answer is None else answer)(scope, receive, send)

    async def _send(self, answer: "_FileResponse", scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file. One that is not whole is not ended either, so that the server closes the connection."""
        why = "an error of the server"
        try:
            await answer(scope, receive, send)
            why = "the client went away, or did not read"
        except _Cut as cut:
            why = str(cut)
        finally:
            if not answer.file.is_whole:
                log.warning("export.cut", path=scope["path"], items=answer.file.items, why=why)

    async def _export(self, request: Request) -> Response | None:
        """The file, or why there is none; None: this is no list, and its route refuses the parameter."""
        parameters = request.query_params
        for name in ("limit", "cursor"):
            # The page below is asked for without them.
            if len(parameters.getlist(name)) > 1:
                raise InvalidParameters(f"{name} is given {len(parameters.getlist(name))} times. Give it once.")
        asked = [(name, value) for name, value in parameters.multi_items() if name not in {"format", "limit", "cursor"}]
        cursor = [("cursor", parameters["cursor"])] if "cursor" in parameters else []
        # Before the answer starts: a bad filter is a 422, and a database that is away a 503, not a file that ends.
        first = await self._ask(request.scope, [*asked, *cursor])
        if first.status != 200:
            refusal = Response(first.body, first.status)
            refusal.raw_headers = first.headers
            return refusal
        columns = None if first.route is None else columns_of(first.route)
        if first.route is None or columns is None:
            return None
        file = _File(_read_format(parameters), columns, _read_limit(parameters))
        name = next(part for part in reversed(first.route.path.split("/")) if part and not part.startswith("{"))
        return _FileResponse(self._pieces(request, asked, file, first.body), file, name)

    async def _pieces(
        self, request: Request, asked: Sequence[tuple[str, str]], file: "_File", body: bytes
    ) -> AsyncIterator[bytes]:
        yield file.start()
        while True:
            page = msgspec.json.decode(body, type=_Page)
            for piece in file.render(page.items):
                yield piece
                await asyncio.sleep(0)  # sending does not wait while the buffers have room: other requests have turns
            if page.next_cursor is None or file.left == 0:
                file.is_whole = True
                return
            if request.app.state.services.stopping.is_set():
                raise _Cut("the server stops")
            size = next_size(len(page.items), len(body))
            paging = [("limit", str(size if file.left is None else min(size, file.left))), ("cursor", page.next_cursor)]
            answer = await self._ask(request.scope, [*asked, *paging])
            if answer.status != 200:
                raise _Cut(f"a page was answered with {answer.status}")
            body = answer.body

    async def _ask(self, scope: Scope, asked: Sequence[tuple[str, str]]) -> _Answer:
        """One page of the list, as the route answers it."""
        answer = _Answer()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status, answer.headers = message["status"], list(message["headers"])
            else:
                answer.body += message.get("body", b"")

        inner = {**scope, "query_string": urlencode(asked).encode()}
        await self._app(inner, receive, send)
        route = inner.get("route")
        answer.route = route if isinstance(route, APIRoute) else None
        return answer


@dataclass(slots=True)
class _File:
    """How items are written, and how many more may be."""

    format: ExportFormat
    columns: Sequence[str]
    left: int | None
    items: int = 0
    is_whole: bool = False

    def start(self) -> bytes:
        return csv_row(self.columns) if self.format == "csv" else b""

    def render(self, items: Sequence[Raw]) -> Iterator[bytes]:
        """The items as they are sent, in pieces of about `PIECE_BYTES`."""
        if self.left is not None:
            items = items[: self.left]
            self.left -= len(items)
        piece = bytearray()
        for item in items:
            piece += self._line(item)
            self.items += 1
            while len(piece) >= PIECE_BYTES:
                yield bytes(piece[:PIECE_BYTES])
                del piece[:PIECE_BYTES]
        if piece:
            yield bytes(piece)

    def _line(self, item: Raw) -> bytes:
        if self.format == "jsonl":
            return bytes(item) + b"\n"
        row = msgspec.json.decode(item)
        return csv_row([row.get(column) for column in self.columns])


class _FileResponse(StreamingResponse):
    def __init__(self, pieces: AsyncIterator[bytes], file: _File, name: str) -> None:
        disposition = f'attachment; filename="{name}.{file.format}"'
        super().__init__(pieces, media_type=MEDIA_TYPES[file.format], headers={"Content-Disposition": disposition})
        self.file = file


class _Cut(Exception):
    """The file cannot be finished."""


def next_size(items: int, size_bytes: int) -> int:
    """How many items to read next, after a page of so many items and bytes: at most twice as many, and about as many as
    fit into `PAGE_BYTES`."""
    if not items:
        return PAGE
    return max(1, min(PAGE, 2 * items, PAGE_BYTES * items // max(size_bytes, 1)))


def csv_row(values: Sequence[Any]) -> bytes:
    file = io.StringIO()
    csv.writer(file, lineterminator="\r\n").writerow([csv_cell(value) for value in values])
    return file.getvalue().encode()


def csv_cell(value: Any) -> str:
    """Text as it is, other values as JSON; with an apostrophe before it if a spreadsheet would run it."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    return f"'{value}" if value.startswith(FORMULA) else value


def _read_format(parameters: QueryParams) -> ExportFormat:
    written = parameters.getlist("format")
    if written == ["csv"]:
        return "csv"
    if written == ["jsonl"]:
        return "jsonl"
    shown = ", ".join(repr(text[:20]) for text in written)
    raise InvalidParameters(f"`format` must be csv or jsonl, got {shown}. Leave it out for a page as JSON.")


def _read_limit(parameters: QueryParams) -> int | None:
    written = parameters.get("limit")
    if written is None:
        return None
    if not (written.isascii() and written.isdigit() and len(written) <= 12 and int(written) > 0):
        raise InvalidParameters(f"`limit` must be a number above 0, got {written[:20]!r}. Leave it out for all.")
    return int(written)
