"""A server that speaks as much of S3 as object storage needs: signed PUT and GET of an object, and bulk delete.

It checks what a real one checks: the signature of a request (AWS Signature Version 4) by the secret that both know, and
the hash of its body.
"""

import hashlib
import hmac
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

KEY_ID, SECRET = "KEYID", "the-secret"


class Bucket(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, bytes] = {}
        self.refuses = 0
        """With which status to answer everything; 0: as S3 does."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Request(BaseHTTPRequestHandler):
    server: Bucket
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        if body := self._read():
            self.server.objects[self._key()] = body[0]
            self._answer(200, b"")

    def do_GET(self) -> None:
        if self._read():
            found = self.server.objects.get(self._key())
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>") if found is None else self._answer(200, found)

    def do_POST(self) -> None:
        if (body := self._read()) and urlsplit(self.path).query == "delete":
            keys = re.findall(r"<Key>(.*?)</Key>", body[0].decode())
            bucket = self._key().strip("/")
            for key in keys:
                self.server.objects.pop(f"/{bucket}/{key}", None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it is called by
        """Nothing: the tests say what went wrong."""

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path)

    def _read(self) -> tuple[bytes] | None:
        """The body, if the request is one that S3 would take; otherwise it is answered."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.server.refuses:
            self._answer(self.server.refuses, b"<Error><Code>Refused</Code></Error>")
        elif not self._is_signed(body):
            self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        else:
            return (body,)
        return None

    def _is_signed(self, body: bytes) -> bool:
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/((\d{8})/([^/]+)/s3/aws4_request), ?"
            r"SignedHeaders=([^,]+), ?Signature=(\w+)",
            self.headers.get("authorization", ""),
        )
        if found is None or found[1] != KEY_ID:
            return False
        digest = hashlib.sha256(body).hexdigest()
        path, _, query = self.path.partition("?")
        headers = "".join(f"{name}:{self.headers[name].strip()}\n" for name in found[5].split(";"))
        query = "&".join(part if "=" in part else f"{part}=" for part in query.split("&") if part)
        canonical = f"{self.command}\n{path}\n{query}\n{headers}\n{found[5]}\n{digest}"
        signing = f"AWS4{SECRET}".encode()
        for part in (found[3], found[4], "s3", "aws4_request"):
            signing = hmac.digest(signing, part.encode(), "sha256")
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{self.headers['x-amz-date']}\n{found[2]}\n{hashed}"
        signature = hmac.digest(signing, text.encode(), "sha256").hex()
        return self.headers["x-amz-content-sha256"] == digest and hmac.compare_digest(signature, found[6])

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("last-modified", "Sun, 15 Nov 2026 12:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def a_bucket() -> Iterator[Bucket]:
    bucket = Bucket()
    serving = threading.Thread(target=bucket.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        yield bucket
    finally:
        bucket.shutdown()
        serving.join()
        bucket.server_close()
