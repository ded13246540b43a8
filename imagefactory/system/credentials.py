"""The accounts that ``docker login`` keeps, in Docker's configuration or a credential helper."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagefactory import redaction
from imagefactory.errors import SetupError, fail
from imagefactory.system import shell

#: The user that Docker writes for an identity token.
_TOKEN_USER = "<token>"
HELPER_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who asks a registry: a user with a password, or somebody with an identity token."""

    user: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        redaction.remember(self.secret, user=self.user)

    @property
    def is_token(self) -> bool:
        """Whether ``secret`` is an identity token, which buys access tokens."""
        return self.user == _TOKEN_USER

    @property
    def basic(self) -> str:
        """The Authorization header of a user with a password."""
        pair = f"{self.user}:{self.secret}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


def find(login: str, folder: Path | None = None) -> Account | None:
    """The account for a registry, by the name that ``docker login`` takes; None if there is none.

    ``folder`` is the folder of Docker's configuration, None for Docker's own default. Raises
    SetupError ``registry-credentials`` if its file or a credential helper is broken.
    """
    folder = folder or Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    file = folder / "config.json"
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        helper = settings.get("credHelpers", {}).get(login) or settings.get("credsStore")
        found = _from_helper(f"docker-credential-{helper}", login) if helper else None
        return found or _from_file(settings.get("auths", {}), login)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        what = f"the account for {login} cannot be read from {file}: {error}"
        fix = f"docker login {login} writes it anew"
        raise fail(SetupError, "registry-credentials", what, fix=fix) from None


def _from_file(auths: Mapping[str, Mapping[str, str]], login: str) -> Account | None:
    for key, entry in auths.items():
        if _host(key) == _host(login):
            if entry.get("identitytoken"):
                return Account(user=_TOKEN_USER, secret=entry["identitytoken"])
            user, colon, secret = base64.b64decode(entry.get("auth", "")).decode().partition(":")
            if colon:
                return Account(user=user, secret=secret)
    return None


def _host(key: str) -> str:
    """The host in a key of ``auths``, which may be a URL."""
    return (key.partition("//")[2] or key).partition("/")[0]


def _from_helper(program: str, login: str) -> Account | None:
    done = shell.run([program, "get"], stdin=login, quiet=True, timeout=HELPER_SECONDS)
    if done.ok:
        row = json.loads(done.out)
        return Account(user=str(row["Username"]), secret=str(row["Secret"]))
    said = (done.out or done.err).strip()
    if "not found" in said:
        return None
    raise fail(
        SetupError, "registry-credentials", f"{program} get: {said}", fix=f"docker login {login}"
    )
