"""How the command lines of other programs are written: in full, in short, and into a log."""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from imagefactory import redaction
from imagefactory.redaction import HIDDEN
from imagefactory.system.text import safe, shorten

#: The log is renamed at this size, and what was renamed before is overwritten.
LOG_BYTES = 1_000_000
#: Columns of a command line that is shown in short.
SHORT = 76
_LAST = 42
#: Options that docker, git and python take before their subcommand, each with a value.
_GLOBAL = {"--config", "--context", "--directory", "--git-dir", "--host", "--work-tree", "-C", "-c"}
_VERB = re.compile(r"[a-z][a-z0-9-]*")
_SECRET = r"(?:password|passwd|token|secret|credentials?|api[-_]?key|access[-_]?key)"
#: `NAME=value` and `--name=value` whose name says that the value is a secret.
_ASSIGNED = re.compile(rf"(?i)^(-{{0,2}}(?:[a-z0-9]+[-_])*{_SECRET}=)(?!id=).+", re.DOTALL)
_OPTION = re.compile(rf"(?i)^--(?:[a-z0-9]+-)*{_SECRET}$")


def masked(argv: Sequence[str]) -> list[str]:
    """``argv`` without secrets: ``***`` for passwords, tokens and the credentials in URLs."""
    words: list[str] = []
    for word in argv:
        hidden = bool(words) and bool(_OPTION.match(words[-1])) and not word.startswith("id=")
        words.append(HIDDEN if hidden else _ASSIGNED.sub(rf"\1{HIDDEN}", redaction.hide(word)))
    return words


def show(argv: Sequence[str]) -> str:
    """``argv`` as a line that can be pasted into a shell, secrets left out."""
    return shlex.join(masked(argv))


def short(argv: Sequence[str]) -> str:
    """``argv`` in one line of a terminal: the program, its subcommand and its last argument."""
    program, *words = masked(argv) or [""]
    words = list(_without_globals(words))
    whole = shlex.join([Path(program).name, *words])
    if len(whole) <= SHORT and whole.isprintable():
        return whole
    verbs: list[str] = []
    for word in words[:2]:
        if not _VERB.fullmatch(word):
            break
        verbs.append(word)
    last = words[-1] if len(words) > len(verbs) and not words[-1].startswith("-") else ""
    last = " ".join(last.split())
    last = Path(last).name if last.startswith("/") else last
    left_out = ["…"] if len(words) > len(verbs) + bool(last) else []
    parts = [Path(program).name, *verbs, *left_out, shorten(safe(last), _LAST)]
    return shorten(" ".join(part for part in parts if part), SHORT)


def _without_globals(words: Sequence[str]) -> Iterator[str]:
    """``words`` without the options and their values that come before the subcommand."""
    rest = iter(words)
    for word in rest:
        if word in _GLOBAL:
            next(rest, None)
        else:
            yield word
            break
    yield from rest


class CommandLog:
    """Every command line that was run, in full, with the time; secrets are left out.

    It takes at most two times ``LOG_BYTES`` on the disk. Several processes may write into one file:
    a line is a single append, which the standard library's rotating handler does not offer: it
    keeps its file open, and two processes would rotate each other's away. Nothing is written before
    ``open``, or if the file cannot be written: a log is no reason to fail.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._lock = threading.Lock()

    def open(self, file: Path) -> None:
        """Write into ``file`` from now on; it is made with the first command."""
        self._file = file

    def write(self, argv: Sequence[str], outcome: str = "") -> None:
        """Log that ``argv`` begins, or, with an ``outcome``, how it ended."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        text = f"{outcome}: {short(argv)}" if outcome else f"$ {show(argv)}"
        line = f"{now} [{os.getpid()}] {safe(text)}".replace("\n", "\\n") + "\n"
        with self._lock:
            if self._file is None:  # another thread has just given up
                return
            try:
                self._append(self._file, line.encode())
            except OSError:
                self._file = None

    @staticmethod
    def _append(file: Path, line: bytes) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        written = os.open(file, flags, 0o600)
        try:
            os.write(written, line)
            state = os.fstat(written)
        finally:
            os.close(written)
        with suppress(FileNotFoundError):  # another process was quicker
            if state.st_size > LOG_BYTES and file.stat().st_ino == state.st_ino:
                file.replace(file.with_name(f"{file.name}.1"))
