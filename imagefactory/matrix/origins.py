"""Parses where the source trees of a build come from, as written in the matrix. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a source tree is obtained."""

    GIT = "git"
    ARCHIVE = "archive"
    WHEEL = "wheel"
    FOLDER = "folder"


#: What people can write.
FORMS = (
    "git+https://host/repository@ref, https://….tar.gz#sha256=…, wheel:NAME/path, or a folder (./…)"
)
_GIT = re.compile(
    r"git\+(?P<address>(?:https?|ssh|file)://(?!-)[^#\s]*/[^#\s]+)"
    r"@(?P<ref>[A-Za-z0-9._/][A-Za-z0-9._/-]*)"
)
_ARCHIVE = re.compile(
    r"(?P<address>https?://[^#\s]+\.(?:tar|tar\.gz|tgz|tar\.xz|zip))#sha256=(?P<ref>[0-9a-f]{64})"
)
_WHEEL = re.compile(r"wheel:(?P<address>[A-Za-z0-9][A-Za-z0-9._-]*)/(?P<inside>[^\s]+)")
_FOLDER = re.compile(r"(?P<address>\.{0,2}/[^\s#]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a source tree comes from.

    Attributes:
        kind: how it is obtained.
        address: URL of a repository or archive, name of a locked wheel, or path of a folder
            (relative to the project).
        ref: branch, tag or commit of a repository; SHA-256 of an archive; else empty.
        inside: the folder inside a wheel; else empty.
    """

    kind: Kind
    address: str
    ref: str = ""
    inside: str = ""


def parse(text: str) -> Origin | None:
    """Parse ``text``; None if it is none of the four kinds."""
    patterns = {Kind.GIT: _GIT, Kind.ARCHIVE: _ARCHIVE, Kind.WHEEL: _WHEEL, Kind.FOLDER: _FOLDER}
    for kind, pattern in patterns.items():
        found = pattern.fullmatch(text)
        if found:
            return Origin(kind=kind, **found.groupdict())
    return None


def of(text: str) -> Origin:
    """Parse ``text`` from a validated matrix. Raises ValueError if it is none of the kinds."""
    found = parse(text)
    if found is None:
        raise ValueError(text)
    return found
