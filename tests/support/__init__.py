"""Helpers shared by the tests of several packages."""

from pathlib import Path

#: The project's folder.
ROOT = Path(__file__).parents[2]
