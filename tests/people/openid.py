"""OpenID providers for the tests: a real one, and one that lies.

The real one is oidc-provider on Node, which the OpenID Foundation has certified. npm installs it once into a directory
of the tests' own; without Node or npm's registry the tests that need it are skipped, and say so.
"""

import asyncio
import base64
import fcntl
import hmac
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import RSAKey
from started import free_port

VERSION: Final = "9.13.3"
PROGRAM: Final = Path(__file__).parent / "provider.mjs"
PLACE: Final = Path(tempfile.gettempdir()) / f"ondot-tests-oidc-provider-{VERSION}-{os.getuid()}"
SECRET: Final = "a secret with / and + and :"
INSTALLS_WITHIN_S: Final = 90
"""Two tests need it: the second may wait for the first and then try itself, within the time of one test."""


def install() -> Path:
    """The entry file of the package. One process installs it, the others wait."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no Node and npm on this machine: apt-get install nodejs npm")
    entry = PLACE / "node_modules/oidc-provider/lib/index.js"
    PLACE.mkdir(mode=0o700, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not entry.exists():
            options = ["--no-audit", "--no-fund", "--fetch-retries=1", "--prefix", str(PLACE)]
            command = ["npm", "install", *options, f"oidc-provider@{VERSION}"]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=INSTALLS_WITHIN_S)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                pytest.skip(f"npm could not install oidc-provider: {error}")
    return entry


@asynccontextmanager
async def real_provider(redirect_uri: str) -> AsyncIterator[str]:
    """Its issuer. The client is `ondot`, with SECRET."""
    entry, port = await asyncio.to_thread(install), free_port()
    variables = {"PORT": str(port), "REDIRECT_URI": redirect_uri, "CLIENT_SECRET": SECRET, "OIDC_PROVIDER": str(entry)}
    process = await asyncio.create_subprocess_exec(
        "node",
        str(PROGRAM),
        env=os.environ | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            while (await process.stdout.readline()).strip() != b"listening":
                assert process.returncode is None, "the provider ended"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@dataclass(slots=True)
class Liar:
    """A provider whose every word a test can change."""

    issuer: str = ""
    now_s: Callable[[], float] = time.time
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"}))
    published: list[RSAKey] | None = None
    """None: the key that signs."""
    claims: dict[str, Any] = field(default_factory=dict)
    """Of the ID token, beside or instead of the right ones; None leaves one out."""
    header: dict[str, Any] = field(default_factory=dict)
    sign: Callable[[dict[str, Any], dict[str, Any]], str] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    """Of the token endpoint."""
    status: int = 200
    nonce: str = ""
    challenge: str = ""
    calls: list[str] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)

    def token(self) -> str:
        now_s = int(self.now_s())
        right = {
            "iss": self.issuer,
            "aud": "ondot",
            "sub": "person-1",
            "iat": now_s,
            "exp": now_s + 300,
            "nonce": self.nonce,
            "email": "ada@example.com",
            "email_verified": True,
        }
        claims = {name: value for name, value in (right | self.claims).items() if value is not None}
        header = {"alg": "RS256", "kid": self.key.kid} | self.header
        return self.sign(header, claims) if self.sign else jwt.encode(header, claims, self.key)

    async def configuration(self, _: web.Request) -> web.Response:
        self.calls.append("configuration")
        right = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/auth",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/me",
            "jwks_uri": f"{self.issuer}/jwks",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        }
        return web.json_response(right | self.metadata)

    async def jwks(self, _: web.Request) -> web.Response:
        self.calls.append("jwks")
        keys = [self.key] if self.published is None else self.published
        return web.json_response({"keys": [key.as_dict(private=False) for key in keys]})

    async def tokens(self, request: web.Request) -> web.Response:
        self.calls.append("token")
        self.forms.append({name: str(value) for name, value in (await request.post()).items()})
        right = {"access_token": "access", "token_type": "Bearer", "id_token": self.token()}
        return web.json_response(right | self.answer, status=self.status)

    async def me(self, _: web.Request) -> web.Response:
        return web.json_response(self.userinfo)


def hmac_with_the_public_key(liar: Liar) -> Callable[[dict[str, Any], dict[str, Any]], str]:
    """The public key is known to all: as the secret of an HMAC it would sign for anybody."""
    secret = liar.key.as_pem(private=False)

    def sign(header: dict[str, Any], claims: dict[str, Any]) -> str:
        signed = f"{write_part({**header, 'alg': 'HS256'})}.{write_part(claims)}"
        digest = hmac.digest(secret, signed.encode(), "sha256")
        return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"

    return sign


def write_part(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


@asynccontextmanager
async def lying_provider() -> AsyncIterator[Liar]:
    liar = Liar()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", liar.configuration)
    app.router.add_get("/jwks", liar.jwks)
    app.router.add_post("/token", liar.tokens)
    app.router.add_get("/me", liar.me)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    liar.issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield liar
    finally:
        await runner.cleanup()
