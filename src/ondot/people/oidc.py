"""The OpenID provider (T1): discovery, its keys, and the code flow with PKCE.

An ID token is accepted if a key of the provider signed it, with an algorithm that has a public key (never `none`, never
HMAC, which would make the public key a secret), for this client, from this issuer, with the nonce of this attempt, and
if it has not expired. Keys are read again when a token names an unknown one, at most every few seconds. Answers are
limited in size and time, and redirects are not followed.
"""

import asyncio
import socket
from base64 import b64encode
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

import aiohttp
import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from ondot import __version__
from ondot.model.addresses import EVERYWHERE
from ondot.model.errors import Forbidden, Unavailable
from ondot.people.attempts import Attempt
from ondot.proxies import is_this_machine
from ondot.settings import Settings
from ondot.store.clock import DatabaseClock
from ondot.targets.addresses import Allowed, PrivateAddress
from ondot.targets.http.addresses import AllowedResolver
from ondot.targets.http.bounded import BoundedConnection
from ondot.telemetry.log import get_logger

CALLBACK: Final = "/sign-in/oidc/callback"
TIMEOUT_S: Final = 10.0
KEPT_S: Final = 3600.0
AGAIN_S: Final = 5.0
"""The keys are read again at most so often: a token with an invented key id must not make us call the provider."""
LEEWAY_S: Final = 60
MAX_BYTES: Final = 512 * 1024
MAX_PARAMETER: Final = 4096
ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)

log = get_logger()


@dataclass(frozen=True, slots=True)
class Identity:
    """A person, by the provider's word."""

    subject: str
    email: str | None
    is_verified: bool
    name: str | None


@dataclass(frozen=True, slots=True)
class Metadata:
    """The part of the provider's configuration that the code flow needs."""

    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str | None
    jwks_uri: str
    algorithms: frozenset[str]
    sends_issuer: bool
    secret_in_body: bool


class RefusedByProvider(Forbidden):
    """The sign-in through the provider did not succeed; the message says why."""


