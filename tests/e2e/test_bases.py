"""Base images: from a registry by digest where it answers.

Bootstrapped and swapped in by name where it does not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT

from imagefactory.building import bases
from imagefactory.errors import SetupError
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Base
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e


@pytest.fixture
def base() -> Base:
    cells = matrix.load(ROOT / "matrix.yaml").cells
    return next(cell.flavor.base for cell in cells if cell.flavor.name == "cpu")


def test_a_base_that_its_registry_has_is_used_by_digest(
    engine: Engine, base: Base, registry: str, cpu_image: str, tmp_path: Path
) -> None:
    if bases.look(engine, base, engine.platform, tmp_path / "none").origin != "bootstrap":
        source = base.image
    else:
        source = bases.bootstrap_tag(base, engine.platform)
    engine.tag(source, f"{registry}/debian:slim")
    try:
        engine.push(f"{registry}/debian:slim")
    finally:
        engine.untag(f"{registry}/debian:slim")
    elsewhere = replace(base, image=f"{registry}/debian:slim", suite=None)
    known = tmp_path / "bases.json"
    found = bases.ensure(engine, elsewhere, engine.platform, known=known, project=ROOT)
    assert found.origin == "registry"
    assert found.reference == f"{registry}/debian:slim@{found.digest}"
    assert bases.look(engine, elsewhere, engine.platform, known) == found
    (tmp_path / "Dockerfile").write_text(
        f"FROM {found.reference}\nRUN test -f /etc/debian_version\n"
    )
    engine.build(tmp_path, cached=False)


def test_a_base_that_is_nowhere_and_cannot_be_made_is_a_clear_error(
    engine: Engine, base: Base, tmp_path: Path
) -> None:
    nowhere = replace(base, image="127.0.0.1:9/debian:slim", suite=None)
    with pytest.raises(SetupError) as caught:
        bases.ensure(engine, nowhere, engine.platform, known=tmp_path / "bases.json", project=ROOT)
    assert caught.value.problems[0].code == "base-unreachable"


def test_a_bootstrapped_base_has_the_fingerprint_of_its_content(
    engine: Engine, base: Base, cpu_image: str
) -> None:
    found = bases.look(engine, base, engine.platform, Path("/nonexistent"))
    if found.origin == "bootstrap":
        assert found.swap == f"docker-image://{bases.bootstrap_tag(base, engine.platform)}"
        assert (
            found.digest != engine.inspect_image(bases.bootstrap_tag(base, engine.platform)).digest
        )
    else:
        assert found.origin == "registry"
