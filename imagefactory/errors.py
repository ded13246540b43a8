"""How imagefactory fails.

Every failure that a person can cause or fix is a :class:`FactoryError` with one or more
:class:`Problem`. ``cli.main`` alone catches it, shows it and turns it into the exit code.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        code: stable id, such as ``matrix-duplicate-key``; the same in text, JSON and the docs.
        what: what is wrong, in one sentence.
        where: ``file:line``, or something else that can be opened or looked up; None if unknown.
        fix: what to do or to write instead.
        detail: lines to look at, such as a hunk and the file around it.
    """

    code: str
    what: str
    where: str | None = None
    fix: str = ""
    detail: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        tail = f"\n    fix: {self.fix}" if self.fix else ""
        return f"{head} [{self.code}]{tail}"

    def as_dict(self) -> dict[str, str | None]:
        """The problem as plain JSON values."""
        return asdict(self)


class FactoryError(Exception):
    """Base of all errors that are shown to a person without a traceback."""

    exit_code = 1

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class CheckFailedError(FactoryError):
    """The input is fine, but a check of what was made or tried failed (exit 1)."""

    exit_code = 1


class InputError(FactoryError):
    """The input is wrong: matrix, lock, patch, arguments (exit 2)."""

    exit_code = 2


class SetupError(FactoryError):
    """The machine lacks something: no engine, no disk space, no index (exit 3)."""

    exit_code = 3


def fail(
    kind: type[FactoryError], code: str, what: str, *, where: str | None = None, fix: str = ""
) -> FactoryError:
    """A ``kind`` error with a single problem, ready to be raised."""
    return kind(Problem(code=code, what=what, where=where, fix=fix))


def of_the_machine(error: OSError) -> FactoryError:
    """What the system refused: usually a full disk, or a folder that may not be written."""
    if error.filename is None and not _is_somewhere():
        what, fix = "the current folder does not exist any more", "go to another one: cd"
        return fail(SetupError, "system-refused", what, fix=fix)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = (
        "free some disk space, for example with: imagefactory prune; finished steps are kept"
        if full
        else "check the path and its permissions"
    )
    what = (
        f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    )
    return fail(SetupError, "disk-full" if full else "system-refused", what, fix=fix)


def _is_somewhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True