class Provider:
    def __init__(self, settings: Settings, clock: DatabaseClock) -> None:
        assert settings.oidc_issuer is not None
        assert settings.oidc_client_id is not None
        self.issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._client_secret = settings.oidc_client_secret
        self._clock = clock
        self._metadata: tuple[Metadata, float] | None = None
        self._keys: tuple[KeySet, float] | None = None
        self._reading = asyncio.Lock()

    async def address(self, attempt: Attempt, redirect_uri: str) -> str:
        """Where the browser goes to sign in."""
        metadata = await self._read_metadata()
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self._client_id,
                "redirect_uri": redirect_uri,
                "scope": "openid email profile",
                "state": attempt.state,
                "nonce": attempt.nonce,
                "code_challenge": attempt.challenge,
                "code_challenge_method": "S256",
            }
        )
        separator = "&" if urlsplit(metadata.authorization_endpoint).query else "?"
        return f"{metadata.authorization_endpoint}{separator}{query}"

    async def finish(self, attempt: Attempt, parameters: dict[str, str], redirect_uri: str) -> Identity:
        """The person, from the parameters with which the provider sent the browser back."""
        metadata = await self._read_metadata()
        self._check_issuer(metadata, parameters.get("iss"))
        if error := parameters.get("error"):
            why = parameters.get("error_description", error)
            raise RefusedByProvider(f"The sign-in was refused by the provider: {why[:300]!r}. Try again.")
        code = parameters.get("code", "")
        if not 0 < len(code) <= MAX_PARAMETER:
            raise RefusedByProvider("The provider sent no code. Sign in again.")
        tokens = await self._exchange(metadata, code, attempt.verifier, redirect_uri)
        claims = await self._verify(metadata, tokens.get("id_token"), attempt.nonce)
        if "email" not in claims and metadata.userinfo_endpoint is not None:
            claims = await self._read_person(metadata.userinfo_endpoint, tokens.get("access_token"), claims)
        email, name = claims.get("email"), claims.get("name")
        return Identity(
            claims["sub"],
            email if isinstance(email, str) else None,
            claims.get("email_verified") in (True, "true"),
            name if isinstance(name, str) else None,
        )

    @property
    def host(self) -> str:
        return urlsplit(self.issuer).netloc

    def _check_issuer(self, metadata: Metadata, issuer: str | None) -> None:
        """The answer says who sent it: another provider's answer must not be used here (RFC 9207)."""
        if issuer != self.issuer and (issuer is not None or metadata.sends_issuer):
            raise RefusedByProvider("The answer came from another provider. Sign in again.")

    # The provider's words ---------------------------------------------------------------------------------------------

    async def _read_metadata(self) -> Metadata:
        if self._metadata is not None and monotonic() - self._metadata[1] < KEPT_S:
            return self._metadata[0]
        async with self._reading:
            if self._metadata is None or monotonic() - self._metadata[1] >= KEPT_S:
                url = self.issuer.rstrip("/") + "/.well-known/openid-configuration"
                self._metadata = self._parse_metadata(await self._get(url)), monotonic()
            return self._metadata[0]

    def _parse_metadata(self, found: dict[str, Any]) -> Metadata:
        if found.get("issuer") != self.issuer:
            raise Unavailable(
                f"The provider at {self.issuer} calls itself {str(found.get('issuer'))[:200]!r}. Set ONDOT_OIDC_ISSUER"
                " to exactly that, if it is the right one."
            )
        algorithms = found.get("id_token_signing_alg_values_supported", ["RS256"])
        methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return Metadata(
            self._endpoint(found, "authorization_endpoint"),
            self._endpoint(found, "token_endpoint"),
            self._endpoint(found, "userinfo_endpoint") if found.get("userinfo_endpoint") else None,
            self._endpoint(found, "jwks_uri"),
            ALGORITHMS & frozenset(map(str, algorithms)),
            found.get("authorization_response_iss_parameter_supported") is True,
            "client_secret_basic" not in methods and "client_secret_post" in methods,
        )

    def _endpoint(self, found: dict[str, Any], name: str) -> str:
        url = found.get(name)
        if not isinstance(url, str) or not is_safe_url(url):
            raise Unavailable(f"The provider's {name} is {str(url)[:200]!r}, which is not a URL with https://.")
        return url

    async def _exchange(self, metadata: Metadata, code: str, verifier: str, redirect_uri: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {}
        if self._client_secret is None or metadata.secret_in_body:
            form["client_id"] = self._client_id
            if self._client_secret is not None:
                form["client_secret"] = self._client_secret
        else:
            # RFC 6749, 2.3.1: both are form-encoded first.
            pair = f"{quote_plus(self._client_id)}:{quote_plus(self._client_secret)}"
            headers = {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}
        status, answer = await self._call("POST", metadata.token_endpoint, data=form, headers=headers)
        if status != 200:
            error = answer.get("error_description") or answer.get("error") or f"status {status}"
            log.warning("oidc.code_refused", error=str(error)[:300], status=status)
            raise RefusedByProvider("The provider did not accept the code: it was used before, or is too old.")
        return answer

    async def _verify(self, metadata: Metadata, token: object, nonce: str) -> dict[str, Any]:
        if not isinstance(token, str):
            raise RefusedByProvider("The provider sent no ID token. Its client must allow the scope openid.")
        rules = jwt.JWTClaimsRegistry(
            now=int(self._clock.now().timestamp()),
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "value": self._client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            decoded = await self._decode(metadata, token)
            rules.validate(decoded.claims)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            log.warning("oidc.token_refused", error=str(error)[:300])
            raise RefusedByProvider("The provider's ID token is not valid. Sign in again.") from error
        claims = dict(decoded.claims)
        audience, subject = claims["aud"], claims["sub"]
        if isinstance(audience, list) and len(audience) > 1 and claims.get("azp") != self._client_id:
            raise RefusedByProvider("The provider's ID token is for another client. Sign in again.")
        if not isinstance(subject, str) or not 0 < len(subject) <= 255:
            raise RefusedByProvider("The provider's ID token names no person. Sign in again.")
        return claims

    async def _decode(self, metadata: Metadata, token: str) -> jwt.Token:
        algorithms = sorted(metadata.algorithms)
        try:
            return jwt.decode(token, await self._read_keys(metadata), algorithms=algorithms)
        except (JoseError, ValueError):
            # The provider may have a new key. Whatever was wrong, a second reading settles it.
            keys = await self._read_keys(metadata, not_older_than_s=AGAIN_S)
            return jwt.decode(token, keys, algorithms=algorithms)

    async def _read_keys(self, metadata: Metadata, *, not_older_than_s: float = KEPT_S) -> KeySet:
        async with self._reading:
            if self._keys is None or monotonic() - self._keys[1] >= not_older_than_s:
                found = await self._get(metadata.jwks_uri)
                usable = [key for key in found.get("keys", []) if _is_for_signatures(key)]
                self._keys = KeySet.import_key_set({"keys": usable}), monotonic()
            return self._keys[0]

    async def _read_person(self, url: str, token: object, claims: dict[str, Any]) -> dict[str, Any]:
        """The person's e-mail address, where the ID token leaves it out."""
        if not isinstance(token, str):
            return claims
        status, found = await self._call("GET", url, headers={"authorization": f"Bearer {token}"})
        if status != 200 or found.get("sub") != claims["sub"]:
            raise RefusedByProvider("The provider described another person. Sign in again.")
        return {name: found.get(name) for name in ("email", "email_verified", "name")} | claims

    # HTTP ------------------------------------------------------------------------------------------------------------

    async def _get(self, url: str) -> dict[str, Any]:
        status, found = await self._call("GET", url)
        if status != 200:
            raise Unavailable(f"The provider answered {url} with {status}. Try again, or check ONDOT_OIDC_ISSUER.")
        return found

    async def _call(self, method: str, url: str, **options: Any) -> tuple[int, dict[str, Any]]:
        headers = {"accept": "application/json", "user-agent": f"ondot/{__version__}"} | options.pop("headers", {})
        try:
            async with (
                self._open() as session,
                session.request(method, url, headers=headers, allow_redirects=False, **options) as response,
            ):
                raw = await response.content.read(MAX_BYTES + 1)
                while len(raw) <= MAX_BYTES and (more := await response.content.read(MAX_BYTES)):
                    raw += more
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, PrivateAddress) as error:
            words = str(error) or type(error).__name__
            raise Unavailable(f"The OpenID provider cannot be reached: {words[:300]}. Try again.") from error
        try:
            found = msgspec.json.decode(raw[: MAX_BYTES + 1])
        except msgspec.DecodeError as error:
            raise Unavailable(f"The provider answered {url} with something that is not JSON.") from error
        if not isinstance(found, dict):
            raise Unavailable(f"The provider answered {url} with something that is not an object.")
        return response.status, found

    def _open(self) -> aiohttp.ClientSession:
        """For one call: people sign in rarely. The operator chose the provider, so private addresses are allowed;
        link-local and metadata addresses never are."""
        allowed = Allowed(EVERYWHERE)
        connector = aiohttp.TCPConnector(
            limit=8,
            family=socket.AF_UNSPEC,
            resolver=AllowedResolver(allowed),
            socket_factory=allowed.open_socket,
        )
        connector._factory = partial(BoundedConnection, loop=asyncio.get_running_loop())  # type: ignore[assignment]
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            trust_env=False,
        )


def is_safe_url(url: str) -> bool:
    """https, or http on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if not parts.hostname or parts.username or parts.password or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_this_machine(url))


def _is_for_signatures(key: object) -> bool:
    """Public keys of kinds that we know; a provider may list others."""
    return isinstance(key, dict) and key.get("kty") in {"RSA", "EC", "OKP"} and key.get("use", "sig") == "sig"
