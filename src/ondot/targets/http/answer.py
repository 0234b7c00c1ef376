"""Reads a receiver's answer: the first 64 KiB, or 16 MiB if another step of its run may read it, and not more.

The connection of a longer answer is closed, because the rest would have to be read before it could be used again. A
request asks for answers without compression. If one is compressed all the same, it is decompressed up to the same
limit, so that a bomb of a few kilobytes stays small.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec

from ondot.targets.text import storable_bytes

MAX_BODY: Final = 64 * 1024
MAX_DETAIL: Final = 2 * 1024

_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    is_json: bool
    cut: bool
    max_bytes: int = MAX_BODY

    @property
    def text(self) -> str:
        return storable_bytes(self.body)

    def as_json(self) -> str:
        """The result of an execution: JSON stays JSON, anything else becomes text; `cut` says that there was more."""
        result: dict[str, Any] = {"status": self.status, "body": self._body()}
        if self.cut:
            result["cut"] = f"only the first {self.max_bytes:,} bytes of the answer are kept"
        return msgspec.json.encode(result).decode()

    def _body(self) -> object:
        if not self.body:
            return None
        if self.is_json and not self.cut:
            try:
                msgspec.json.decode(self.body)
                return msgspec.Raw(self.body)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                pass
        return self.text


async def read_answer(response: aiohttp.ClientResponse, max_bytes: int | None = None) -> Answer:
    """`max_bytes`: how much of its body is kept; None for the usual."""
    kept = max_bytes or MAX_BODY
    chunks: list[bytes] = []
    length = 0
    while length <= kept and (chunk := await response.content.read(kept + 1 - length)):
        chunks.append(chunk)
        length += len(chunk)
    body = b"".join(chunks)
    cut = length > kept
    if cut:
        response.close()
    if encoding := response.headers.get("content-encoding", "identity").strip().lower().removeprefix("x-"):
        body, more = _decompress(body, encoding, kept)
        cut = cut or more
    media_type = response.content_type
    return Answer(
        status=response.status,
        headers=response.headers,
        body=body[:kept],
        is_json=media_type == "application/json" or media_type.endswith("+json"),
        cut=cut,
        max_bytes=kept,
    )


def _decompress(body: bytes, encoding: str, max_bytes: int) -> tuple[bytes, bool]:
    """The body, and whether there is more of it than is kept."""
    if encoding == "identity" or not body:
        return body, False
    if encoding not in {"gzip", "deflate"}:
        return f"({len(body):,} bytes of {encoding[:40]}, not decompressed)".encode(), False
    decompressor = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        decompressed = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        return f"({len(body):,} bytes that are not {encoding}: {error})".encode(), False
    return decompressed, len(decompressed) > max_bytes
