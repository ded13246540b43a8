"""Versions of packages and drivers in the matrix. Pure."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version


def is_version(text: str) -> bool:
    """Whether ``text`` is a valid PEP 440 version."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
