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
        self._limited: list[str] = []
        self._write()

    def answer(
        self, words: str, *, out: str = "", err: str = "", code: int = 0, times: int | None = None
    ) -> None:
        """Answer to command lines that begin with ``words``; the first of several counts.

        With ``times``, that often; then the next one counts.
        """
        pattern = f"{shlex.quote(words)}*)"
        reply = f"printf %s {shlex.quote(out)}; printf %s {shlex.quote(err)} >&2; exit {code}"
        if times is None:
            self._answers.append(f"{pattern} {reply};;")
        else:
            spent = shlex.quote(str(self._calls.with_name(f"spent-{len(self._limited)}")))
            count = f"$(cat {spent} 2>/dev/null | wc -l)"
            limited = f"if [ {count} -lt {times} ]; then echo >> {spent}; {reply}; fi"
            self._limited.append(f'case "$*" in {pattern} {limited};; esac')
        self._write()

    @property
    def calls(self) -> list[str]:
        """The command lines so far, without the program."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def _write(self) -> None:
        cases = "\n".join([*self._answers, '*) echo "unexpected: $*" >&2; exit 99;;'])
        note = f"printf '%s\\n' \"$*\" >> {shlex.quote(str(self._calls))}"
        limited = "\n".join(self._limited)
        self.program.write_text(f'#!/bin/sh\n{note}\n{limited}\ncase "$*" in\n{cases}\nesac\n')
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
