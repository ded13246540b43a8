"""Versions of packages and drivers, as the matrix writes them. Pure."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version


def is_version(text: str) -> bool:
    """Whether ``text`` is a version as in PEP 440."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
