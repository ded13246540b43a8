"""Leaves secrets out of everything that is shown or written: the one module that knows them.

Credentials enter through the environment, ~/.netrc, a keyring or ``docker login``. Whoever reads
one there calls ``remember``; whatever is printed, logged or put into JSON goes through ``hide``.
"""

from __future__ import annotations

import base64
import re
from urllib.parse import quote

HIDDEN = "***"
#: Shorter words than this are parts of others: they are hidden in URLs only.
SHORTEST = 4
_ACCOUNT = re.compile(r"([a-z][a-z0-9+.-]*://)([^/\s'\"<>]*)@", re.IGNORECASE)
#: What opens something: a password, or anything before the host of a web server, as a token is
#: often the user. The user of an SSH URL is no secret.
IN_URL = re.compile(
    r"(?:https?|ftp)://[^\s/?#\"'@]*@|(?<=[a-z])://[^\s/?#\"':@]*:[^\s/?#\"'@]*@", re.IGNORECASE
)
#: Longest first, so that a secret that contains another is hidden as a whole.
_secrets: list[str] = []


def remember(*secrets: str, user: str = "") -> None:
    """Hide ``secrets`` from now on: as they are, quoted for URLs, and as Basic credentials."""
    for secret in secrets:
        basic = base64.b64encode(f"{user}:{secret}".encode()).decode()
        if len(secret) >= SHORTEST:
            _secrets.extend({secret, quote(secret, safe=""), quote(secret), basic} - {*_secrets})
    _secrets.sort(key=len, reverse=True)


def hide(text: str) -> str:
    """``text`` with ``***`` for remembered secrets and the passwords in URLs."""
    for secret in _secrets:
        text = text.replace(secret, HIDDEN)
    return _ACCOUNT.sub(_without_password, text) if "@" in text and "://" in text else text


def hide_in(value: object) -> object:
    """``value``, which is to become JSON, with ``hide`` applied to every string in it."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return {hide_in(key): hide_in(item) for key, item in value.items()}
    return [hide_in(item) for item in value] if isinstance(value, list | tuple) else value


def _without_password(found: re.Match[str]) -> str:
    user, colon, _ = found[2].partition(":")
    bare_user = found[1].lower().startswith(("ssh://", "git+ssh://")) and not colon
    return (
        f"{found[1]}{user}@" if bare_user else f"{found[1]}{user + ':' if colon else ''}{HIDDEN}@"
    )
