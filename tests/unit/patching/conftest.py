"""Fixtures of the patching tests."""

from support.releases import using
from support.sources import index

__all__ = ["index", "using"]
