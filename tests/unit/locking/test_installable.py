"""Which sets of wheels can be installed: those that are locked, and those with a built wheel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support import matrices, projects

from imagefactory.matrix import matrix


def test_a_built_wheel_is_installed_where_the_one_that_it_replaces_would_be(tmp_path: Path) -> None:
    lock = projects.lock_of(matrix.load(matrices.write(tmp_path)).cells)
    first = lock.resolutions[0]
    assert list(lock.installable())[:2] == [first, first.with_built(lock.built[0])]
    other = replace(lock, built=(replace(lock.built[0], replaces="f" * 64),))
    assert list(other.installable()) == list(lock.resolutions)
