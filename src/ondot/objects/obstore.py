"""Object storage in a directory or in a bucket of S3, both through obstore (E14).

`ONDOT_OBJECTS_URL` chooses: `file:///path` is a directory, `s3://bucket/prefix` a bucket; the default is the directory
`objects` under the home. Credentials, region and endpoint of S3 come from the usual `AWS_*` variables, also for
servers that are compatible with it. Opening does nothing, so that a role starts without its storage: the first use
reports what is wrong. Every use has a deadline, and only a few uploads run at once, because each is in memory.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from ondot.model.errors import Misconfigured, Unavailable
from ondot.ports.objects import Objects, Stored
from ondot.private import check_private
from ondot.settings import Settings, default_home

if TYPE_CHECKING:
    from obstore import BytesStream

UPLOADS = 4
WITHIN_S = 60.0
ARCHIVE_WITHIN_S = 3600.0
CHUNK_BYTES = 64 * 1024
LONGEST_REASON = 300

_TROUBLE = (BaseError, OSError, ValueError, Misconfigured)


def open_objects(settings: Settings) -> Objects:
    """The object storage of this installation; every process must use the same."""
    if settings.objects_url is None:
        home = (settings.home or default_home()).expanduser().absolute()
        return _directory(home / "objects", home)
    parts = urlsplit(settings.objects_url)
    if parts.scheme == "file":
        return _directory(Path(unquote(parts.path)))
    return ObstoreObjects(settings.objects_url, lambda: _bucket(parts.netloc, parts.path.strip("/")))


def open_archive(settings: Settings) -> Objects | None:
    """Where days are archived before they go (O1); None: nowhere. Files are larger than other objects: they are stored
    in parts, and take longer."""
    if settings.archive_url is None:
        return None
    parts = urlsplit(settings.archive_url)
    if parts.scheme == "file":
        return _directory(Path(unquote(parts.path)), within_s=ARCHIVE_WITHIN_S)
    return ObstoreObjects(
        settings.archive_url,
        lambda: _bucket(parts.netloc, parts.path.strip("/")),
        within_s=ARCHIVE_WITHIN_S,
        in_parts=True,
    )


class ObstoreObjects:
    def __init__(
        self,
        place: str,
        connect: Callable[[], LocalStore | S3Store],
        *,
        within_s: float = WITHIN_S,
        in_parts: bool = False,
    ) -> None:
        self._place = place
        self._within_s = within_s
        self._in_parts = in_parts
        self._connect = connect
        self._connected: LocalStore | S3Store | None = None
        self._uploads = asyncio.Semaphore(UPLOADS)

    @property
    def place(self) -> str:
        return self._place

    async def put(self, key: str, content: bytes | IO[bytes]) -> None:
        try:
            async with asyncio.timeout(self._within_s), self._uploads:
                # In one request: the parts of an aborted upload would stay in the bucket, and cost.
                await self._store().put_async(key, content, use_multipart=self._in_parts and None)
        except _TROUBLE as error:
            raise self._unavailable(error) from error

    async def get(self, key: str) -> Stored | None:
        try:
            async with asyncio.timeout(self._within_s):
                found = await self._store().get_async(key)
        except FileNotFoundError:
            return None
        except _TROUBLE as error:
            raise self._unavailable(error) from error
        return Stored(found.meta["size"], self._chunks(found.stream(min_chunk_size=CHUNK_BYTES)))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            try:
                async with asyncio.timeout(self._within_s):
                    await self._store().delete_async(key)
            except FileNotFoundError:
                continue
            except _TROUBLE as error:
                raise self._unavailable(error) from error

    def _store(self) -> LocalStore | S3Store:
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    async def _chunks(self, stream: "BytesStream") -> AsyncIterator[bytes]:
        try:
            async for chunk in stream:
                yield bytes(chunk)
        except _TROUBLE as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        why = f"no answer within {self._within_s:g} s" if isinstance(error, TimeoutError) else _first_line(error)
        return Unavailable(f"Object storage at {self._place} cannot be used: {why}.", place=self._place)


def _directory(path: Path, home: Path | None = None, *, within_s: float = WITHIN_S) -> ObstoreObjects:
    def connect() -> LocalStore:
        # Output may be confidential: only the owner has access to the directory.
        if home is not None:
            check_private(home)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if home is not None:
            check_private(home)
        return LocalStore(path, automatic_cleanup=True)

    return ObstoreObjects(path.as_uri(), connect, within_s=within_s)


def _bucket(bucket: str, prefix: str) -> S3Store:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return S3Store(
        bucket,
        prefix=prefix or None,
        **({"endpoint": endpoint} if endpoint else {}),  # type: ignore[arg-type]
        client_options={
            "allow_http": (endpoint or "").startswith("http://"),
            "connect_timeout": timedelta(seconds=5),
            "read_timeout": timedelta(seconds=30),
            # For a whole download, which a slow client of the API may prolong.
            "timeout": timedelta(hours=1),
        },
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=20)},
    )


def _first_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line[:LONGEST_REASON].rstrip(".")
