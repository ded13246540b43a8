"""The matrix station: ``matrix.yaml``, the file that a person edits, becomes cells. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from imagefactory import yamlfile
from imagefactory.cell import Cell, Source
from imagefactory.errors import InputError
from imagefactory.matrix import expand, rules
from imagefactory.matrix.schema import MatrixFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A point that was taken out of the matrix, and why."""

    axes: tuple[tuple[str, str], ...]
    reason: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A whole matrix file.

    Attributes:
        path: the file.
        repository: what image references begin with.
        cells: in the order of the file.
        excluded: the points that ``exclude`` took out.
    """

    path: Path
    repository: str
    cells: tuple[Cell, ...]
    excluded: tuple[Excluded, ...]


def load(path: Path) -> Matrix:
    """Read, expand and judge a matrix file. Raises InputError with all of its problems, each with its line."""
    file, positions = yamlfile.read(path, MatrixFile, prefix="matrix")
    problems = list(rules.of_file(file, positions))
    points, taken, more = expand.points(file, positions)
    problems += [*more, *rules.of_points(file, points, positions)]
    if problems:
        raise InputError(yamlfile.in_file_order(problems))
    cells, problems = expand.cells(file, points, positions)
    problems += rules.of_cells(file, cells, positions)
    if problems:
        raise InputError(yamlfile.in_file_order(problems))
    excluded = tuple(Excluded(axes=tuple(axes.items()), reason=why, source=source) for axes, why, source in taken)
    return Matrix(path=path, repository=file.repository, cells=tuple(cells), excluded=excluded)
