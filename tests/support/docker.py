"""A docker that says what a test wants it to say, and notes how it was called."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path


class FakeDocker:
    """A program in ``folder``; its answers are chosen by how its command line begins."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "docker"
        self._calls = folder / "docker-calls"
        self._answers: list[str] = []
        self._write()

    def answer(self, words: str, *, out: str = "", err: str = "", code: int = 0) -> None:
        """Answer to command lines that begin with ``words``; the first of several counts."""
        self._answers.append(
            f"{shlex.quote(words)}*) printf %s {shlex.quote(out)}; "
            f"printf %s {shlex.quote(err)} >&2; exit {code};;"
        )
        self._write()

    @property
    def calls(self) -> list[str]:
        """The command lines so far, without the program."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def _write(self) -> None:
        cases = "\n".join([*self._answers, '*) echo "unexpected: $*" >&2; exit 99;;'])
        note = f"printf '%s\\n' \"$*\" >> {shlex.quote(str(self._calls))}"
        self.program.write_text(f'#!/bin/sh\n{note}\ncase "$*" in\n{cases}\nesac\n')
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
