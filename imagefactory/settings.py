"""Settings of this machine, read from the environment once and passed on from there."""

from __future__ import annotations

import netrc
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from imagefactory import redaction
from imagefactory.errors import InputError, fail

#: Without an explicit scheme and host, uv would read it as a path or an option.
_INDEX = re.compile(r"https?://[^\s/-][^\s]*")
SNAPSHOT = "https://snapshot.debian.org/archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Debian:
    """Where Debian packages come from.

    Attributes:
        mirrors: pairs of an archive (``debian``, ``debian-security``) and the URL of its mirror,
            for those that are set; the others are those of the machine's own apt, or Debian's.
        snapshot: URL of the archive of old packages, by date.
        folders: local folders with packages.
        keys: OpenPGP keys to trust instead of Debian's; None for Debian's.
        accounts: user and password by the URL that they came with. Those in ~/.netrc are found
            when a request is made.
    """

    mirrors: tuple[tuple[str, str], ...] = ()
    snapshot: str = SNAPSHOT
    folders: tuple[Path, ...] = ()
    keys: Path | None = None
    accounts: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Folders of this machine, and where it gets wheels and Debian packages from.

    Attributes:
        state: folder for data that must be kept: receipts, the private engine, logs (XDG state).
        cache: folder for data that can be recreated: sources, proof results (XDG cache).
        indexes: simple indexes in the order of preference, as in uv.
        find_links: local wheel folders (pip's ``find-links``).
        ca_bundle: the machine's CA bundle for steps that download; None for the image's own.
        environ: the environment, for the credentials of indexes that have a name.
        named: URL of each such index, by name.
        accounts: user and password by the URL of an index, for those that came with them.
        keyring: looks up user and password for a URL in the machine's keyring; None without one.
        debian: where Debian packages come from.
    """

    state: Path
    cache: Path
    indexes: tuple[str, ...]
    find_links: tuple[Path, ...]
    ca_bundle: Path | None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    named: Mapping[str, str] = field(default_factory=dict, hash=False)
    accounts: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False, compare=False)
    keyring: Callable[[str], tuple[str, str] | None] | None = field(
        default=None, repr=False, compare=False
    )

    def account_for(self, url: str) -> tuple[str, str] | None:
        """User and password for ``url``, if it is on the host of an index that has them.

        They come, in this order, from the variables of an index with a name, from the URL of an
        index, from ~/.netrc and from the keyring.
        """
        host = _host(url)
        indexes = dict.fromkeys((*self.named.values(), *self.accounts, *self.indexes))
        on_host = [index for index in indexes if _host(index) == host]
        # an index may share its host with others, and its files usually have other paths
        for index in sorted(on_host, key=lambda index: not url.startswith(index)):
            found = self._of_name(index) or self.accounts.get(index)
            if found:
                return _remembered(found)
        found = _in_netrc(self.environ, urlsplit(url).hostname or "")
        if found is None and self.keyring and on_host:
            found = self.keyring(on_host[0])
        return _remembered(found) if found else None

    def _of_name(self, url: str) -> tuple[str, str] | None:
        names = [name for name, index in self.named.items() if index == url]
        return next(filter(None, (_in_variables(self.environ, name) for name in names)), None)

    def index_accounts(self) -> dict[str, tuple[str, str]]:
        """User and password by the URL of each main index that has them."""
        found = {index: self.account_for(index) for index in self.indexes}
        return {index: account for index, account in found.items() if account}

    debian: Debian = field(default_factory=Debian)

    @property
    def receipts(self) -> Path:
        """Folder of the verification receipts."""
        return self.state / "receipts"

    @property
    def loans(self) -> Path:
        """Folder of the names that images have for the time of a push."""
        return self.state / "loans"

    @property
    def logs(self) -> Path:
        """Folder of the build logs, one file per cell."""
        return self.state / "logs"


DEFAULT_INDEX = "https://pypi.org/simple"
#: An index as uv takes it, and a URL with credentials.
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)=(?P<url>[a-z][a-z0-9+.-]*://.*)")
_WITH_ACCOUNT = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<account>[^/]*)@(?P<rest>.*)")


def index_variable(name: str) -> str:
    """How the variables with the credentials of the index ``name`` start, as in uv."""
    return "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def split_account(url: str) -> tuple[str, tuple[str, str] | None]:
    """``url`` without its user and password, and these; None if it has none."""
    found = _WITH_ACCOUNT.fullmatch(url)
    if found is None:
        return url, None
    user, _, password = found["account"].partition(":")
    return found["scheme"] + found["rest"], _remembered((unquote(user), unquote(password)))


def split_accounts(
    indexes: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, tuple[str, str]]]:
    """The URLs of ``indexes`` without names and credentials, and the credentials by URL."""
    accounts: dict[str, tuple[str, str]] = {}
    urls = []
    for text in indexes:
        named = _NAMED.fullmatch(text)
        name, url = (named["name"], named["url"]) if named else ("", text)
        url, account = split_account(url)
        found = (_in_variables(environ, name) if name else None) or account
        if found:
            accounts[url] = _remembered(found)
        urls.append(url)
    return tuple(dict.fromkeys(urls)), accounts


def _in_variables(environ: Mapping[str, str], name: str) -> tuple[str, str] | None:
    """The credentials of the index ``name``, in the variables that uv reads."""
    start = index_variable(name)
    user, password = environ.get(f"{start}_USERNAME"), environ.get(f"{start}_PASSWORD")
    return (user or "", password or "") if user or password else None


def _in_netrc(environ: Mapping[str, str], host: str) -> tuple[str, str] | None:
    """The credentials of a host in the netrc file; one that cannot be read has none."""
    home = environ.get("HOME")
    file = environ.get("NETRC") or (f"{home}/.netrc" if home else "")
    try:
        found = netrc.netrc(file).authenticators(host) if file else None
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None
    return (found[0] or found[1], found[2]) if found else None


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _remembered(account: tuple[str, str]) -> tuple[str, str]:
    user, password = account
    # a token is often the user, without a password
    redaction.remember(password or user, user=user)
    return account


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Settings from the variables of XDG, pip and uv.

    ``UV_DEFAULT_INDEX`` or ``PIP_INDEX_URL`` sets the main index, ``UV_INDEX`` and
    ``PIP_EXTRA_INDEX_URL`` add more, ``UV_FIND_LINKS`` and ``PIP_FIND_LINKS`` add wheel folders,
    and ``SSL_CERT_FILE`` sets the CA bundle. An index may be written as ``NAME=URL``, and then has
    the credentials of a named index; those in URLs go into ``accounts`` and nowhere else.
    ``IMAGEFACTORY_DEBIAN_MIRROR``, ``IMAGEFACTORY_DEBIAN_SECURITY_MIRROR``,
    ``IMAGEFACTORY_DEBIAN_SNAPSHOT``, ``IMAGEFACTORY_DEBIAN_KEYS`` and ``IMAGEFACTORY_DEBS``
    (folders) say where Debian packages come from. Raises InputError for an index that is not a URL.
    """
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - never fails
    state = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "imagefactory"
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "imagefactory"
    main = environ.get("UV_DEFAULT_INDEX") or environ.get("PIP_INDEX_URL") or DEFAULT_INDEX
    more = [*environ.get("UV_INDEX", "").split(), *environ.get("PIP_EXTRA_INDEX_URL", "").split()]
    folders = [
        *environ.get("UV_FIND_LINKS", "").replace(",", " ").split(),
        *environ.get("PIP_FIND_LINKS", "").split(),
    ]
    indexes, accounts = split_accounts([main, *more], environ)
    for index in indexes:
        if not _INDEX.fullmatch(index):
            what = f"{index.rpartition('@')[2]!r} is not the URL of an index"
            fix = "set UV_DEFAULT_INDEX and UV_INDEX to URLs such as https://host/simple"
            raise fail(InputError, "index-url", what, where="environment", fix=fix)
    bundle = environ.get("SSL_CERT_FILE")
    return Settings(
        state=state,
        cache=cache,
        indexes=indexes,
        accounts=accounts,
        find_links=tuple(
            dict.fromkeys(Path(folder) for folder in folders if Path(folder).is_dir())
        ),
        environ=environ,
        debian=_debian(environ),
        ca_bundle=Path(bundle) if bundle and os.path.isfile(bundle) else None,  # noqa: PTH113
    )


def _debian(environ: Mapping[str, str]) -> Debian:
    archives = {
        "debian": environ.get("IMAGEFACTORY_DEBIAN_MIRROR"),
        "debian-security": environ.get("IMAGEFACTORY_DEBIAN_SECURITY_MIRROR"),
        "": environ.get("IMAGEFACTORY_DEBIAN_SNAPSHOT") or SNAPSHOT,
    }
    mirrors: dict[str, str] = {}
    accounts: dict[str, tuple[str, str]] = {}
    for archive, text in archives.items():
        if text:
            mirrors[archive], account = split_account(text.rstrip("/"))
            accounts |= {mirrors[archive]: account} if account else {}
    snapshot = mirrors.pop("")
    keys = environ.get("IMAGEFACTORY_DEBIAN_KEYS")
    folders = environ.get("IMAGEFACTORY_DEBS", "").split(os.pathsep)
    return Debian(
        mirrors=tuple(mirrors.items()),
        snapshot=snapshot,
        folders=tuple(Path(folder) for folder in folders if folder),
        keys=Path(keys) if keys else None,
        accounts=accounts,
    )
