"""Bases by digest: `lock` asks their registry whether it has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.matrices import write
from support.registry import OCI, FakeRegistry, fake_registry

from imagefactory.commands import lock as lock_module
from imagefactory.errors import InputError, Problem
from imagefactory.locking import locking, pinned_bases
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.system.registry import Registries

MADE_UP = f"sha256:{'0' * 64}"
DOWN = "127.0.0.1:9"


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as made:
        yield made


def index_of(*platforms: str) -> dict[str, object]:
    rows = [
        {
            "digest": f"sha256:{number}",
            "size": 1,
            "mediaType": f"{OCI}.manifest.v1+json",
            "platform": dict(zip(("os", "architecture"), name.split("/"), strict=True)),
        }
        for number, name in enumerate(platforms)
    ]
    return {"mediaType": f"{OCI}.index.v1+json", "manifests": rows}


def cells(folder: Path, image: str) -> tuple[Cell, ...]:
    return matrix.load(write(folder, "suite: trixie", f"image: {image}")).cells


def check(folder: Path, image: str) -> list[Problem]:
    return pinned_bases.check(cells(folder, image), Registries(folder))


def test_a_digest_that_the_registry_has_for_all_platforms_is_fine(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    rows = index_of("linux/amd64", "linux/arm64", "unknown/unknown")
    digest = registry.put_manifest("cuda", "13", rows)
    assert check(tmp_path, f"{registry.address}/cuda:13@{digest}") == []
    single = registry.put("cuda", "one", {"sha256:1": 1})
    assert check(tmp_path, f"{registry.address}/cuda@{single}") == []


def test_a_digest_that_the_registry_does_not_have_is_an_error_with_its_line(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    (problem,) = check(tmp_path, f"{registry.address}/cuda:13@{MADE_UP}")
    assert (problem.code, str(problem.where)) == ("base-unknown", f"{tmp_path}/matrix.yaml:7")
    assert f"imagetools inspect {registry.address}/cuda:13" in problem.fix


def test_an_index_without_the_platform_of_a_cell_is_an_error(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    digest = registry.put_manifest("cuda", "13", index_of("linux/amd64"))
    (problem,) = check(tmp_path, f"{registry.address}/cuda@{digest}")
    assert problem.code == "base-other-platform"
    assert "no image for linux/arm64, only for linux/amd64" in problem.what


def test_a_registry_that_does_not_answer_is_inconclusive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, f"{DOWN}/cuda@{MADE_UP}") == []
    assert "inconclusive" in capsys.readouterr().err


def test_a_base_without_a_digest_is_not_asked_for(tmp_path: Path, registry: FakeRegistry) -> None:
    assert check(tmp_path, f"{registry.address}/debian:trixie-slim") == []
    assert registry.asked == []


def test_lock_stops_at_a_made_up_digest_before_it_resolves(
    tmp_path: Path, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolved(*_: object, **__: object) -> None:
        raise AssertionError("resolved")

    monkeypatch.setattr(locking, "update", resolved)
    image = f"image: {registry.address}/cuda@{MADE_UP}"
    path = write(tmp_path, "suite: trixie", image)
    with pytest.raises(InputError) as caught:
        lock_module.lock_command(file=path)
    assert [problem.code for problem in caught.value.problems] == ["base-unknown"]
    assert not (tmp_path / "wheels.lock").exists()
