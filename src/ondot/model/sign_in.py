"""Rules of signing in (T1): e-mail addresses, passwords, how failures slow down the next try, where to go afterwards.

A password has at least 12 characters. There are no rules for digits or signs, which people satisfy with `Password1!`:
length is what counts, and a short list keeps out the long passwords that everybody tries first.
"""

import re
import unicodedata
from typing import Final

MIN_PASSWORD: Final = 12
MAX_PASSWORD: Final = 256
MAX_EMAIL: Final = 254
MAX_NAME: Final = 200
FEWEST_CHARACTERS: Final = 5
"""Different ones: `aaaaaaaaaaaa` and `121212121212` have fewer."""

FREE_FAILURES: Final = 5
LONGEST_WAIT_S: Final = 60.0
QUIET_S: Final = 900.0
"""After so many seconds without a failure they are forgotten."""

_EMAIL: Final = re.compile(
    r"[^\s@<>\"'(),;:\\\[\]\x00-\x20\x7f]+@[^\s@<>\"'(),;:\\\[\]\x00-\x20\x7f.]+(\.[^\s@<>\"'(),;:\\\[\]\x00-\x20\x7f.]+)*"
)
_COMMON: Final = (
    "password",
    "passwort",
    "motdepasse",
    "qwertyuiop",
    "qwertzuiop",
    "azertyuiop",
    "asdfghjkl",
    "1q2w3e4r5t",
    "letmein",
    "welcome",
    "iloveyou",
    "administrator",
    "changeme",
    "abcdefghijkl",
    "correcthorsebatterystaple",
    "12345678",
    "87654321",
)
_FILLING: Final = re.compile(r"[\d\W_]+")


def parse_email(text: str) -> str | None:
    """The address in the form that is stored; None if it is not one."""
    email = unicodedata.normalize("NFC", text.strip()).lower()
    return email if len(email) <= MAX_EMAIL and email.isprintable() and _EMAIL.fullmatch(email) else None


def parse_name(text: str) -> str | None:
    name = unicodedata.normalize("NFC", text.strip())
    return name if 1 <= len(name) <= MAX_NAME and name.isprintable() else None


def normalize_password(password: str) -> str:
    """The same characters, however a keyboard composes them."""
    return unicodedata.normalize("NFKC", password)


def fault_of_password(password: str, email: str = "") -> str | None:
    """Why a new password is rejected; None: it is not."""
    password = normalize_password(password)
    if len(password) < MIN_PASSWORD:
        return f"The password is too short. Use {MIN_PASSWORD} characters or more: a few words are easy to remember."
    if len(password) > MAX_PASSWORD:
        return f"The password is too long. Use at most {MAX_PASSWORD} characters."
    if len(set(password)) < FEWEST_CHARACTERS:
        return "The password repeats a few characters. Use a few words instead."
    if _is_common(password.lower(), email):
        return "The password is one that others try first. Use a few words that have nothing to do with each other."
    return None


def _is_common(password: str, email: str) -> bool:
    """Whether it is a known one, or the address, with only digits and signs around it."""
    name = email.partition("@")[0].lower()
    known = [*_COMMON, "ondot", *([email.lower()] if email else []), *([name] if len(name) >= 4 else [])]
    rest = password
    for word in sorted(known, key=len, reverse=True):
        rest = rest.replace(word, "")
    return (rest != password and not _FILLING.sub("", rest)) or not _FILLING.sub("", password)


def wait_after(failures: int) -> float:
    """Seconds until the next try, after so many failures in a row."""
    if failures < FREE_FAILURES:
        return 0.0
    return float(min(LONGEST_WAIT_S, 2.0 ** min(failures - FREE_FAILURES, 10)))


def failures_after(failures: int, since_s: float) -> int:
    """The count with one more failure, `since_s` after the last."""
    return 1 if since_s >= QUIET_S else failures + 1


def local_path(text: str | None) -> str:
    """Where to go after signing in: a path of this server, or the first page.

    Browsers read `//host`, `/\\host` and `/<tab>/host` as another server, so only plain paths are kept.
    """
    if not text or len(text) > 2000 or not text.startswith("/") or text[1:2] in {"/", "\\"}:
        return "/"
    if not text.isascii() or not text.isprintable() or "\\" in text or text.startswith("/sign-in"):
        return "/"
    return text
