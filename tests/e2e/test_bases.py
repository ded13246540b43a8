"""Base images: assembled from locked Debian packages, or an image of a registry by its digest."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT

from imagefactory.building import bases as making
from imagefactory.errors import FactoryError
from imagefactory.locking import bases, store
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.planning import planning
from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine
from imagefactory.system.platforms import Platform

pytestmark = pytest.mark.e2e


@pytest.fixture
def cell() -> Cell:
    cells = matrix.load(ROOT / "matrix.yaml").cells
    return next(cell for cell in cells if cell.flavor.name == "cpu")


def on(cell: Cell, image: str) -> Cell:
    """``cell`` on an image of a registry."""
    base = replace(cell.flavor.base, image=image, suite=None)
    return replace(cell, flavor=replace(cell.flavor, base=base))


def test_an_image_of_a_registry_is_locked_by_digest_and_built_on(
    engine: Engine, cell: Cell, registry: str, cpu_image: str, tmp_path: Path
) -> None:
    image = f"{registry}/debian:slim"
    engine.tag(cpu_image, image)
    try:
        engine.push(image)
    finally:
        engine.untag(image)
    settings = from_environment(os.environ)
    lock = replace(store.read(ROOT / "wheels.lock"), bases=())
    lock = bases.update(lock, [on(cell, image)], settings)
    found = planning.bases([on(cell, image)], [], lock)["bookworm", cell.platform]
    assert found.origin == "registry"
    assert found.reference == f"{image}@{found.digest}"
    assert bases.check(lock, [on(cell, image)], settings) == []
    (tmp_path / "Dockerfile").write_text(
        f"FROM {found.reference}\nRUN test -f /etc/debian_version\n"
    )
    engine.build(tmp_path, cached=False)


def test_an_image_that_its_registry_lacks_is_a_clear_error(cell: Cell, registry: str) -> None:
    lock = replace(store.read(ROOT / "wheels.lock"), bases=())
    with pytest.raises(FactoryError) as caught:
        bases.update(lock, [on(cell, f"{registry}/none:x")], from_environment(os.environ))
    assert caught.value.problems[0].code == "base-unknown"


@pytest.mark.parametrize("platform", Platform)
def test_the_same_packages_give_the_same_base_in_another_folder(
    cell: Cell, platform: Platform, tmp_path: Path
) -> None:
    lock, here = store.read(ROOT / "wheels.lock"), from_environment(os.environ)
    image = planning.bases([cell], [platform], lock)["bookworm", platform]
    (tmp_path / "imagefactory").mkdir()
    (tmp_path / "imagefactory" / "debs").symlink_to(here.cache / "debs")
    elsewhere = replace(here, cache=tmp_path / "imagefactory")
    one, two = (making.contexts(image, "base", where)["root"] for where in (here, elsewhere))
    assert one.partition("@")[2] == two.partition("@")[2]
    assert one != two
