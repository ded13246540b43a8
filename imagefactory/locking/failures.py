"""Parts of a lock that could not be resolved, collected while the others are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from imagefactory.errors import CheckFailedError, FactoryError, InputError, SetupError
from imagefactory.matrix.cell import Cell
from imagefactory.system import ui


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A part of the lock that could not be resolved.

    Attributes:
        name: what it is: a resolution, a toolchain with its platform, or a source.
        cells: names of the cells that need it; empty for what all of them need.
        error: the reason.
        kept: whether the lock keeps what it had for exactly the same request.
    """

    name: str
    cells: tuple[str, ...]
    error: FactoryError
    kept: bool

    def __str__(self) -> str:
        cells = f" ({', '.join(self.cells)})" if self.cells else ""
        return f"{self.name}{cells}: " + ("kept as it was" if self.kept else "not locked")

    def as_dict(self) -> dict[str, object]:
        """The failure as plain JSON values; its problems are among the errors of the command."""
        return {"name": self.name, "cells": list(self.cells), "kept": self.kept}


@dataclass(slots=True)
class Failures:
    """Collects failures; everything else goes on."""

    rows: list[Failure] = field(default_factory=list)

    @contextmanager
    def of(self, name: str, cells: Sequence[Cell] = (), *, kept: bool) -> Iterator[None]:
        """Record a FactoryError that the block raises; see ``Failure``."""
        try:
            yield
        except FactoryError as error:
            if cells:
                location = str(cells[0].locations["vllm"])
                error = type(error)([replace(p, where=p.where or location) for p in error.problems])
            users = tuple(cell.name for cell in cells)
            self.rows.append(Failure(name=name, cells=users, error=error, kept=kept))
            ui.warn(f"{name} failed; the reason is at the end")


def combined(failures: Sequence[Failure]) -> FactoryError | None:
    """One error with the problems of all ``failures``, of the most specific kind, or None."""
    problems = dict.fromkeys(problem for one in failures for problem in one.error.problems)
    kinds = {type(one.error) for one in failures}
    if not kinds:
        return None
    if InputError in kinds:
        return InputError(problems)
    return CheckFailedError(problems) if CheckFailedError in kinds else SetupError(problems)
