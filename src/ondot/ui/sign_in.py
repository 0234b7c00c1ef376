"""Pages to sign in and out, to accept an invitation, and of one's own account (T1). They work without scripts.

A sign-in always creates a new session and ends the one that the browser sent. The cookie needs https, or this machine:
elsewhere over plain http a browser would not keep it, so the page says what to do instead of failing in silence.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ondot.model.access import Role
from ondot.model.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    OndotError,
    TooManySignIns,
    Unauthorized,
    Unavailable,
)
from ondot.model.sign_in import MAX_PASSWORD, MIN_PASSWORD, local_path
from ondot.people.attempts import LASTS_S, abandoned, cookie_of, find_attempt, new_attempt
from ondot.people.oidc import CALLBACK, Provider
from ondot.people.sessions import COOKIE, read_cookies, write_cookie
from ondot.people.sign_in import SignedIn, SignIn, Visitor
from ondot.proxies import is_this_machine
from ondot.store.database import Database
from ondot.store.sessions import Session, act_for, end_session, end_sessions, list_sessions
from ondot.store.users import read_population
from ondot.ui.forms import read_form
from ondot.ui.me import Auth, read_me
from ondot.ui.render import Renderer

SEE_OTHER: Final = 303
STATUS: Final[Mapping[type[OndotError], int]] = {
    TooManySignIns: 429,
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    InvalidRequest: 422,
    Unavailable: 503,
}

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class SignInPages:
    database: Database
    auth: Auth
    renderer: Renderer
    sign_in: SignIn
    provider: Provider | None
    headers: Mapping[str, str]

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Method, path, handler."""
        return [
            ("GET", "/sign-in", self.show),
            ("POST", "/sign-in", self.enter),
            ("GET", "/sign-in/oidc", self.leave_for_provider),
            ("GET", CALLBACK, self.return_from_provider),
            ("POST", "/sign-out", self.leave),
            ("GET", "/invitation", self.show_invitation),
            ("POST", "/invitation", self.accept_invitation),
            ("GET", "/account", self.show_account),
            ("POST", "/account/password", self.change_password),
            ("POST", "/account/sessions", self.end_sessions),
            ("POST", "/act-for", self.switch_tenant),
        ]

    # Sign in ---------------------------------------------------------------------------------------------------------

    async def show(self, request: Request) -> Response:
        next_path = local_path(request.query_params.get("next"))
        if await self._session(request) is not None:
            return RedirectResponse(next_path, SEE_OTHER)
        return await self._form(request, next_path, request.query_params.get("tenant", ""))

    async def enter(self, request: Request) -> Response:
        fields: dict[str, str] = {}
        try:
            fields = await read_form(request)
            self._check_secure(request)
            signed_in = await self.sign_in.with_password(
                fields.get("tenant", "").strip(), fields.get("email", ""), fields.get("password", ""), _visitor(request)
            )
        except tuple(STATUS) as error:
            return await self._form(
                request, local_path(fields.get("next")), fields.get("tenant", ""), fields.get("email", ""), error
            )
        return await self._welcome(request, signed_in, local_path(fields.get("next")))

    async def leave_for_provider(self, request: Request) -> Response:
        next_path, tenant = local_path(request.query_params.get("next")), request.query_params.get("tenant", "")[:200]
        try:
            provider = self._provider()
            self._check_secure(request)
            if request.headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}:
                # Another site must not start a sign-in: the person presses the button.
                return await self._form(request, next_path, tenant)
            attempt = new_attempt(next_path, tenant, self.database.clock.now().timestamp())
            address = await provider.address(attempt, self._redirect_uri(request))
        except tuple(STATUS) as error:
            return await self._form(request, next_path, tenant, "", error)
        response = RedirectResponse(address, SEE_OTHER)
        for name in abandoned(read_cookies(request.scope["headers"])):
            response.headers.append("set-cookie", write_cookie(name, "", 0))
        response.headers.append("set-cookie", write_cookie(attempt.cookie, attempt.write(), LASTS_S))
        return response

    async def return_from_provider(self, request: Request) -> Response:
        pairs = request.query_params.multi_items()
        parameters = dict(pairs)
        state, next_path, tenant = parameters.get("state", ""), "/", ""
        try:
            provider = self._provider()
            cookies = read_cookies(request.scope["headers"])
            attempt = find_attempt(state, cookies, self.database.clock.now().timestamp())
            if attempt is None or len(parameters) != len(pairs):
                raise Forbidden(
                    "This sign-in was not started in this browser, or took longer than ten minutes. Sign in again."
                )
            next_path, tenant = local_path(attempt.next), attempt.tenant
            identity = await provider.finish(attempt, parameters, self._redirect_uri(request))
            signed_in = await self.sign_in.with_provider(tenant, identity, _visitor(request))
        except tuple(STATUS) as error:
            response = await self._form(request, next_path, tenant, "", error)
        else:
            response = await self._welcome(request, signed_in, next_path)
        # The attempt is over, whatever came of it.
        response.headers.append("set-cookie", write_cookie(cookie_of(state), "", 0))
        return response

    async def show_invitation(self, request: Request) -> Response:
        token = request.query_params.get("token", "")
        try:
            self._check_secure(request)
            user = await self.sign_in.find_invited(token)
        except tuple(STATUS) as error:
            return self._refuse(error)
        return self._page("invitation", user=user, token=token, error=None)

    async def accept_invitation(self, request: Request) -> Response:
        fields: dict[str, str] = {}
        user = None
        try:
            fields = await read_form(request)
            self._check_secure(request)
            user = await self.sign_in.find_invited(fields.get("token", ""))
            if fields.get("password") != fields.get("again"):
                raise InvalidRequest("The two passwords differ. Enter the same one twice.")
            signed_in = await self.sign_in.with_invitation(
                fields["token"], fields.get("password", ""), _visitor(request)
            )
        except tuple(STATUS) as error:
            if user is None:
                return self._refuse(error)
            return self._page("invitation", error, user=user, token=fields["token"], error=error)
        return await self._welcome(request, signed_in, "/")

    # Signed in -------------------------------------------------------------------------------------------------------

    async def leave(self, request: Request) -> Response:
        try:
            session = await self._session(request)
            if session is not None:
                await self.sign_in.out(session)
        except Unavailable as error:
            return self._refuse(error)
        response = RedirectResponse("/sign-in", SEE_OTHER)
        response.headers.append("set-cookie", write_cookie(COOKIE, "", 0))
        return response

    async def show_account(self, request: Request) -> Response:
        return await self._account(request)

    async def change_password(self, request: Request) -> Response:
        try:
            session = await self._needed(request)
            fields = await read_form(request)
            if fields.get("password") != fields.get("again"):
                raise InvalidRequest("The two passwords differ. Enter the same one twice.")
            await self.sign_in.change_password(
                session, fields.get("old", ""), fields.get("password", ""), _visitor(request)
            )
        except tuple(STATUS) as error:
            return await self._account(request, error)
        return await self._account(request, done="The password is changed, and all other sessions are ended.")

    async def end_sessions(self, request: Request) -> Response:
        try:
            session = await self._needed(request)
            id_ = (await read_form(request)).get("id", "")
            tenant_no, user_id = session.home_tenant_no, session.caller.user_id
            assert user_id is not None
            async with self.database.connection() as connection:
                if id_ == "others":
                    await end_sessions(connection, tenant_no, user_id, but=session.id)
                elif not await end_session(connection, tenant_no, user_id, _uuid(id_)):
                    raise NotFound("This session has ended already.")
        except tuple(STATUS) as error:
            return await self._account(request, error)
        return RedirectResponse("/account", SEE_OTHER)

    async def switch_tenant(self, request: Request) -> Response:
        """An owner acts for another tenant, until the session ends."""
        try:
            session = await self._needed(request)
            name = (await read_form(request)).get("tenant", "").strip()
            if session.caller.role is not Role.OWNER:
                raise Forbidden("Only an owner acts for other tenants.")
            tenant = await self.database.tenants.by_name(name)
            if tenant is None:
                raise NotFound(f"There is no tenant {name[:100]!r}.")
            assert session.caller.user_id is not None
            other = None if tenant.tenant_no == session.home_tenant_no else tenant.tenant_no
            async with self.database.connection() as connection:
                await act_for(connection, session.home_tenant_no, session.caller.user_id, session.id, other)
        except tuple(STATUS) as error:
            return await self._account(request, error)
        self._forget(request)
        return RedirectResponse("/", SEE_OTHER)

    # Parts -----------------------------------------------------------------------------------------------------------

    async def _session(self, request: Request) -> Session | None:
        return await self.auth.session(request)

    async def _needed(self, request: Request) -> Session:
        session = await self._session(request)
        if session is None:
            raise Unauthorized("You are not signed in any more. Sign in again.")
        return session

    async def _welcome(self, request: Request, signed_in: SignedIn, next_path: str) -> Response:
        before = await self._session(request)
        if before is not None:
            await self.sign_in.out(before)
        response = RedirectResponse(next_path, SEE_OTHER)
        response.headers.append("set-cookie", write_cookie(COOKIE, signed_in.cookie, signed_in.lasts_s))
        return response

    async def _form(
        self, request: Request, next_path: str, tenant: str, email: str = "", error: OndotError | None = None
    ) -> Response:
        has_users = has_tenants = True
        try:
            if error is None:
                self._check_secure(request)
            async with self.database.connection() as connection:
                has_users, has_tenants = await read_population(connection)
        except (Forbidden, Unavailable) as trouble:
            return self._refuse(trouble)
        query = f"next={quote(next_path, safe='')}" + (f"&tenant={quote(tenant[:200], safe='')}" if tenant else "")
        return self._page(
            "sign_in",
            error,
            next=next_path,
            tenant=tenant[:200],
            email=email[:254],
            error=error,
            has_users=has_users,
            has_tenants=has_tenants,
            oidc=None if self.provider is None else f"/sign-in/oidc?{query}",
            issuer=None if self.provider is None else self.provider.host,
        )

    async def _account(self, request: Request, error: OndotError | None = None, done: str | None = None) -> Response:
        try:
            session = await self._session(request)
            if session is None:
                return RedirectResponse("/sign-in?next=%2Faccount", SEE_OTHER)
            assert session.caller.user_id is not None
            async with self.database.connection() as connection:
                rows = await list_sessions(
                    connection, session.home_tenant_no, session.caller.user_id, self.database.settings.session_idle_s
                )
        except Unavailable as trouble:
            return self._refuse(trouble)
        now, me = self.database.clock.now(), await read_me(self.database, self.auth, request, session.caller)
        return self._page("account", error, session=session, rows=rows, error=error, done=done, now=now, me=me)

    def _page(self, template: str, trouble: OndotError | None = None, **values: Any) -> Response:
        limits = {"shortest": MIN_PASSWORD, "longest": MAX_PASSWORD}
        headers = dict(self.headers)
        if isinstance(trouble, TooManySignIns):
            headers["Retry-After"] = str(trouble.facts.get("retry_after_s", 1))
        status = 200 if trouble is None else _status(trouble)
        return HTMLResponse(self.renderer.page(template, **limits, **values), status, headers=headers)

    def _refuse(self, error: OndotError) -> Response:
        more = {"Retry-After": "2"} if isinstance(error, Unavailable) else {}
        html = self.renderer.page("message", error=error, base_url="")
        return HTMLResponse(html, _status(error), headers=dict(self.headers) | more)

    def _forget(self, request: Request) -> None:
        """The caller of this session has changed: this process must not use the old one for its next request."""
        if cookie := read_cookies(request.scope["headers"]).get(COOKIE):
            self.auth.sessions.forget(cookie)

    def _provider(self) -> Provider:
        if self.provider is None:
            raise NotFound("No OpenID provider is set up. Set ONDOT_OIDC_ISSUER and ONDOT_OIDC_CLIENT_ID.")
        return self.provider

    def _check_secure(self, request: Request) -> None:
        """Whether the browser will keep the cookie."""
        if self.database.settings.public_url is None and not is_this_machine(str(request.base_url)):
            raise Forbidden(
                "Signing in needs https: over plain http a browser does not keep the session, and others can read the"
                " password. Put a proxy with a certificate in front of ondot, set ONDOT_PUBLIC_URL=https://…, and open"
                " that. On this machine, http://127.0.0.1 works too."
            )

    def _redirect_uri(self, request: Request) -> str:
        base = self.database.settings.public_url or str(request.base_url).rstrip("/")
        return base + CALLBACK


def _visitor(request: Request) -> Visitor:
    return Visitor(request.client.host if request.client else "", request.headers.get("user-agent", ""))


def _status(error: OndotError) -> int:
    return next(status for kind, status in STATUS.items() if isinstance(error, kind))


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("There is no such session.") from None
