"""What tests of several rooms share."""

from pathlib import Path

#: The project's folder.
ROOT = Path(__file__).parents[2]
