"""Reads what resolved wheels require from their metadata, to record it in the lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from imagefactory.locking import closure, metadata
from imagefactory.locking.lock import Wheel
from imagefactory.settings import Settings

THREADS = 16


def recorded(
    found: Mapping[Wheel, str | Path],
    roots: Iterable[str],
    overrides: closure.Overrides,
    target: Mapping[str, str],
    settings: Settings,
) -> tuple[Wheel, ...]:
    """The wheels, sorted, each with what it requires of the others; ``found`` says where they are.

    Raises SetupError if the metadata of one cannot be read.
    """
    wheels = sorted(found, key=lambda wheel: wheel.name)
    with ThreadPoolExecutor(THREADS) as pool:
        lines = pool.map(lambda wheel: metadata.of_wheel(wheel, found[wheel], settings), wheels)
        by_name = {wheel.name: rows for wheel, rows in zip(wheels, lines, strict=True)}
    requires = closure.active(by_name, roots, overrides, target)
    return tuple(replace(wheel, requires=requires[wheel.name]) for wheel in wheels)
