"""The matrix station: reads ``matrix.yaml``, the file that users edit, into cells. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagefactory.errors import InputError
from imagefactory.matrix import (
    cell_rules,
    declarations,
    expand,
    file_rules,
    inherit,
    moving_tags,
    policies,
    ref_rules,
)
from imagefactory.matrix.cell import Cell, Toolchain
from imagefactory.matrix.moving_tags import MovingTag
from imagefactory.matrix.policies import Policies
from imagefactory.matrix.schema import MatrixFile
from imagefactory.system import yamlfile
from imagefactory.system.yamlfile import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A point that ``exclude`` removed from the matrix, and the reason."""

    axes: tuple[tuple[str, str], ...]
    reason: str
    location: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A whole matrix file.

    Attributes:
        path: the file.
        repository: the repository part of image references.
        cells: in the order of the file.
        excluded: the points that ``exclude`` removed.
        toolchains: in the order of the file.
        indexes: URL of each named index.
        policies: which newer versions are taken over.
        moving_tags: in the order of the file.
        builders: the buildx builders to build on, unless others are named.
    """

    path: Path
    repository: str
    cells: tuple[Cell, ...]
    excluded: tuple[Excluded, ...]
    toolchains: tuple[Toolchain, ...]
    indexes: Mapping[str, str] = field(default_factory=dict)
    policies: Policies = field(default_factory=Policies)
    moving_tags: tuple[MovingTag, ...] = ()
    builders: tuple[str, ...] = ()


def load(path: Path) -> Matrix:
    """Read, expand and validate a matrix file.

    Raises InputError with all of its problems, each with its line.
    """
    file, positions, problems = yamlfile.examine(
        path, MatrixFile, prefix="matrix", prepare=inherit.apply
    )
    if file is None:
        raise InputError(yamlfile.in_file_order(problems))
    problems += file_rules.of_file(file, positions)
    problems += ref_rules.of_file(file, positions)
    problems += policies.problems(file, positions)
    points, removed, more = expand.points(file, positions)
    problems += [*more, *file_rules.of_points(file, points, positions)]
    # incomplete points have been reported by now; the complete ones are validated in the same run
    complete = [point for point in points if file_rules.is_complete(file, point)]
    cells, more = expand.cells(file, complete, positions)
    written = {(one.code, one.where) for one in problems}
    problems += [one for one in cell_rules.of_cells(cells) if (one.code, one.where) not in written]
    problems += [*more, *ref_rules.of_cells(cells)]
    problems += moving_tags.problems(file, cells, positions)
    if problems:
        raise InputError(yamlfile.in_file_order(list(dict.fromkeys(problems))))
    excluded = tuple(
        Excluded(axes=tuple(axes.items()), reason=reason, location=location)
        for axes, reason, location in removed
    )
    return Matrix(
        path=path,
        repository=file.repository,
        cells=tuple(cells),
        excluded=excluded,
        toolchains=declarations.toolchains(file, positions),
        indexes={name: entry.url for name, entry in file.indexes.items()},
        policies=policies.of_file(file, positions),
        moving_tags=moving_tags.declared(file, positions),
        builders=tuple(file.builders),
    )
