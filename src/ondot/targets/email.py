"""E-mail over SMTP (O4): plain text and HTML, to the server of the installation (`ONDOT_SMTP_URL`).

Headers are made by the library from checked parts, so that no text of a job can add one. An answer 4xx may pass, and so
may a server that is away or hangs. A server that rejects some recipients and accepts others has sent the e-mail: those
it rejected are named. A repeated e-mail has the same Message-ID.
"""

import asyncio
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any

import aiosmtplib
import msgspec

from ondot.model.channel import Email
from ondot.model.email import SmtpServer
from ondot.model.outcome import AttemptError, Cancelled, Failed, Succeeded, timed_out
from ondot.ports.target import Call, Target
from ondot.targets.cancelling import not_called
from ondot.targets.text import one_line

DEFAULT_TIMEOUT_S = 30.0


class EmailCaller(Target[Email]):
    def __init__(self, server: SmtpServer | None, sender: str | None) -> None:
        """`server`: None if the installation has none."""
        self._server = server
        self._sender = sender

    async def call(self, spec: Email, call: Call) -> Succeeded | Failed | Cancelled:
        if call.cancel.requested:
            return not_called()
        if self._server is None or self._sender is None:
            message = "This installation sends no e-mails: set ONDOT_SMTP_URL and ONDOT_SMTP_FROM for its schedulers."
            return Failed(AttemptError("no_smtp_server", message))
        timeout_s = call.timeout_s or DEFAULT_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout_s):
                return await self._send(self._server, spec, call, timeout_s)
        except (TimeoutError, aiosmtplib.SMTPException, OSError, ValueError) as error:
            return _report_failure(error, self._server, timeout_s)

    async def _send(self, server: SmtpServer, spec: Email, call: Call, timeout_s: float) -> Succeeded:
        client = aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            use_tls=server.is_tls,
            start_tls=server.starttls,
            username=server.user,
            password=server.password,
            timeout=timeout_s,
            local_hostname=self._domain,
        )
        async with client:
            rejected, answer = await client.send_message(
                build_email(spec, self._sender or "", call), sender=self._sender, recipients=list(spec.to)
            )
        result: dict[str, Any] = {"answer": one_line(answer)}
        if rejected:
            result["rejected"] = {to: one_line(f"{each.code} {each.message}") for to, each in rejected.items()}
        return Succeeded(msgspec.json.encode(result).decode())

    @property
    def _domain(self) -> str:
        return (self._sender or "").rpartition("@")[2] or "localhost"


def build_email(spec: Email, sender: str, call: Call) -> EmailMessage:
    message = EmailMessage(policy=SMTP)
    message["From"] = sender
    message["To"] = ", ".join(spec.to)
    message["Subject"] = spec.subject
    message["Date"] = format_datetime(call.fire_at)
    message["Message-ID"] = spec.message_id
    if spec.in_reply_to is not None:
        message["In-Reply-To"] = spec.in_reply_to
        message["References"] = spec.in_reply_to
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(spec.text)
    message.add_alternative(spec.html, subtype="html")
    return message


def _report_failure(error: Exception, server: SmtpServer, timeout_s: float) -> Failed:
    match error:
        case TimeoutError():  # the library's own is one too
            return timed_out(timeout_s)
        case aiosmtplib.SMTPRecipientsRefused():
            code, text = min(((each.code, each.message) for each in error.recipients), default=(550, ""))
            return _rejected(code, text, "rejected all recipients")
        case aiosmtplib.SMTPResponseException():
            return _rejected(error.code, error.message, "rejected it")
        case _:
            message = one_line(f"No e-mail could be sent by {server.host}:{server.port}: {_explain(error)}")
            return Failed(AttemptError("connect", message, facts={"type": type(error).__name__}))


def _explain(error: Exception) -> str:
    """A connection that is reset has no text of its own."""
    text = str(error)
    return f"{text}{type(error.__cause__ or error).__name__}" if not text or text.endswith(": ") else text


def _rejected(code: int, text: str, what: str) -> Failed:
    message = one_line(f"The mail server {what}: {code} {text}")
    return Failed(AttemptError("smtp_status", message, facts={"status": code}), retryable=code < 500)
