"""Which sets of wheels can be installed: those that are locked, and those with a built wheel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import matrices, projects

from imagefactory.errors import InputError
from imagefactory.locking import locking, store
from imagefactory.locking.lock import BuiltWheel, Lock
from imagefactory.matrix import matrix
from imagefactory.system.platforms import Platform


def test_a_built_wheel_is_installed_where_the_one_that_it_replaces_would_be(tmp_path: Path) -> None:
    lock = projects.lock_of(matrix.load(matrices.write(tmp_path)).cells)
    first = lock.resolutions[0]
    assert list(lock.installable())[:2] == [first, first.with_built(lock.built[0])]
    other = replace(lock, built=(replace(lock.built[0], replaces="f" * 64),))
    assert list(other.installable()) == list(lock.resolutions)


def extra(lock: Lock, name: str, key: str) -> BuiltWheel:
    """An extra beside the torch of the lock's first resolution."""
    torch = lock.resolutions[0].wheel("torch")
    assert torch
    wheel = replace(torch, name=name, sha256=key * 64, index="wheelhouse")
    return BuiltWheel(key=key, platform=Platform.ARM64, beside=torch.sha256, wheel=wheel)


def test_extras_are_installed_beside_what_is_locked_in_every_choice_of_them(
    tmp_path: Path,
) -> None:
    lock = projects.lock_of(matrix.load(matrices.write(tmp_path)).cells)
    first, vllm = lock.resolutions[0], lock.built[0]
    one, newer, two = extra(lock, "one", "a"), extra(lock, "one", "b"), extra(lock, "two", "c")
    both = first.with_built(vllm).with_built(newer).with_built(two)
    assert both.wheels[-2:] == (newer.wheel, two.wheel)
    found = list(replace(lock, built=(vllm, one, newer, two)).installable())
    names = [[wheel.name for wheel in each.wheels] for each in found]
    assert all(len(each) == len(set(each)) for each in names)
    assert both in found
    assert first in found


def test_an_extra_is_kept_as_long_as_a_resolution_has_its_torch(tmp_path: Path) -> None:
    lock = projects.lock_of(matrix.load(matrices.write(tmp_path)).cells)
    lock = replace(lock, built=(extra(lock, "one", "a"),))
    assert locking._still_usable(lock, lock.resolutions) == lock.built
    others = tuple(replace(one, wheels=()) for one in lock.resolutions)
    assert locking._still_usable(lock, others) == ()


def test_an_extra_is_written_and_read_and_one_that_is_nothing_is_refused(tmp_path: Path) -> None:
    lock = projects.lock_of(matrix.load(matrices.write(tmp_path)).cells)
    lock = replace(lock, built=(extra(lock, "torch", "a"),))
    file = tmp_path / "wheels.lock"
    text = store.dumps(lock)
    file.write_text(text)
    assert store.read(file).built == lock.built
    lines = [line for line in text.splitlines() if not line.startswith("beside")]
    file.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        store.read(file)
    assert "either replaces another one, or is beside torch" in caught.value.problems[0].what
    assert caught.value.problems[0].where == f"{file}:{lines.index('[[built]]') + 1}"
