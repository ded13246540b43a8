"""A terminal that keeps what is written on it."""

from __future__ import annotations

import io
import re

from rich.console import Console

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """A file that says that it is a terminal, as consoles and layouts ask."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What a person reads, without the styles."""
        return _STYLE.sub("", self.getvalue()).splitlines()

    def console(self, width: int = 80) -> Console:
        """A console like those of ``system.ui``, on this terminal."""
        return Console(
            file=self, force_terminal=True, width=width, emoji=False, markup=False, soft_wrap=True
        )
