"""Versions of packages and drivers in the matrix. Pure."""

from __future__ import annotations

from packaging.version import Version


def is_version(text: str) -> bool:
    """Whether ``text`` is a valid PEP 440 version."""
    try:
        Version(text)
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return False
    return True
